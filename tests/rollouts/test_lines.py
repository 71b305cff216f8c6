"""Lines of metrics that several processes write: a torn one takes no other with it."""

import json

import pytest

from etude.engine.config import EngineConfig
from etude.engine.foreign.config import SglangConfig, VllmConfig
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


def test_what_an_engine_must_have_done_in_a_run_is_counted(tmp_path):
    foreign = [kind(urls=("http://127.0.0.1:1",), weights_dir=tmp_path) for kind in (VllmConfig, SglangConfig)]
    engines = [EngineConfig(lookup_tokens=1, further_tokens=1), *foreign]
    names = {name for engine in engines for name in engine.features}
    counted = RunStats(tmp_path / "metrics.jsonl").counted(dict.fromkeys(names, 3))
    assert {name: counted.get(name) for name in names} == dict.fromkeys(names, 3)
