"""What a run keeps comes back as it was, is found, and stands whatever happens to processes, files and the index."""

from __future__ import annotations

import numpy as np
import pytest
from archive_samples import SAMPLED, TOTAL, kept, log, marks

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
