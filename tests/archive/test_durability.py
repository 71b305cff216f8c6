"""What was kept stands: through writers that are killed, chunks that are cut or damaged, and an index that is anything
but right.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from archive_samples import TASK, TOTAL, kept, marks
from sick_disk import mounted

from etude.archive.chunks import chunks
from etude.archive.query import Filter
from etude.archive.reader import ArchiveReader
from etude.archive.retention import Retention, remove_old
from etude.archive.writer import ArchiveWriter
from etude.errors import CheckpointError
from etude.records import Scored

HERE = Path(__file__).parent
PROGRAM = """
import sys
from pathlib import Path
from archive_samples import kept, marks
from etude.archive.writer import ArchiveWriter

run, first, many, step = Path(sys.argv[1]), *map(int, sys.argv[2:])
writer = ArchiveWriter(run, chunk_bytes=20_000)
for number in range(first, first + many):
    writer.keep(kept(f"g{number}/0", seed=number, at=1000.0 + number))
    if step:
        writer.mark(step + number, [marks(f"g{number}/0")])
    print(number, flush=True)
"""


def writing(run, first, many, step=0):
    """A process that keeps so many, and says of each that it is kept."""
    path = os.pathsep.join([str(HERE), str(HERE.parents[1])])
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(run), *map(str, (first, many, step))],
        env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def whole(run):
    """Ids of all trajectories, each of which is read whole."""
    with ArchiveReader(run) as reader:
        found = [reader.trajectory(row.id) for row in reader.every()]
        for each in found:
            assert len(each.tokens.token_ids) == TOTAL and each.log() and each.files and each.task and each.verifier
            assert each.row.step is None or len(each.marks.mask)
        return [each.row.id for each in found]


def test_a_writer_that_is_killed_loses_nothing_that_it_had_kept(tmp_path):
    """The next goes on beside what it left; what was judged twice is there once, with the later verdict."""
    seed = time.time_ns()
    drawn, said = random.Random(seed), set()
    print(f"seed {seed}")
    for life in range(3):
        first = max(said, default=0)  # what was being judged is judged again
        with writing(tmp_path, first, 10_000, step=1) as process:
            for _ in range(drawn.randint(1, 60)):
                said.add(int(process.stdout.readline()))
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert life < 2 or len(chunks(tmp_path / "archive")) >= 3
    there = whole(tmp_path)
    assert {f"g{number}/0" for number in said} <= set(there)
    assert len(there) == len(set(there)) == max(int(each[1:-2]) for each in there) + 1
    with ArchiveReader(tmp_path) as reader:
        assert all(reader.row(f"g{number}/0").step == 1 + number for number in said)


def test_a_chunk_is_as_good_as_its_whole_frames(tmp_path):
    """Cut anywhere, it has those before; damaged anywhere, all but one."""
    with ArchiveWriter(tmp_path / "run") as writer:
        ends = []
        for number in range(5):
            writer.keep(kept(f"g{number}/0", seed=number))
            ends.append(next(iter(chunks(tmp_path / "run/archive").values())).stat().st_size)
    [path] = chunks(tmp_path / "run/archive").values()
    data, drawn = path.read_bytes(), random.Random(5)
    assert len(data) == ends[-1]
    for cut in [0, 3, 8, 16, *(drawn.randrange(16, len(data)) for _ in range(12))]:
        path.write_bytes(data[:cut])
        expected = sum(end <= cut for end in ends)
        assert len(whole(tmp_path / "run")) == expected, cut
    for place in [16, ends[1] + 3, ends[2] + 12, *(drawn.randrange(16, len(data)) for _ in range(8))]:
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :])
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(tmp_path / "run/archive/chunks", tmp_path / "copy/archive/chunks")
        with ArchiveReader(tmp_path / "copy") as reader:
            there = [row.id for row in reader.every()]
            assert len(there) >= 4, place
            torn: list[str] = []
            for each in there:
                try:
                    found = reader.trajectory(each)
                    assert (len(found.tokens.token_ids), len(found.log())) == (TOTAL, 13), place
                    assert found.about and found.files and found.verifier
                except CheckpointError as error:
                    torn.append(str(error))
            assert len(torn) + (5 - len(there)) <= 1 and all("damaged" in each for each in torn), place


def _nothing(path):
    path.unlink()


def _half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 + 13])


def _rubbish(path):
    path.write_bytes(b"SQLite format 3\0" + random.Random(1).randbytes(9_000))


def _empty(path):
    path.write_bytes(b"")


def _holes(path):
    data = bytearray(path.read_bytes())
    data[8192:] = bytes(len(data) - 8192)
    path.write_bytes(data)


def _of_another_version(path):
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET value = 0 WHERE key = 'format'")
    db.close()


def _of_another_sqlite(path):
    _put(path, b"SQLite format 3\0", 47, b"\x09")


def _odd_letters(path):
    """In the words of its tables, which SQLite quotes when it cannot read them."""
    _put(path, b"CREATE TABLE marks(", 8, b"\xff\xfe")


def _odd_rows(path):
    _put(path, b'{"tests": 1.0}', 2, b'"')


def _put(path, after, at, data):
    """Bytes in place of others, wherever they stand behind these."""
    found = path.read_bytes()
    assert after in found
    place = found.index(after) + at
    path.write_bytes(found[:place] + data + found[place + len(data) :])


@pytest.mark.parametrize(
    "spoil",
    [_nothing, _half, _rubbish, _empty, _holes, _of_another_version, _of_another_sqlite, _odd_letters, _odd_rows],
)
def test_an_index_that_is_of_no_use_is_made_anew(tmp_path, spoil):
    """While it is open, too; and an index that is older than the chunks hears of the rest."""
    with ArchiveWriter(tmp_path) as writer:
        for number in range(30):
            writer.keep(kept(f"g{number}/0", seed=number))
        with ArchiveReader(tmp_path) as reader:
            assert reader.count() == 30
            note = reader.annotate("g3/0", "look at this", "me")
        index = tmp_path / "archive/index.sqlite"
        older = index.read_bytes()
        writer.keep(kept("g30/0"))
        writer.mark(3, [marks("g30/0")])
        spoil(index)
        assert len(whole(tmp_path)) == 31
        with ArchiveReader(tmp_path) as reader:
            assert reader.count(Filter(text="look")) == 1 and reader.annotations("g3/0") == [note]
            since = reader.newest()
            spoil(index)
            assert reader.refresh() >= 0 and reader.count() == 31 and reader.row("g30/0").step == 3
            assert len(reader.changes(since).rows) == (0 if reader.newest() == since else 31)
        for name in ("index.sqlite-wal", "index.sqlite-shm"):
            (tmp_path / "archive" / name).unlink(missing_ok=True)
        index.write_bytes(older)
        assert len(whole(tmp_path)) == 31


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_who_fills_an_index_and_ends_in_between_leaves_all_of_the_rest(tmp_path, monkeypatch, end):
    """Of a chunk that was read to its end, too: what was not put in by then is put in by the next one."""
    with ArchiveWriter(tmp_path) as writer:
        for number in range(5):
            writer.keep(kept(f"g{number}/0"))
    with monkeypatch.context() as patched, ArchiveReader(tmp_path, fill=False) as reader:
        if end == "stopped":
            reader.stop()
            reader.refresh()
        else:
            patched.setattr("etude.archive.catching_up.json.dumps", _dies)
            with pytest.raises(KeyboardInterrupt):
                reader.refresh()
        assert reader.count() == 0 and reader.behind() > 0
    assert len(whole(tmp_path)) == 5


def _dies(*_):
    raise KeyboardInterrupt


def test_a_reader_sees_each_once_while_another_process_writes(tmp_path):
    with writing(tmp_path, 0, 150) as process, ArchiveReader(tmp_path) as reader, ArchiveReader(tmp_path) as other:
        seen, at, over = [], None, False
        end = time.monotonic() + 120
        while True:
            over = process.poll() is not None  # asked before the look, so that nothing comes after it
            reader.refresh()
            found = reader.changes(at)
            at = found.cursor
            seen = [*([] if found.anew else seen), *(row.id for row in found.rows)]  # an index made anew is told anew
            other.refresh()
            assert other.count() >= len(set(seen)), "another reader was behind what the index has"
            if over and not found.rows:
                break
            assert time.monotonic() < end, "150 trajectories within 120 s"
        assert process.returncode == 0
    assert seen == [f"g{number}/0" for number in range(150)]
    assert len(whole(tmp_path)) == 150


def test_where_nothing_can_be_written_the_index_is_the_readers_own(tmp_path, monkeypatch):
    with ArchiveWriter(tmp_path) as writer:
        writer.keep(kept())
    monkeypatch.setattr("etude.archive.index.os.access", lambda *_: False)
    with ArchiveReader(tmp_path) as reader:
        assert reader.count() == 1
    assert sorted(path.name for path in (tmp_path / "archive").iterdir()) == ["chunks"]


def test_a_run_without_an_archive_has_no_rows_until_it_has(tmp_path):
    with ArchiveReader(tmp_path) as reader:
        assert reader.trajectories().rows == () and reader.count() == 0 and reader.trajectory("g0/0") is None
        assert list(tmp_path.iterdir()) == []
        since = reader.newest()
        with ArchiveWriter(tmp_path) as writer:
            writer.keep(kept())
        reader.refresh()
        found = reader.changes(since)
        assert [row.id for row in found.rows] == ["g0/0"] and found.anew


def test_whole_chunks_go_the_oldest_first(tmp_path):
    with ArchiveWriter(tmp_path, Retention(gigabytes=None), chunk_bytes=6_000) as writer:
        for number in range(40):
            writer.keep(kept(f"g{number}/0", seed=number))
        writer.mark(2, [marks("g39/0")])
        there = chunks(tmp_path / "archive")
        sizes = [path.stat().st_size for path in there.values()]
        assert len(there) > 4
        with ArchiveReader(tmp_path) as reader:
            assert reader.count() == 40
            oldest, at = reader.trajectory("g0/0"), reader.newest()
            kept_bytes = sum(sizes[2:])
            removed = remove_old(tmp_path / "archive", Retention(gigabytes=kept_bytes / 1e9))
            assert (removed.chunks, removed.bytes) == (2, sum(sizes[:2]))
            with pytest.raises(CheckpointError, match="removed, for age or size"):
                _ = oldest.tokens
            reader.refresh()
            assert 0 < reader.count() < 40 and reader.row("g0/0") is None and reader.row("g39/0").step == 2
            assert reader.count(Filter(text="dates")) == reader.count() and reader.newest() >= at
            week = time.time() + 7 * 86_400
            last = max(there)
            assert remove_old(tmp_path / "archive", Retention(days=5), now=week).chunks == len(there) - 3
            assert set(chunks(tmp_path / "archive")) == {last}, "the newest stays, and so does what is being written"
            writer.keep(kept("g40/0"))
            reader.refresh()
            assert reader.row("g40/0") is not None
    assert max(chunks(tmp_path / "archive")) >= last


def test_a_full_chunk_lets_the_writer_remove_what_is_too_much(tmp_path):
    with ArchiveWriter(tmp_path, Retention(gigabytes=20_000 / 1e9), chunk_bytes=6_000) as writer:
        for number in range(60):
            writer.keep(kept(f"g{number}/0", seed=number))
    there = chunks(tmp_path / "archive")
    assert min(there) > 1 and sum(path.stat().st_size for path in there.values()) < 30_000
    assert whole(tmp_path)[-1] == "g59/0"


def test_a_resumed_trainer_takes_back_what_it_had_marked(tmp_path):
    with ArchiveWriter(tmp_path) as first, ArchiveWriter(tmp_path) as second:
        for number in range(3):
            first.keep(kept(f"g{number}/0", seed=number))
        second.mark(1, [marks("g0/0")])
        second.mark(2, [marks("g1/0")])
        with ArchiveWriter(tmp_path) as third:
            third.resumed(1)
            third.mark(2, [marks("g2/0", advantage=-1.0)])
        first.keep(kept("g2/0", outcome=Scored(0.5, {"tests": 0.0}), at=2000.0))
        first.keep(kept("g2/0", outcome=Scored(0.9, {"tests": 0.0}), at=500.0))  # said later, of an earlier verdict
    for _ in range(2):
        with ArchiveReader(tmp_path) as reader:
            assert [reader.row(f"g{number}/0").step for number in range(3)] == [1, None, 2]
            assert reader.trajectory("g1/0").marks is None and reader.trajectory("g2/0").marks.advantages[0] == -1.0
            assert reader.row("g2/0").reward == 0.5 and reader.count() == 3
        (tmp_path / "archive/index.sqlite").unlink()


def test_many_threads_keep_at_once(tmp_path):
    """In chunks that fill up meanwhile, each with the tasks that it needs."""
    with ArchiveWriter(tmp_path, Retention(), chunk_bytes=15_000) as writer, ThreadPoolExecutor(8) as threads:
        tasks = [replace(TASK, id=f"t{number}") for number in range(3)]
        done = [
            threads.submit(writer.keep, kept(f"g{number}/0", task=tasks[number % 3], seed=number))
            for number in range(90)
        ]
        assert all(each.result() > 0 for each in done)
    assert len(chunks(tmp_path / "archive")) > 5
    assert sorted(whole(tmp_path)) == sorted(f"g{number}/0" for number in range(90))


def test_a_full_disk_is_said_and_what_was_kept_stands(tmp_path):
    with mounted(tmp_path / "disk", "1m") as disk:
        run = disk.at / "run"
        with ArchiveWriter(run) as writer:
            writer.keep(kept("g0/0"))
            disk.fill()
            with pytest.raises(OSError, match=r"No space.*\.chunk"):
                writer.keep(kept("g1/0", result="".join(map(str, range(20_000)))))
            disk.clear()
            writer.keep(kept("g2/0"))
        assert whole(run) == ["g0/0", "g2/0"]


def test_an_archive_on_a_full_disk_is_read_all_the_same(tmp_path):
    """The index is then the reader's own: whether there is one already, or not yet."""
    with mounted(tmp_path / "disk", "2m") as disk:
        run = disk.at / "run"
        with ArchiveWriter(run) as writer:
            for number in range(20):
                writer.keep(kept(f"g{number}/0", result="".join(map(str, range(5_000))), seed=number))
            disk.fill()
            assert len(whole(run)) == 20
            disk.clear()
            with ArchiveReader(run) as reader:
                assert reader.count() == 20
                for number in range(20, 60):
                    writer.keep(kept(f"g{number}/0", seed=number))
                disk.fill()
                reader.refresh()
                assert reader.count() == 60
