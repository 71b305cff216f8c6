"""The supervised start of a recipe: recorded for real, and the same whenever it is made."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from etude.cli.main import main
from etude.config import load_recipe
from etude.errors import ConfigError
from etude.models.checkpoint import load_checkpoint
from etude.tasks.expert import ExpertConfig
from etude.trainer.warm_start import LIMITS, WarmStartConfig, demonstrated

ROOT = Path(__file__).parents[2]


def made(out, capsys):
    sets = ["sessions=2", "rungs=[1]", "tokens=1500", "tokens_per_step=700", "threads=1"]
    overrides = [part for each in (*sets, f'model="{ROOT}/models/etude-tiny"') for part in ("--set", each)]
    recipe = str(ROOT / "recipes/longhorizon-start.toml")
    assert main(["pretrain", recipe, "--out", str(out), *overrides]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_start_is_made_by_its_recipe_and_twice_the_same(tmp_path, capsys):
    told = made(tmp_path / "a", capsys)
    assert told["segments"] == 4 and told["tokens"] >= 1500, "two sessions, each summarised once"
    steps = [json.loads(line) for line in (tmp_path / "a/log.jsonl").read_text().splitlines()]
    assert len(steps) == told["steps"] > 1 and steps[-1]["tokens"] == told["tokens"]
    load_checkpoint(tmp_path / "a/model")
    made(tmp_path / "b", capsys)
    first, second, before = (
        load_file(directory / "model.safetensors")
        for directory in (tmp_path / "a/model", tmp_path / "b/model", ROOT / "models/etude-tiny")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], before[name]) for name in first)


def test_the_agents_start_is_of_the_ladder_with_room_for_all_tools():
    start = load_recipe(ROOT / "recipes/agent-start.toml", WarmStartConfig)
    assert isinstance(start.source, ExpertConfig) and start.source.all_tools == 0.5
    tasks = demonstrated(start)
    assert {task.provenance["rung"] for task in tasks} == {1, 2} and {task.limits for task in tasks} == {LIMITS}


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["source.forget=0.5"], "forget"),
        (["family=trail"], "knows the ladder alone"),
        (["source={}"], "knows the trail alone"),
    ],
)
def test_an_expert_of_another_family_is_refused(sets, said):
    with pytest.raises(ConfigError, match=said):
        load_recipe(ROOT / "recipes/agent-start.toml", WarmStartConfig, sets)
