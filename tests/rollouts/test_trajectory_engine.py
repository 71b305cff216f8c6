"""A trajectory that goes on at another engine, under another version: what is trained on is one valid chain."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from etude.config import parse
from etude.engine.config import EngineConfig
from etude.engine.torch_engine import TorchEngine
from etude.environments.namespace import NamespaceBackend
from etude.models.chat import ChatRenderer
from etude.models.checkpoint import load_checkpoint
from etude.records import Group, Limits, Scored, Truncated
from etude.rollouts.config import RunConfig
from etude.rollouts.session import RolloutRequest, judge_sealed, play_request
from etude.tasks.ladder import ladder_task
from etude.trainer.advantages import group_advantages
from etude.trainer.config import AdvantageConfig
from etude.trainer.packing import build_batch

SHIPPED = Path(__file__).parents[2] / "models/etude-tiny"
LIMITS = Limits(max_turns=8, max_context_tokens=2000, max_sampled_tokens=600, wall_s=100)
TASK = replace(ladder_task(3, "train", 5), limits=LIMITS)
CONFIG = parse({"name": "t", "harness": {"max_turn_tokens": 160}}, RunConfig, "test")


class Killed(BaseException):
    """As a kill: nothing of ours catches it."""


@pytest.fixture(scope="module")
def shipped():
    return load_checkpoint(SHIPPED)


def attempt(shipped, kept, version=0, die_at=None):
    """One attempt, with an engine and sandboxes of its own; None where it died at its completion number `die_at`."""
    decoder, tokenizer = shipped
    chat, heard = ChatRenderer(tokenizer), [0]

    def on_event(order, event):
        heard[0] += event.kind == "completion"
        if heard[0] == die_at:
            raise Killed

    async def whole():
        engine, backend = TorchEngine(decoder, EngineConfig(cache_tokens=8192), version), NamespaceBackend()
        order = RolloutRequest("g3/1", "g3", TASK, 11, kept=kept)
        try:
            async with asyncio.timeout(120):
                rollout = await play_request(order, CONFIG, backend, engine, chat, on_event)
                async with CONFIG.rewards.judges() as judges:
                    return await judge_sealed(rollout, CONFIG, backend, judges)
        except Killed:
            return None
        finally:
            await backend.close()
            engine.close()

    return asyncio.run(whole())


@pytest.mark.timeout(240)
def test_it_goes_on_at_another_engine_token_for_token(shipped, tmp_path):
    whole = attempt(shipped, None)
    turns = whole.usage["turns"]
    assert turns >= 4 and isinstance(whole.outcome, Scored | Truncated)
    for number, die_at in enumerate((2, turns - 1)):
        kept = tmp_path / str(number)
        assert attempt(shipped, kept, die_at=die_at) is None
        went_on = attempt(shipped, kept, version=3)
        assert went_on.outcome == whole.outcome and went_on.usage["turns_taken_up"] == die_at - 1
        [ours], [theirs] = went_on.segments, whole.segments
        for name in ("token_ids", "sampled", "logprobs", "routed_experts"):
            assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name
        versions = ours.versions[ours.sampled].tolist()
        assert versions == sorted(versions) and set(versions) == {0, 3}, "each token has the version that sampled it"

        group = Group("g3", TASK, (went_on, whole))
        advantages = group_advantages(group, AdvantageConfig())
        batch = build_batch([group], [advantages], 4)
        ages = batch.ages[: len(ours.token_ids)][batch.loss_mask[: len(ours.token_ids)]].tolist()
        assert sorted(set(ages)) == [1, 4] and ages == sorted(ages, reverse=True)
