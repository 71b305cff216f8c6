"""An archive that something else has made: sound by its checksums, and of no run. Only what is odd in it is refused."""

from __future__ import annotations

import json
import math
import sqlite3
from contextlib import closing

import pytest
from archive_samples import kept

from etude.archive import contents
from etude.archive.frames import Kind, encoded
from etude.archive.query import Filter
from etude.archive.reader import ArchiveReader
from etude.archive.writer import ArchiveWriter
from etude.errors import CheckpointError

HUGE = 10**30
DEEP = "[" * 100_000


def framed(row=None, **sections):
    """A trajectory's frame, with something else in its row or in a section of it."""
    head = {"row": {**_row(kept("g1/0")), **(row or {})}, "findings": [], "said": {"final": "", "calls": ""}}
    about = {"segments": [], "findings": [], "usage": {}, "environment": {}}
    sound = {"about": json.dumps(about).encode(), "events": b"[]", "tokens": b"\0" * 4}
    return head, {**sound, **sections}


def _row(given):
    return {name: getattr(contents._row(given), name) for name in contents._ROW}


def written(run, *frames):
    """Sound trajectories on both sides of these frames."""
    with ArchiveWriter(run) as writer:
        writer.keep(kept("g0/0"))
    [chunk] = (run / "archive/chunks").iterdir()
    with chunk.open("ab") as file:
        for frame in frames:
            file.write(frame)
    with ArchiveWriter(run) as writer:
        writer.keep(kept("g2/0"))


@pytest.mark.parametrize(
    "row", [{"turns": HUGE}, {"ended_at": math.nan}, {"begun_at": 1e300}, {"seconds": math.inf}, {"reward": HUGE},
            {"parts": {"tests": {}}}, {"parts": {"tests": HUGE}}]
)  # fmt: skip
def test_a_row_with_what_no_index_can_have_is_passed_over(tmp_path, row):
    written(tmp_path, encoded(Kind.TRAJECTORY, *framed(row)))
    with ArchiveReader(tmp_path) as reader:
        assert [each.id for each in reader.every()] == ["g0/0", "g2/0"]


def test_a_head_that_lacks_what_is_searched_and_odd_steps_are_passed_over(tmp_path):
    head, sections = framed()
    del head["said"]["final"]
    step = encoded(Kind.MARKS, {"id": "g0/0", "step": HUGE, "trained_tokens": 1})
    resumed = encoded(Kind.RESUMED, {"step": -HUGE})
    written(tmp_path, encoded(Kind.TRAJECTORY, head, sections), step, resumed)
    (tmp_path / "archive/chunks/99999999999999999999.chunk").write_bytes(b"of another kind")
    with ArchiveReader(tmp_path) as reader:
        assert [(each.id, each.step) for each in reader.every()] == [("g0/0", None), ("g2/0", None)]


def test_lines_of_any_kind_in_ledger_and_notes_are_passed_over(tmp_path):
    written(tmp_path)
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger/groups.jsonl").write_text(
        f'{DEEP}\n{{"opened": Infinity}}\n[]\n{{"lost": 0, "member": 0, "reason": "stale"}}\n'
    )
    note = {"note": "n", "trajectory": "g0/0", "place": {"event": math.inf}, "text": "x", "author": "", "at": 1}
    with ArchiveReader(tmp_path) as reader:
        told = reader.annotate("g0/0", "look", "me")
    with (tmp_path / "archive/notes.jsonl").open("a") as file:
        file.write(f"{json.dumps(note)}\n{DEEP}\n" + json.dumps({**note, "place": {}, "at": HUGE**20}) + "\n")
    with ArchiveReader(tmp_path) as reader:
        assert reader.row("g0/0").dropped == "stale" and reader.annotations("g0/0") == [told]
        assert reader.count(Filter(text="look")) == 1


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("about", b"[]"), ("about", DEEP.encode()), ("about", b'{"segments": []}'), ("events", b"[[1, 2, 3, 4, 5]]"),
        ("events", DEEP.encode()), ("events", b'[["end", 0, {}, [0, 1], null]]'), ("tokens", b"\xff" * 4),
        ("files", b'\x1a\0\0\0[["a", -5, null, true]]    '), ("files", b"\x04\0\0\0[[1]"),
    ],
)  # fmt: skip
def test_a_section_that_says_something_else_is_damage(tmp_path, name, data):
    written(tmp_path, encoded(Kind.TRAJECTORY, *framed(**{name: data})))
    with ArchiveReader(tmp_path) as reader:
        found = reader.trajectory("g1/0")
        with pytest.raises(CheckpointError, match=f"{name} of g1/0 are of no trajectory"):
            _ = found.about, found.said, found.tokens, found.files
        assert len(reader.trajectory("g2/0").said) > 5


def test_segments_lie_within_their_tokens(tmp_path):
    about = {"segments": [["turns", 0, 10**12]], "findings": [], "usage": {}, "environment": {}}
    written(tmp_path, encoded(Kind.TRAJECTORY, *framed(about=json.dumps(about).encode())))
    with ArchiveReader(tmp_path) as reader, pytest.raises(CheckpointError, match="outside of its 0 tokens"):
        _ = reader.trajectory("g1/0").tokens


@pytest.mark.parametrize("places", [[], {"about": [0, -1]}, {"about": [-9, 9]}, {"about": [0, 1 << 62]}, {"about": 7}])
def test_a_section_that_lies_elsewhere_is_damage(tmp_path, places):
    head, _ = framed()
    written(tmp_path, encoded(Kind.TRAJECTORY, {**head, "sections": places}))
    with ArchiveReader(tmp_path) as reader, pytest.raises(CheckpointError):
        _ = reader.trajectory("g1/0").about


def test_an_index_in_which_something_else_stands_for_a_table_is_made_anew(tmp_path):
    """What is asked of it might never be answered."""
    written(tmp_path)
    with ArchiveReader(tmp_path) as reader:
        assert reader.count() == 2
    endless = "WITH RECURSIVE n(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM n) SELECT number, 0, 0, 0 FROM n"
    with closing(sqlite3.connect(tmp_path / "archive/index.sqlite")) as index:
        index.execute("DROP TABLE chunks")
        index.execute(f"CREATE VIEW chunks(number, nonce, scanned, size) AS {endless}")
        index.commit()
    with ArchiveReader(tmp_path) as reader:
        assert reader.behind() == 0 and reader.count() == 2


def test_a_file_that_says_it_has_a_terabyte_is_no_terabyte_to_read(tmp_path):
    """Holes cost nobody who sends them anything."""
    written(tmp_path)
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger/groups.jsonl").write_text('{"lost": 0, "member": 0, "reason": "stale"}\n')
    with ArchiveReader(tmp_path) as reader:
        note = reader.annotate("g0/0", "look", "me")
    (tmp_path / "archive/index.sqlite").unlink()
    first = tmp_path / "archive/chunks/000001.chunk"
    (hole := tmp_path / "archive/chunks/000009.chunk").write_bytes(first.read_bytes()[:16])
    for path in (hole, tmp_path / "ledger/groups.jsonl", tmp_path / "archive/notes.jsonl"):
        with path.open("r+b") as file:
            file.truncate(1 << 40)
    with ArchiveReader(tmp_path) as reader:
        assert reader.row("g0/0").dropped == "stale" and reader.annotations("g0/0") == [note]
        assert reader.count() == 2 and reader.behind() == 0
