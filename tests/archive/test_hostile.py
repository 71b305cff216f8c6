"""What a policy, a file or a user says is only ever text, and no longer than there is room for."""

from __future__ import annotations

import base64
import json
import sqlite3
import sys
from contextlib import closing

import pytest
from archive_samples import kept, marks

from etude.archive.contents import ARGUMENTS, FILE_BYTES, FILES, FILES_BYTES, FINAL, FINDINGS, VERIFIER_CHARS
from etude.archive.export import export
from etude.archive.fates import LEDGER
from etude.archive.frames import Kind, encoded
from etude.archive.index import Index
from etude.archive.query import (
    HISTOGRAMS,
    ORDERS,
    Filter,
    cursor,
    far_sql,
    histogram_sql,
    holding,
    sorted_sql,
    walk_sql,
)
from etude.archive.reader import ArchiveReader
from etude.archive.records import FileChange, KeptTask
from etude.archive.writer import ArchiveWriter
from etude.errors import ConfigError, MissingDependency

WICKED = "\0 \ud800 \udfff <script>alert(1)</script> \x1b[31m \u202e'; DROP TABLE trajectories; -- \" OR 1=1 ü"


def test_hostile_text_comes_back_as_it_was_and_does_nothing_else(tmp_path):
    task = KeptTask(WICKED, WICKED, (WICKED,), WICKED, "train", {"bug": WICKED, "set": {1, 2}, "of": object})
    given = kept(
        "g0/0", task=task, last=WICKED + " leapyear", result=WICKED, calls=[(WICKED, {WICKED: WICKED})],
        findings=(WICKED,), worker=WICKED, verifier=WICKED,
        files=(FileChange("line\nbreak\ud800", None, b"\0\xff"), FileChange("a", b"\xff", None)),
    )  # fmt: skip
    with ArchiveWriter(tmp_path) as writer:
        writer.keep(given)
        writer.keep(kept("g0/1"))
    with ArchiveReader(tmp_path) as reader:
        found = reader.trajectory("g0/0")
        assert [each.event for each in found.said] == [each.event for each in given.said]
        assert found.files == given.files and found.about["findings"] == [WICKED]
        assert found.task.instruction == WICKED and found.task.provenance["set"] == [1, 2]
        assert reader.count(Filter(text="leapyear")) == 1 and reader.count(Filter(text=WICKED)) == 1
        assert reader.count(Filter(tool=reader.row("g0/0").tools[0])) == 1
        for name in ("task", "tool", "group", "dropped"):
            assert reader.count(Filter(**{name: "' OR 1=1 --"})) == 0
        note = reader.annotate("g0/1", WICKED, WICKED, {"event": 3})
        assert reader.annotations("g0/1")[0].place == {"event": 3} and note.text == WICKED
        reader.remove_note(note.id)
        assert reader.annotations("g0/1") == []
        for wrong in ("", " \n", "x" * 10_001):
            with pytest.raises(ConfigError, match="note"):
                reader.annotate("g0/1", wrong, "me")
        with pytest.raises(ConfigError, match="no such trajectory"):
            reader.annotate("g9/9", "text", "me")
        for form in ("atif", "jsonl", "parquet"):
            assert export(reader, Filter(), form, tmp_path / f"out.{form}").trajectories == 2
        assert json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])["verifier"].endswith("ü")


def test_what_is_huge_is_bounded_and_says_so(tmp_path):
    big, many = b"x" * (3 * FILE_BYTES), FILES + 300
    files = [FileChange("big", None, big), *(FileChange(f"f{number}", None, b"y" * 4_000) for number in range(many))]
    with ArchiveWriter(tmp_path) as writer:
        size = writer.keep(
            kept(files=files, verifier="v" * 1_000_000, result="r" * 500_000, last="l" * 1_000_000,
                 findings=["f" * 100_000] * 10, calls=[("write_file", {"content": "c" * 50_000})] * 80)
        )  # fmt: skip
        assert size < 400_000
    with ArchiveReader(tmp_path) as reader:
        [row], found = reader.trajectories().rows, reader.trajectory("g0/0")
        assert row.calls == 80 and len(found.verifier) == VERIFIER_CHARS
        assert [change.path for change in found.files] == [change.path for change in files]
        assert found.files[0].cut and len(found.files[0].after) == FILE_BYTES
        assert not found.files[1].cut and found.files[1].after == b"y" * 4_000
        assert found.files[-1].cut and found.files[-1].after == b""
        assert sum(len(change.after) for change in found.files) <= FILES_BYTES + FILE_BYTES
    with closing(sqlite3.connect(tmp_path / "archive/index.sqlite")) as index:
        [said] = index.execute("SELECT length(final), length(calls), length(findings) FROM said").fetchall()
        assert (said[0], said[2]) == (FINAL, FINDINGS) and ARGUMENTS <= said[1] <= ARGUMENTS + 80
    database = (tmp_path / "archive/index.sqlite").stat().st_size
    assert database < 600_000, "full text is of bounded excerpts"


def test_a_frame_that_would_unpack_to_too_much_is_damage(tmp_path):
    bomb = encoded(Kind.TRAJECTORY, {"row": "0" * (20 << 20)})
    with ArchiveWriter(tmp_path) as writer:
        writer.keep(kept("g0/0"))
        writer._add(bomb)
        writer._add(encoded(Kind.TRAJECTORY, {"row": {"id": "g1/0"}}))
        writer.keep(kept("g0/1"))
    assert len(bomb) < 10_000
    with ArchiveReader(tmp_path) as reader:
        assert [row.id for row in reader.every()] == ["g0/0", "g0/1"]


@pytest.mark.parametrize("wrong", [{"step": "9" * 20}, {"version": "-" + "9" * 30 + ".."}, {"step": "9" * 999}])
def test_numbers_that_no_index_has_are_told_of(wrong):
    with pytest.raises(ConfigError, match="is no number and no range"):
        Filter.of(wrong)


@pytest.mark.parametrize("place", [f"[1{'0' * 400},1]", "[1,Infinity]", "[1,1e300]", "[" * 30_000, "[1,NaN]"])
def test_a_place_in_a_list_that_is_none_is_told_of(place):
    with pytest.raises(ConfigError, match="is no place in a list"):
        far_sql((), "-kept", base64.urlsafe_b64encode(place.encode()).decode())


@pytest.fixture
def plan(tmp_path):
    """How SQLite goes about a question of an index."""
    with ArchiveWriter(tmp_path) as writer:
        writer.keep(kept())
    with ArchiveReader(tmp_path):
        pass
    index = Index(tmp_path / "archive")
    yield lambda sql, values: [row[3] for row in index.connection().execute(f"EXPLAIN QUERY PLAN {sql}", values)]
    index.close()


def test_a_page_is_one_walk_along_an_index(plan):
    """Whatever is ordered by, and wherever it begins: nothing is sorted, and the table is not read from its start."""
    for name, column in ORDERS.items():
        for order in (name, f"-{name}"):
            for after in (None, cursor(0.5, 3)):
                for sql, values in (walk_sql([], order, after, 50, (0.7, 9)), far_sql([], order, after)):
                    [step] = plan(sql, values)
                    assert f"INDEX by_{column}" in step or column == "seq", step
                    assert "SEARCH" in step or (after is None and "OFFSET" in sql), step
    for chosen in (Filter(task="a"), Filter(outcome="scored", phase="training", solved=True), Filter(tool="a")):
        for order in ("kept", "-reward"):
            steps = plan(*walk_sql(chosen.conditions(), order, cursor(0, 99), 50))
            assert steps[0].startswith("SEARCH trajectories USING IN"), steps
            assert not any("TEMP B-TREE" in step for step in steps), steps
    [walk, *_] = plan(*walk_sql(Filter(text="a").conditions(), "-kept", cursor(0, 99), 50))
    assert walk.startswith("SCAN said VIRTUAL TABLE INDEX"), walk


SEEN = Filter(outcome="scored", reward=(0.1, None), version=(2, 5), trained=True, task="t", tool="a", text="b")


def test_what_is_rare_is_sought_by_its_own_index_and_all_else_is_asked_of_its_rows(plan):
    for chosen in (SEEN, Filter(step=(3, 9), group="g", dropped="stale", solved=True, phase="base")):
        conditions = chosen.conditions()
        for each in conditions:
            steps = plan(*sorted_sql(conditions, "-seconds", cursor(0, 99), 50, each))
            first = next(step for step in steps if step.startswith(("SEARCH", "SCAN trajectories")))
            known = {"tool": "INTEGER PRIMARY KEY", "said": "INTEGER PRIMARY KEY", "outcome": "INDEX figures (outcome="}
            used = known.get(each.of, f"INDEX by_{each.of} ")  # the figures are by outcome first
            assert first.startswith("SEARCH trajectories USING") and used in first, steps
            [step] = [step for step in plan(f"SELECT 1 {each.rows[9:]}", each.values) if "LIST" not in step]
            assert step.startswith("SEARCH") or each.of == "said", step
        [alone] = Filter(task="t").conditions()
        here, values = holding([alone], alone)
        [step] = plan(f"SELECT count(*) {here}", values)
        assert "USING COVERING INDEX" in step and step.startswith("SEARCH"), step


def test_where_nothing_is_rare_the_figures_alone_are_read(plan):
    """And of the table the rows of one page."""
    conditions = SEEN.conditions()
    for name in ORDERS:
        steps = plan(*sorted_sql(conditions, f"-{name}", cursor(0, 99), 50, None))
        of_rows = [step for step in steps if " trajectories" in step]
        assert "USING COVERING INDEX figures" in of_rows[0], steps
        assert of_rows[1:] == ["SEARCH trajectories USING INTEGER PRIMARY KEY (rowid=?)"], steps
    for field in HISTOGRAMS:
        column, here, values = histogram_sql(conditions, field, None)
        [step, *_] = plan(f"SELECT min({column}), max({column}), sum(solved) {here}", values)
        assert "USING COVERING INDEX figures" in step, step


def test_a_change_reads_no_table_from_its_start(plan):
    for change in (
        "DELETE FROM tools WHERE seq = 1", "DELETE FROM fates WHERE group_id = 'g'",
        "UPDATE trajectories SET dropped = 'x' WHERE dropped IS NOT NULL AND "
        "id IN (SELECT id FROM fates WHERE group_id = 'g')",
        "SELECT id FROM marks WHERE chunk = 3", "SELECT * FROM notes WHERE trajectory = 'a'",
    ):  # fmt: skip
        assert not any(step.startswith("SCAN") for step in plan(change, [])), change


def test_the_ledger_says_why_one_was_not_trained_on(tmp_path):
    """The last word counts, whether it is said before or after a trajectory is kept, and after a rebuild."""
    ledger = tmp_path / LEDGER
    ledger.parent.mkdir()

    def say(*lines):
        with ledger.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)

    say({"opened": 0, "rung": 1, "size": 3, "version": 0}, {"lost": 0, "member": 2, "reason": "straggler"})
    with ArchiveWriter(tmp_path) as writer:
        for number in range(3):
            writer.keep(kept(f"g0/{number}"))
            writer.keep(kept(f"g1/{number}"))
        with ArchiveReader(tmp_path) as reader:

            def reasons():
                reader.refresh()
                return {row.id: row.dropped for row in reader.every() if row.dropped}

            assert reasons() == {"g0/2": "straggler"}
            at = reader.newest()
            say(
                {"closed": 0, "as": "zero_variance", "members": [0, 1]}, {"closed": 1, "as": "ready", "members": [0, 1]}
            )
            lost = {"g0/0": "zero_variance", "g0/1": "zero_variance", "g0/2": "straggler"}
            assert reasons() == lost and {row.id for row in reader.changes(at).rows} == {"g0/0", "g0/1"}
            with ledger.open("a") as file:
                file.write('{"closed": 1, "as": "st')  # being written
            assert reasons() == lost
            with ledger.open("a") as file:
                file.write('ale", "members": [0, 1]}\n')
            assert reasons() == lost | {"g1/0": "stale", "g1/1": "stale"}
            say({"opened": 1, "rung": 1, "size": 3, "version": 0})  # the disk had lost some of it
            assert reasons() == lost
            writer.mark(1, [marks("g0/0")])
            assert reasons() == {name: why for name, why in lost.items() if name != "g0/0"}
            assert reader.count(Filter(dropped="straggler")) == 1
    (tmp_path / "archive/index.sqlite").unlink()
    with ArchiveReader(tmp_path) as reader:
        assert {row.id for row in reader.every() if row.dropped} == {"g0/1", "g0/2"}


def test_exports_say_what_is_wrong(tmp_path, monkeypatch):
    with ArchiveWriter(tmp_path) as writer:
        writer.keep(kept())
    with ArchiveReader(tmp_path) as reader:
        with pytest.raises(ConfigError, match="there are atif, jsonl, parquet"):
            export(reader, Filter(), "csv", tmp_path / "x")
        with pytest.raises(ConfigError, match="no trajectory that the filter lets through"):
            export(reader, Filter(task="none"), "jsonl", tmp_path / "x")
        with pytest.raises(ConfigError, match="is a directory"):
            export(reader, Filter(), "jsonl", tmp_path)
        with pytest.raises(ConfigError, match="not there yet"):
            export(reader, Filter(), "atif", tmp_path)
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(MissingDependency, match=r"pip install .*\[parquet\]"):
            export(reader, Filter(), "parquet", tmp_path / "x")
        with pytest.raises(ConfigError, match="no histogram"):
            reader.histogram(Filter(), "colour")
        assert all(reader.histogram(Filter(), name).counts is not None for name in HISTOGRAMS)
    assert not (tmp_path / "x").exists()
