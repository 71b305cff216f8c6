"""A rollout from order to outcome, audited: what it found is on the trajectory and in the run's log."""

import json
from dataclasses import replace

import pytest

from etude.config import parse
from etude.harness.prompt import render_calls, system_prompt
from etude.harness.scripted import ScriptedSampler
from etude.harness.tools import TOOLS
from etude.models.chat import ChatRenderer
from etude.models.tokenizer import train_tokenizer
from etude.records import Cheated, Limits, Scored, solved
from etude.rollouts.config import RunConfig
from etude.rollouts.sample import sample_of
from etude.rollouts.session import RolloutRequest, play
from etude.rollouts.stats import RunStats
from etude.tasks.ladder import ladder_task

LIMITS = Limits(max_turns=6, max_context_tokens=20_000, max_sampled_tokens=10_000, wall_s=60.0)
TASK = replace(ladder_task(1, "train", 11), limits=LIMITS)
FIX = ("edit_file", {key: str(TASK.provenance[key]) for key in ("path", "old", "new")})
PEEK = ("run_terminal_cmd", {"command": "cat /tests/secret; git log -p --all"})


@pytest.mark.parametrize(
    ("audit", "calls", "outcome"),
    [("off", (PEEK, FIX), Scored), ("watch", (PEEK, FIX), Scored), ("punish", (PEEK, FIX), Cheated),
     ("punish", (FIX,), Scored), ("quarantine", (PEEK, FIX), Cheated), ("quarantine", (FIX,), Scored)],
)  # fmt: skip
def test_a_solved_task_pays_unless_it_was_come_by_dishonestly(run, tmp_path, audit, calls, outcome):
    chat = ChatRenderer(train_tokenizer([system_prompt(TOOLS)], 400))
    messages = iter([*(render_calls([call]) for call in calls), "Done."])
    config = parse({"name": "audited", "rewards": {"audit": audit}}, RunConfig, "test")

    async def scenario(backend):
        sampler = ScriptedSampler(lambda _: next(messages), chat)
        async with config.rewards.judges() as judges:
            return await play(RolloutRequest("r", "g", TASK, 0), config, backend, sampler, chat, judges)

    trajectory = run(scenario)
    assert isinstance(trajectory.outcome, outcome), trajectory.outcome
    assert solved(trajectory.outcome) is (outcome is Scored)
    assert trajectory.usage.get("audited", 0) == (audit != "off")
    cheated = audit != "off" and PEEK in calls
    in_quarantine = isinstance(trajectory.outcome, Cheated) and trajectory.outcome.reward is None
    assert in_quarantine is (cheated and audit == "quarantine")
    assert trajectory.usage.get("cheats_found", 0) == cheated
    assert any("hidden tests" in line for line in trajectory.findings) is cheated

    stats = RunStats(tmp_path / "metrics.jsonl")
    stats.rolled_out(sample_of(trajectory))
    assert stats.counters["cheats_found"] == cheated
    logged = [json.loads(line) for line in stats.path.read_text().splitlines()] if stats.path.exists() else []
    found = [line["rollout"] for line in logged if line["kind"] == "findings"]
    assert found == (["r"] if cheated else [])


def test_rollouts_that_share_their_judges_are_verified_twice_a_state(run):
    chat = ChatRenderer(train_tokenizer([system_prompt(TOOLS)], 400))
    config = parse({"name": "judged", "rewards": {"audit": "off"}}, RunConfig, "test")

    async def scenario(backend):
        known = []
        async with config.rewards.judges() as judges:
            for number in range(3):
                messages = iter([render_calls([FIX]), "Done."])
                sampler = ScriptedSampler(lambda _, said=messages: next(said), chat)
                order = RolloutRequest(f"r{number}", "g", TASK, number)
                known.append((await play(order, config, backend, sampler, chat, judges)).usage.get("verdicts_known", 0))
        return known

    assert run(scenario) == [0, 0, 1]
