"""Lines of metrics that several processes write: a torn one takes no other with it."""

import json

import pytest

from etude.rollouts.lines import append, rows
from etude.rollouts.stats import RunStats


@pytest.mark.parametrize("torn", ['{"kind": "st', '{"kind": "step", "step": 1}', '"', "\x00\x00", "7"])
def test_what_was_cut_is_passed_over_and_what_follows_is_whole(tmp_path, torn):
    path = tmp_path / "run" / "metrics.jsonl"
    append(path, {"kind": "restart", "n": 1})
    with path.open("a") as file:
        file.write(torn)
    append(path, {"kind": "restart", "n": 2})
    whole = [row for row in rows(path) if row["kind"] == "restart"]
    assert [row["n"] for row in whole] == [1, 2]
    stats = RunStats(path)
    stats.write("evaluation", {"label": "base"})
    assert [json.loads(line)["kind"] for line in path.read_text().splitlines()][-1] == "evaluation"
    assert rows(tmp_path / "nowhere") == []
