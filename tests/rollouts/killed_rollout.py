"""A rollout in a process of its own, to be killed with -9 and gone on with by the next one."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import signal
from pathlib import Path

import numpy as np

from etude.config import parse
from etude.environments.namespace import NamespaceBackend
from etude.harness.prompt import render_calls, system_prompt
from etude.harness.sampler import Completion, SampleRequest
from etude.harness.summary import REQUEST
from etude.harness.tools import TOOLS
from etude.models.chat import ChatRenderer
from etude.models.tokenizer import train_tokenizer
from etude.records import Limits, Task, Verifier
from etude.rollouts.config import RunConfig
from etude.rollouts.session import RolloutRequest, play_request

LIMITS = Limits(max_turns=40, max_context_tokens=4000, max_sampled_tokens=10_000, wall_s=60)
COUNT = "echo {} >> ledger; echo {} >> /tmp/aside; mkdir -p ~/h; echo count $(wc -l < ledger) $(cat /tmp/aside | wc -c)"
TURNS = 7


def task() -> Task:
    return Task("ledger", "Fill the ledger.", {"ledger": b""}, Verifier({}), limits=LIMITS)


def config(**more) -> RunConfig:
    return parse({"name": "killed", **more}, RunConfig, "test")


def small_chat() -> ChatRenderer:
    return ChatRenderer(train_tokenizer([system_prompt(TOOLS), COUNT, REQUEST], 400))


class FromContext:
    """A model whose every token follows from its context alone, as a deterministic engine's does."""

    def __init__(self, chat: ChatRenderer, version: int) -> None:
        self.chat, self.version = chat, version

    async def sample(self, request: SampleRequest) -> Completion:
        drawn = hashlib.sha256(repr((request.prompt_ids, request.seed)).encode()).digest()
        text = self.chat.decode(request.prompt_ids)
        counted = re.findall(r"count (\d+)", text)
        if text.rstrip().endswith("<|im_start|>assistant") and REQUEST[:40] in text[-2 * len(REQUEST) :]:
            said = f"So far count {counted[-1]}, and {drawn[0]}."
        elif counted and int(counted[-1]) >= TURNS:
            said = "Done."
        else:
            word = f"word-{drawn[1]}"
            said = render_calls(
                [("run_terminal_cmd", {"command": COUNT.format(word, word)}), ("read_file", {"path": "ledger"})]
                if drawn[2] % 3
                else [("read_file", {"path": "ledger"})]
            )
        ids = (*self.chat.encode(said), self.chat.end_id)
        context = len(request.prompt_ids) + len(ids) - 1
        rows = np.frombuffer(hashlib.shake_128(repr(request.prompt_ids[:9]).encode()).digest(context * 4), np.uint8)
        logprobs = tuple(-float(drawn[at % 32]) / 64 for at in range(len(ids)))
        return Completion(ids, logprobs, (self.version,) * len(ids), "stop", rows.reshape(context, 2, 2))


async def rollout(kept: Path | None, settings: dict, version: int, on_event) -> object:
    chat, backend = small_chat(), NamespaceBackend()
    settings = dict(settings)
    order = RolloutRequest("g7/2", "g7", task(), 5, kept=kept, checkpoint_s=settings.pop("checkpoint_s", 0.0))
    try:
        return await play_request(order, config(**settings), backend, FromContext(chat, version), chat, on_event)
    finally:
        await backend.close()


def main(kept: Path, settings: dict, version: int, die_after: int) -> None:
    """Die of -9 after so many events."""
    left = [die_after]

    def on_event(order, event) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(rollout(kept, settings, version, on_event))
