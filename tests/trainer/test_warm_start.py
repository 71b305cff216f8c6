"""The supervised start of a recipe: recorded for real, and the same whenever it is made."""

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from structlog.testing import capture_logs

from etude.cli.main import main
from etude.config import load_recipe
from etude.errors import ConfigError, Terminated
from etude.models.checkpoint import load_checkpoint
from etude.tasks.expert import ExpertConfig
from etude.tasks.harbor import write_task
from etude.tasks.ladder import ladder_task
from etude.trainer import midtraining
from etude.trainer.documents import Document
from etude.trainer.lessons import Tasks, learn
from etude.trainer.midtraining import Midtraining
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


def test_whoever_waits_is_told_how_far_it_is_and_without_out_the_recipes_name_is_taken(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(midtraining, "TOLD_EVERY_S", 0.0)
    shutil.copy(ROOT / "recipes/longhorizon-start.toml", "mine.toml")
    sets = ["sessions=1", "rungs=[1]", "tokens=1500", "tokens_per_step=700", f'model="{ROOT}/models/etude-tiny"']
    with capture_logs() as logs:
        assert main(["pretrain", "mine.toml", *(part for each in sets for part in ("--set", each))]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["model"] == "runs/mine/model" and (tmp_path / told["model"]).is_dir()
    learning = [each for each in logs if each["event"] == "learning"]
    assert [each["step"] for each in learning] == [*range(1, told["steps"] + 1)]
    assert learning[-1]["tokens"] == told["tokens"] >= learning[-1]["of"] == 1500 and learning[-1]["loss"] > 0


def test_a_training_that_is_stopped_goes_on_and_is_done_once(tmp_path, monkeypatch):
    config = load_recipe(
        ROOT / "recipes/longhorizon-start.toml",
        WarmStartConfig,
        [f'model="{ROOT}/models/etude-tiny"', "tokens=3000", "tokens_per_step=100", "rungs=[1]"],
    )
    ids = np.arange(100, 150, dtype=np.int32)
    documents = [Document(ids + each, np.ones(50, dtype=bool)) for each in range(40)]
    step = Midtraining.step

    def stopping(run):
        if run.step_count == 26:
            signal.raise_signal(signal.SIGTERM)
        return step(run)

    straight = learn(config, documents, tmp_path / "straight")
    monkeypatch.setattr(Midtraining, "step", stopping)
    with pytest.raises(Terminated, match="is saved in"):
        learn(config, documents, tmp_path / "stopped")
    monkeypatch.setattr(Midtraining, "step", step)
    assert not (tmp_path / "stopped/model").exists()
    again = learn(config, documents, tmp_path / "stopped")
    assert again | {"model": ""} == straight | {"model": ""} and again["steps"] > 27
    one, other = (load_file(tmp_path / each / "model/model.safetensors") for each in ("straight", "stopped"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    monkeypatch.setattr(Midtraining, "step", stopping)
    assert learn(config, documents, tmp_path / "stopped") == again, "without a step"
    assert {path.name for path in (tmp_path / "stopped").iterdir()} == {"learned.json", "log.jsonl", "model"}
    shutil.rmtree(tmp_path / "stopped/model")
    with pytest.raises(Terminated, match="is saved in"):
        learn(config, documents, tmp_path / "stopped")
    longer = config.model_copy(update={"tokens": 4000})
    with pytest.raises(ConfigError, match="was made with another `stages`"):
        learn(longer, documents, tmp_path / "stopped")
    with pytest.raises(Terminated, match="is saved in"):
        learn(config, documents[1:], tmp_path / "stopped")
    lines = [json.loads(line) for line in (tmp_path / "stopped/log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 28)), "of other documents all is learned anew"


def test_the_agents_start_is_of_the_ladder_with_room_for_all_tools():
    start = load_recipe(ROOT / "recipes/agent-start.toml", WarmStartConfig)
    assert isinstance(start.source, ExpertConfig) and start.source.all_tools == 0.5
    tasks = demonstrated(start)
    assert {task.provenance["rung"] for task in tasks} == {1, 2} and {task.limits for task in tasks} == {LIMITS}


def test_limits_of_a_recipe_are_those_of_every_task_that_is_played(tmp_path):
    write_task(ladder_task(1, "train", 0), tmp_path / "tasks/one")
    few = ["limits.max_sampled_tokens=70", "sessions=4"]
    start = load_recipe(ROOT / "recipes/agent-start.toml", WarmStartConfig, few)
    assert {task.limits for task in demonstrated(start)} == {replace(LIMITS, max_sampled_tokens=70)}
    plain, taught = (load_recipe(ROOT / "recipes/rejection-start.toml", WarmStartConfig, sets) for sets in ([], few))
    for config in (taught, taught.model_copy(update={"directories": (tmp_path / "tasks",)})):
        assert {task.limits.max_sampled_tokens for task in Tasks(config).take(0, 1)} == {70}
    assert "limits" not in plain.identity(), "sessions of before there were any stand"
    assert taught.identity()["limits"]["max_sampled_tokens"] == 70


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
