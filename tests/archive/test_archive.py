"""What a run keeps comes back as it was, is found, and stands whatever happens to processes, files and the index."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from archive_samples import SAMPLED, TASK, TOTAL, kept, log, marks

from etude.archive.query import Filter
from etude.archive.reader import ArchiveReader
from etude.archive.writer import ArchiveWriter
from etude.errors import ConfigError
from etude.records import Cheated, InfraFailed, Truncated


def test_a_trajectory_comes_back_as_it_was(tmp_path):
    given = kept(findings=("line 3: reads the tests",))
    with ArchiveWriter(tmp_path) as writer:
        writer.keep(given)
        writer.mark(7, [marks()])
    with ArchiveReader(tmp_path) as reader:
        [row] = reader.trajectories().rows
        assert (row.id, row.group_id, row.task_id, row.phase, row.step) == ("g0/0", "g0", "t1", "training", 7)
        assert (row.outcome, row.reward, row.solved, row.parts) == ("scored", 1.0, True, {"tests": 1.0})
        assert (row.sampled_tokens, row.total_tokens, row.trained_tokens) == (SAMPLED, TOTAL, SAMPLED - 1)
        assert (row.oldest_version, row.newest_version, row.tools, row.turns) == (4, 4, ("read_file",), 2)
        assert (row.begun_at, row.ended_at, row.seconds, row.findings) == (1000.0, 1003.0, 3.0, 1)
        found = reader.trajectory("g0/0")
    assert [(each.kind, each.start, each.stop) for each in found.tokens.segments] == [
        ("summary", 0, 9), ("turns", 9, TOTAL),
    ]  # fmt: skip
    without_routes = [
        (event, {key: value for key, value in record.items() if key != "routes"}) for event, record in log()
    ]
    assert found.log() == without_routes
    assert (found.files, found.verifier, found.task) == (given.files, "ok\n", given.task)
    assert found.about["findings"] == ["line 3: reads the tests"] and found.about["seed"] == 5
    made = marks()
    for name in ("advantages", "trainer_logprobs", "entropies", "mask"):
        np.testing.assert_array_equal(getattr(found.marks, name), getattr(made, name))


def test_rows_are_found_by_what_is_known_of_them(tmp_path):
    with ArchiveWriter(tmp_path) as writer:
        writer.keep(kept("g0/0", version=1, last="It parses leap years now."))
        writer.keep(kept("g0/1", 0.0, version=3, calls=[("run_terminal_cmd", {"command": "pytest -k february"})]))
        writer.keep(kept("g1/0", outcome=Truncated("turns", 0.25, {"tests": 0.0}), version=5))
        writer.keep(kept("g1/1", outcome=Cheated("patched the tests", -1.0), findings=("patched the tests",)))
        writer.keep(kept("g1/2", outcome=Cheated("patched the tests", None)))
        writer.keep(kept("base/eval-1/0", outcome=InfraFailed("no sandbox")))
        writer.mark(3, [marks("g0/0")])
        writer.mark(4, [marks("g1/0")])
    with ArchiveReader(tmp_path) as reader:

        def ids(**given):
            found = [row.id for row in reader.every(Filter.of(given))]
            assert reader.count(Filter.of(given)) == len(found)
            return found

        assert ids(outcome="cheated") == ["g1/1"] and ids(outcome="quarantined") == ["g1/2"]
        assert ids(phase="base") == ["base/eval-1/0"] and ids(task="none") == []
        assert ids(tool="run_terminal_cmd") == ["g0/1"]
        assert ids(text="leap year") == ["g0/0"] and ids(text="FEBRUARY pyt") == ["g0/1"]
        assert ids(text='"leap years"') == ["g0/0"] and ids(text='"years leap"') == []
        assert len(ids(text='dates "*( -')) == 6 and ids(finding="patched") == ["g1/1", "g1/2"]
        assert ids(step="3") == ["g0/0"] and ids(step="4..") == ["g1/0"] and ids(step="..9") == ["g0/0", "g1/0"]
        assert ids(version="2..3") == ["g0/1"] and ids(reward="..0.3") == ["g0/1", "g1/0", "g1/1"]
        assert ids(trained="true") == ["g0/0", "g1/0"] and ids(solved="true", group="g0") == ["g0/0"]
        for wrong in ({"step": "x"}, {"colour": "red"}, {"outcome": "won"}, {"text": "--"}, {"trained": "maybe"}):
            with pytest.raises(ConfigError, match=next(iter(wrong)) if "text" not in wrong else "word"):
                ids(**wrong)
        assert [row.id for row in reader.group("g1").rows] == ["g1/0", "g1/1", "g1/2"]
        assert [group.id for group in reader.groups(3)] == ["g0"] and [row.id for row in reader.step(4)] == ["g1/0"]
        spread = reader.histogram(Filter(phase="training"), "reward", bins=2)
        assert spread.edges == (-1.0, 0.0, 1.0) and spread.counts == (1, 3) and spread.solved == (0, 1)
        assert reader.values("outcome")["scored"] == 2 and reader.values("tool")["read_file"] == 5


def test_pages_go_on_where_the_last_one_ended(tmp_path):
    with ArchiveWriter(tmp_path) as writer:
        for number in range(23):
            writer.keep(kept(f"g{number}/0", outcome=InfraFailed("x") if number % 5 == 0 else None, reward=number % 3))
    with ArchiveReader(tmp_path) as reader:
        for order in ("kept", "-reward", "reward", "-seconds"):
            seen, after = [], None
            while True:
                page = reader.trajectories(order=order, after=after, limit=4)
                seen += [row.id for row in page.rows]
                if (after := page.next) is None:
                    break
            assert len(seen) == len(set(seen)) == 23
            rewards = [reader.row(each).reward for each in seen]
            if "reward" in order:
                known = [reward for reward in rewards if reward is not None]
                assert known == sorted(known, reverse=order[0] == "-")
        for wrong in ({"order": "colour"}, {"after": "rubbish"}):
            with pytest.raises(ConfigError):
                reader.trajectories(**wrong)


ASKED = (
    {}, {"outcome": "scored"}, {"outcome": "truncated", "reward": "0.5.."}, {"solved": "true"}, {"solved": "false"},
    {"reward": "..0.5", "trained": "true"}, {"step": "2..4"}, {"version": "3"}, {"version": "2..4", "tool": "grep"},
    {"text": "parser"}, {"text": "parser", "solved": "true"}, {"text": "zephyr"}, {"task": "t3", "outcome": "scored"},
    {"tool": "grep", "step": "3.."}, {"finding": "cheat"}, {"group": "g7", "reward": "0.2..0.9"}, {"trained": "false"},
)  # fmt: skip
ORDER_OF = {
    "kept": lambda row, at: at, "reward": lambda row, at: (-1e300 if row.reward is None else row.reward, at),
    "step": lambda row, at: (-1 if row.step is None else row.step, at), "seconds": lambda row, at: (row.seconds, at),
    "ended_at": lambda row, at: (row.ended_at, at), "turns": lambda row, at: (row.turns, at),
}  # fmt: skip


def many(run):
    """Two hundred trajectories of all kinds, whose rewards, lengths and versions are each shared by several."""
    drawn = np.random.default_rng(7)
    with ArchiveWriter(run) as writer:
        for group in range(25):
            for member in range(8):
                reward, kind = round(float(drawn.random()), 1), drawn.random()
                outcome = Truncated("turns", reward / 9, {"tests": 0.0}) if kind < 0.2 else None
                outcome = Cheated("a cheat", -1.0) if kind > 0.9 else outcome
                calls = [(("grep", "read_file")[int(drawn.integers(2))], {"path": "dates.py"})]
                said = "the parser" + " zephyr" * (group == 3) if drawn.random() < 0.7 else "an index"
                task, seconds = replace(TASK, id=f"t{group % 5}", instruction="Mend it."), float(drawn.integers(1, 5))
                more = {"usage": {"turns": int(drawn.integers(1, 4))}, "at": 1000.0 + float(drawn.integers(50))}
                writer.keep(
                    kept(f"g{group}/{member}", reward, outcome, task, seconds=seconds, calls=calls, last=said,
                         version=group // 4, **more)
                )  # fmt: skip
            if group % 2:
                writer.mark(group // 4, [marks(f"g{group}/{member}") for member in range(8)])


def holds(row, chosen):
    """What a filter says of a row, but for words."""
    low, high = chosen.version or (None, None)
    of_row = {"outcome": row.outcome, "task": row.task_id, "group": row.group_id, "solved": row.solved}
    if any(getattr(chosen, name) not in (None, value) for name, value in of_row.items()):
        return False
    if chosen.trained is not None and chosen.trained != (row.step is not None):
        return False
    for bounds, value in ((chosen.step, row.step), (chosen.reward, row.reward)):
        if bounds and (value is None or not (bounds[0] is None or value >= bounds[0])):
            return False
        if bounds and bounds[1] is not None and value > bounds[1]:
            return False
    return (
        (low is None or row.newest_version >= low) and (high is None or row.oldest_version <= high)
        and (chosen.tool is None or chosen.tool in row.tools)
    )  # fmt: skip


@pytest.mark.parametrize(("few", "far"), [(5_000, 10_000), (0, 10_000), (0, 7), (12, 7), (0, 0)])
def test_each_way_of_finding_a_page_finds_the_same(tmp_path, monkeypatch, few, far):
    """By what is rare, in their order, and through the figures: all that hold, once, whatever the pages' length."""
    monkeypatch.setattr("etude.archive.reader.MANY", few)
    monkeypatch.setattr("etude.archive.query.FAR", far)
    many(tmp_path)
    with ArchiveReader(tmp_path) as reader:
        rows = list(reader.every())
        said = {row.id: reader.trajectory(row.id) for row in rows}
        for asked in ASKED:
            chosen = Filter.of(asked)
            found = [(row, at) for at, row in enumerate(rows) if holds(row, chosen)]
            for words in (chosen.text, chosen.finding):
                found = [each for each in found if words is None or words in str(said[each[0].id].log()) + str(
                    said[each[0].id].about["findings"])]  # fmt: skip
            assert reader.count(chosen) == len(found), asked
            assert sum(reader.histogram(chosen, "reward", 7).counts) == sum(
                each.reward is not None for each, _ in found
            )
            for order, key in ORDER_OF.items():
                for falls in (False, True):
                    expected = [row.id for row, at in sorted(found, key=lambda each: key(*each), reverse=falls)]
                    told = pages(reader, chosen, f"-{order}" if falls else order)
                    assert told == expected, (asked, order, falls)


def pages(reader, chosen, order):
    found, after, lengths = [], None, itertools.cycle((3, 40, 1))
    while True:
        page = reader.trajectories(chosen, order, after, next(lengths))
        found += [row.id for row in page.rows]
        if (after := page.next) is None:
            return found
