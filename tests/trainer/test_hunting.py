"""A warm start by the hunter: what it mends by trying is learned, the shortest session of each task."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from shelf_tasks import LABEL, SHARE

from etude.cli.main import main
from etude.config import load_recipe
from etude.errors import ConfigError, Exit
from etude.harness.cost import SessionCost
from etude.tasks.harbor import write_task
from etude.trainer.attempts import Attempt
from etude.trainer.documents import Document
from etude.trainer.hunting import HunterSource, shortest_first
from etude.trainer.lessons import offer
from etude.trainer.taught import Kept, TaughtSession, TaughtSessions
from etude.trainer.warm_start import WarmStartConfig

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models/etude-tiny"
RECIPE = ROOT / "recipes/realcode-start.toml"
HOPELESS = replace(
    LABEL, id="calls-hopeless", instruction="python3 check.py fails: there is a bug in nothing in shelf.py. Fix it."
)


def pretrain(directory, out, *sets):
    given = [f'model="{MODEL}"', f'directories=["{directory}"]', "threads=1", "tokens=1500", "tokens_per_step=800"]
    given += ["frozen=", "source.attempts=3", "sessions=9", *sets]
    overrides = [part for each in given for part in ("--set", each)]
    return main(["pretrain", str(RECIPE), "--out", str(out), "--json", *overrides])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Tasks, a warm start of them, and the lines that it has kept."""
    home = tmp_path_factory.mktemp("hunting")
    for task in (LABEL, SHARE, HOPELESS):
        write_task(task, home / "tasks" / task.id)
    assert pretrain(home / "tasks", home / "out") == 0
    head, *lines = [json.loads(line) for line in (home / "out/sessions.jsonl").read_text().splitlines()]
    return home, head, lines


def told(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_what_passed_is_learned_and_a_session_that_gave_up_is_dropped(made, capsys):
    home, _, lines = made
    assert pretrain(home / "tasks", home / "out") == 0  # nothing is left to be played
    found = told(capsys)
    solved = {line["task"] for line in lines if line["solved"]}
    assert found["played"] == len(lines) == 9 and solved == {LABEL.id, SHARE.id}
    assert found["kept"] == 2 and found["dropped"]["failed"] >= 3 and sum(found["dropped"].values()) == 7
    assert not any(line["documents"] for line in lines if not line["solved"])
    before, after = (load_file(each / "model.safetensors") for each in (MODEL, home / "out/model"))
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_the_shortest_session_of_a_task_is_the_one_that_is_learned(tmp_path):
    attempts = [Attempt(task, 0, number) for number in range(3) for task in (LABEL, SHARE)]
    lengths = {f"0/{LABEL.id}#0": 9, f"0/{LABEL.id}#2": 4, f"0/{SHARE.id}#0": 5, f"0/{SHARE.id}#1": 7}
    kept = Kept(per_task=1, longest=100)

    def session(attempt):
        said = lengths.get(attempt.id, 0)
        documents = (Document(np.arange(20, dtype=np.int32), np.arange(20) < said),) if said else ()
        why = "passed" if said else "failed"
        return TaughtSession(
            attempt.id, 0, attempt.task.id, attempt.number, "", bool(said), why, True, documents, SessionCost(), {}
        )

    async def write(sessions):
        for attempt in attempts[:-1]:  # the last was never played
            await sessions.add(session(attempt))

    with TaughtSessions(tmp_path, {}) as sessions:
        asyncio.run(write(sessions))
        offer(shortest_first(attempts, sessions), sessions, kept)
    assert sorted(int(each.sampled.sum()) for each in kept.balanced(1)) == [4, 5]
    assert kept.dropped == {"enough_of_its_task": 2, "failed": 1, "not_played": 1}


def test_sessions_stand_when_more_is_learned_of_them_and_not_when_another_seed_would_play(made, capsys):
    home, _, _ = made
    text = (home / "out/sessions.jsonl").read_text()
    assert pretrain(home / "tasks", home / "out", "tokens=900", "source.per_task=2") == 0
    assert told(capsys)["kept"] > 2 and (home / "out/sessions.jsonl").read_text() == text
    assert pretrain(home / "tasks", home / "out", "seed=1") == Exit.BAD_INPUT
    assert "made with another seed" in capsys.readouterr().err


def test_the_recipe_plays_directories_with_the_small_tools():
    start = load_recipe(RECIPE, WarmStartConfig)
    assert start.source == HunterSource(attempts=4, per_task=1) and start.format == "bf16"
    for sets in (["directories=", "rungs=[1]"], ["harness.toolset=agent"]):
        with pytest.raises(ConfigError, match="a hunter plays task directories"):
            load_recipe(RECIPE, WarmStartConfig, sets)
