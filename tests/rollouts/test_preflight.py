"""What a run cannot have is one sentence before any process of it starts."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from etude.config import load_recipe
from etude.errors import ConfigError
from etude.models.checkpoint import save_checkpoint
from etude.models.config import ModelConfig
from etude.models.decoder import Decoder
from etude.models.tokenizer import load_tokenizer
from etude.rollouts.config import RunConfig
from etude.rollouts.preflight import preflight
from etude.tasks.harbor import write_task
from etude.tasks.ladder import ladder_task

ROOT = Path(__file__).parents[2]


def recipe(*sets):
    return load_recipe(ROOT / "recipes/quickstart.toml", RunConfig, sets)


def refused(directory, *sets):
    with pytest.raises(ConfigError) as error:
        asyncio.run(preflight(recipe(*sets), directory))
    return str(error.value)


def test_a_task_without_room_for_one_turn_in_the_models_context(tmp_path):
    task = ladder_task(1, "train", 0)
    limits = replace(task.limits, max_context_tokens=32_768)
    write_task(replace(task, instruction="Mend it. " * 600, limits=limits), tmp_path / "long")
    said = refused(tmp_path, f'rollouts.tasks=["{tmp_path / "long"}"]', "rollouts.rungs=")
    assert said.startswith(f"{task.id}: no room for a single turn: the prompt takes ") and "context's 1024" in said


def test_a_summary_that_leaves_no_room_for_a_turn(tmp_path):
    said = refused(tmp_path, "harness.summary.trigger_tokens=700", "harness.summary.max_tokens=900")
    assert "no room for a single turn" in said and "harness.summary.max_tokens" in said


def test_kernels_that_no_mesh_computes_with(tmp_path, monkeypatch):
    monkeypatch.setenv("ETUDE_KERNELS", "exact")
    mesh = ("trainer.ranks={ep=2}", f"model.path={ROOT / 'models/etude-tiny'}", "publisher.merge=")
    assert refused(tmp_path, *mesh).startswith("ETUDE_KERNELS=exact: the ranks of a mesh compute with torch's")


def test_replay_of_a_model_without_routers(tmp_path):
    """Said before an engine has come up, and only where the recipe asks for it. So is a mesh that does not fit."""
    decoder = Decoder(
        ModelConfig(vocab_size=1024, width=32, layers=1, heads=2, kv_heads=1, head_width=16, experts=0, dense_width=32)
    )
    decoder.initialise(0)
    save_checkpoint(decoder, tmp_path / "dense", load_tokenizer(ROOT / "models/etude-tiny"))
    dense = f"model.path={tmp_path / 'dense'}"
    asyncio.run(preflight(recipe(dense), tmp_path))
    assert "ep = 2, but the model has no experts" in refused(tmp_path, dense, "trainer.ranks={ep=2}")
    assert "no routers to replay" in refused(tmp_path, dense, "trainer.router_replay=true")


def test_gpus_that_a_mesh_leaves_idle_are_told_of_at_the_start(tmp_path, monkeypatch, capsys):
    """Where torch sees some, and the ranks are a mesh's."""
    said = "the ranks of a mesh compute on CPUs today"
    mesh = "trainer.ranks={ep=2}"
    asyncio.run(preflight(recipe(mesh), tmp_path))
    assert said not in "".join(capsys.readouterr())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    asyncio.run(preflight(recipe(), tmp_path))
    assert said not in "".join(capsys.readouterr())
    asyncio.run(preflight(recipe(mesh), tmp_path))
    assert said in "".join(capsys.readouterr())


def test_a_directory_with_a_shape_alone_is_said_to_hold_no_weights(tmp_path):
    told = refused(tmp_path, f"model.path={ROOT / 'recipes/shapes/Qwen3-0.6B'}")
    assert "holds the shape of a model and no weights" in told and "--set model.path=DIRECTORY" in told
