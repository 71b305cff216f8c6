"""The expert knows no more than a player could, and goes on until the check passes."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from etude.environments.backends import open_backend
from etude.harness.conduct import conduct_of
from etude.harness.config import HarnessConfig
from etude.models.chat import ChatRenderer
from etude.models.tokenizer import load_tokenizer
from etude.tasks.expert import CLEAN, NOISY, ExpertConfig
from etude.tasks.ladder import RUNGS, ladder_task
from etude.tasks.scripted import RUN_CHECK
from etude.trainer.demonstrations import record
from etude.trainer.warm_start import LIMITS

CHAT = ChatRenderer(load_tokenizer(Path(__file__).parents[2] / "models" / "etude-tiny"))

SMALL = HarnessConfig()


def played(tasks, expert, harness=SMALL):
    """What was said and answered in the session of each task, in a sandbox."""

    async def scenario():
        backend = open_backend()
        try:
            results = [each async for each in record(tasks, backend, CHAT, expert, harness, seed=0)]
        finally:
            await backend.close()
        return {task.id: result for task, result in results}

    return asyncio.run(scenario())


def calls(result):
    data = [event.data for event in result.events if event.kind == "tool_call"]
    return [(call["name"], call["arguments"]) for call in data if "arguments" in call]


def edits(result):
    return [(given["old"], given["new"]) for name, given in calls(result) if name == "edit_file"]


def passed(result):
    return any(e.kind == "tool_result" and e.data["text"].startswith("passed") for e in result.events)


@pytest.fixture(scope="module")
def tasks():
    return [ladder_task(rung, "train", seed) for rung in RUNGS for seed in range(3)]


@pytest.fixture(scope="module")
def noisy(tasks):
    return played(tasks, NOISY)


def test_the_controls_expert_solves_every_rung(tasks):
    results = played(tasks, CLEAN)
    assert [task.id for task in tasks if not passed(results[task.id])] == []
    assert max(len(edits(result)) for result in results.values()) > 1, "it tries where nothing tells"


def test_none_gives_up(tasks, noisy):
    """Sessions with slips end when the check has passed, or when the turns have."""
    assert all(passed(result) for result in noisy.values() if result.stop == "finished")
    assert {passed(result) for result in noisy.values()} == {True, False}


def test_nothing_is_tried_twice(tasks, noisy):
    for task in tasks:
        text = task.files[task.provenance["path"]].decode()
        checked, seen = [text], set()
        for name, given in calls(noisy[task.id]):
            if name == "edit_file" and checked[-1].count(given["old"]) == 1:
                checked.append(checked[-1].replace(given["old"], given["new"]))
            elif name == "run_terminal_cmd" and len(checked) > 1:
                assert checked[-1] not in seen and checked[-1] != text
                seen.add(checked[-1])


@pytest.mark.parametrize("expert", [CLEAN, NOISY])
def test_it_does_not_know_the_solution(tasks, expert):
    """Without it, and with the plausible mends of what no comment tells, it plays the same session."""

    def blind(task):
        facts = {name: value for name, value in task.provenance.items() if name not in ("old", "new", "bug", "shape")}
        return replace(task, solution={}, provenance=facts)

    chosen = tasks[::4]
    seen, unseen = played(chosen, expert), played([blind(task) for task in chosen], expert)
    assert [calls(seen[task.id]) for task in chosen] == [calls(unseen[task.id]) for task in chosen]


def test_what_is_plausible_says_nothing_of_what_is_right():
    """Its place among the plausible mends is any."""
    places = set()
    for seed in range(60):
        facts = ladder_task(3 + seed % 6, "train", seed).provenance
        ways = [tuple(way) for way in facts["mends"]]
        places |= {ways.index((facts["old"], facts["new"]))} if facts["vague"] else set()
        assert facts["vague"] or ways == [(facts["old"], facts["new"])]
    assert len(places) > 4


def test_a_thorough_expert_uses_every_tool_of_the_product_and_mends_all_the_same():
    task, harness = replace(ladder_task(2, "train", 5), limits=LIMITS), HarnessConfig(toolset="agent")
    [result] = played([task], ExpertConfig(search=1.0, all_tools=1.0), harness).values()
    assert set(conduct_of(result.events).by_tool) == set(harness.tools) and len(harness.tools) == 10
    assert result.usage["malformed_calls"] == 0 and result.usage["error_observations"] == 0
    checks = [given["command"] == RUN_CHECK[1]["command"] for name, given in calls(result) if name == RUN_CHECK[0]]
    said = [event.data["text"] for event in result.events if event.kind == "tool_result"]
    assert sum(checks) > 1 and any(text.startswith("passed") for text in said)
