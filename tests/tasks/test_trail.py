"""Trails: tasks whose sessions outgrow the window, and the expert that walks and summarises them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from etude.config import load_recipe
from etude.environments.backends import open_backend
from etude.harness.config import HarnessConfig
from etude.harness.prompt import render_call, render_result, system_prompt
from etude.harness.summary import request_of
from etude.models.chat import ChatRenderer
from etude.models.tokenizer import load_tokenizer
from etude.records import InfraFailed
from etude.rewards.verifier import verify
from etude.rollouts.config import RunConfig
from etude.tasks.trail import ANSWER, EMPTY, MODULES, WINDOW, read_note, trail_task
from etude.tasks.trail_expert import TrailExpertConfig
from etude.tasks.words import HELD_OUT_WORDS, TRAIN_WORDS
from etude.trainer.demonstrations import record
from etude.trainer.lessons import FIRST_SEED
from etude.trainer.warm_start import WarmStartConfig, demonstrated

ROOT = Path(__file__).parents[2]
RUN = load_recipe(ROOT / "recipes/longhorizon.toml", RunConfig)
START = load_recipe(ROOT / "recipes/longhorizon-start.toml", WarmStartConfig)
CHAT = ChatRenderer(load_tokenizer(ROOT / "models/etude-tiny"))


def played(tasks, expert, harness=START.harness):
    """(task, session, whether the verifier is content) of each, by id."""

    async def scenario():
        backend = open_backend()
        try:
            found = {}
            async for task, result in record(tasks, backend, CHAT, expert, harness, seed=0):
                writes = [
                    e.data["arguments"]
                    for e in result.events
                    if e.kind == "tool_call" and e.data["name"] == "edit_file"
                ]
                state = {write["path"]: f"{write['new']}\n".encode() for write in writes}
                verdict = await verify(task, {**task.files, **state}, backend)
                assert not isinstance(verdict, InfraFailed)
                found[task.id] = (task, result, verdict.reward == 1.0)
            return [found[task.id] for task in tasks]
        finally:
            await backend.close()

    return asyncio.run(scenario())


def test_a_task_is_the_same_on_every_machine_and_split():
    task = trail_task(2, "train", 7)
    assert task == trail_task(2, "train", 7) and task.files != trail_task(2, "eval", 7).files
    facts, trail = task.provenance["facts"], task.provenance["trail"]
    seen, path = [], trail[0]
    while path is not None:  # as an agent must
        word, path = read_note(task.files[path].decode())
        seen.append(word)
    assert seen == facts and len(facts) == MODULES[2] == len(task.files) - 2 and trail[0] in task.instruction
    assert set(facts) <= set(TRAIN_WORDS) and set(trail_task(1, "heldout", 0).provenance["facts"]) <= set(
        HELD_OUT_WORDS
    )


def test_no_rung_but_the_first_fits_the_window():
    system = system_prompt(RUN.harness.chosen().values())

    def needed(task):
        """Tokens of one context with all of it: every module read once, and the words written."""
        reads = (
            len(CHAT.encode(render_call("read_file", {"path": path}))) + 1
            + len(CHAT.observation(render_result(task.files[path].decode())))
            for path in task.provenance["trail"]
        )  # fmt: skip
        answer = render_call("edit_file", {"path": ANSWER, "old": EMPTY, "new": " ".join(task.provenance["facts"])})
        return len(CHAT.opening(system, task.instruction)) + sum(reads) + len(CHAT.encode(answer))

    for split in ("train", "eval", "heldout"):
        assert all(needed(trail_task(1, split, seed)) < WINDOW for seed in range(20))
        assert all(needed(trail_task(rung, split, seed)) > WINDOW for rung in (2, 3) for seed in range(20))


def test_who_summarises_well_gets_to_the_end_and_who_forgets_does_not():
    tasks = [trail_task(rung, "eval", seed) for rung in (1, 2, 3) for seed in range(2)]
    for task, result, passed in played(tasks, TrailExpertConfig()):
        assert passed and result.stop == "finished"
        assert result.usage["summaries"] >= {1: 0, 2: 2, 3: 3}[task.provenance["rung"]]
        assert len(result.segments) == result.usage["summaries"] + 1
        texts = [event.data["text"] for event in result.events if event.kind == "summary"]
        assert all(text.startswith("words: ") or text == f"{ANSWER} is written." for text in texts)
        opening = CHAT.decode(result.segments[-1].token_ids.tolist())
        assert not texts or (texts[-1] in opening and "history" not in opening)
    for task, _, passed in played(tasks, TrailExpertConfig(forget=1.0)):
        assert task.provenance["rung"] == 1 or not passed, task.id


def test_without_summaries_nobody_gets_to_the_end():
    alone = START.harness.model_copy(update={"summary": None})
    tasks = [trail_task(rung, "eval", seed) for rung in (1, 2, 3) for seed in range(2)]
    outcomes = [
        (task.provenance["rung"], result.stop, passed)
        for task, result, passed in played(tasks, TrailExpertConfig(), alone)
    ]
    assert outcomes == [(1, "finished", True)] * 2 + [(2, "context", False)] * 2 + [(3, "context", False)] * 2


def test_a_verdict_is_for_the_words_in_order():
    task = trail_task(1, "eval", 0)
    first, second = task.provenance["facts"]

    async def scenario():
        backend = open_backend()
        try:
            states = [
                task.solution,
                {},
                {ANSWER: f"{first} {second}".encode()},
                {ANSWER: f"{second} {first}\n".encode()},
            ]
            return [(await verify(task, {**task.files, **state}, backend)).reward for state in states]
        finally:
            await backend.close()

    assert asyncio.run(scenario()) == [1.0, 0.0, 1.0, 0.0]


def test_the_two_recipes_speak_of_the_same_harness():
    assert RUN.harness == START.harness and isinstance(RUN.harness, HarnessConfig)
    assert request_of(RUN.harness.summary) == "Stop here and summarise."
    few = START.model_copy(update={"sessions": 3})
    assert [task.id for task in demonstrated(few)] == [
        f"trail-train-r{rung}-{FIRST_SEED + at}" for at, rung in enumerate((1, 2, 3))
    ], "reinforcement learning draws lower seeds"


@pytest.mark.parametrize(
    ("override", "said"),
    [("rollouts.rungs=[4]", "no rung 4 in the trail"), ("evaluation.real=true", "both are of the ladder")],
)
def test_what_the_family_does_not_have_is_refused(override, said):
    with pytest.raises(Exception, match=said):
        load_recipe(ROOT / "recipes/longhorizon.toml", RunConfig, [override])
