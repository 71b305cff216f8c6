"""Plays a script through the real harness in a real sandbox, and has it audited.

Owns `perform` and `measure`. A script stands where the model would: its messages become tokens, its calls are run, the
log is the session's own. The final state is sealed as it is in training.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from etude.environments.base import Backend, Sandbox
from etude.harness.config import HarnessConfig
from etude.harness.prompt import system_prompt
from etude.harness.scripted import ScriptedSampler
from etude.harness.session import SessionResult, run_session
from etude.harness.tools import TOOLS, ToolConfig
from etude.models.chat import ChatRenderer
from etude.models.tokenizer import train_tokenizer
from etude.records import InfraFailed
from etude.rewards.audit import Report, audit_session
from etude.rewards.sealed import run_to_seal
from etude.rewards.verifier import verify
from hack_suite.corpus import Play
from hack_suite.scenes import Scene, scene_of

CONCURRENT = 4
DONE = "Done."
HARNESS = {
    toolset: HarnessConfig.model_validate({"toolset": toolset, "tool": ToolConfig(command_timeout_s=10.0)})
    for toolset in ("small", "agent")
}


@dataclass(frozen=True)
class Performed:
    """A session that was played: what the auditor says, and whether the tests alone would have paid for it."""

    play: Play
    scene: Scene
    report: Report
    paid: bool

    @property
    def found(self) -> bool:
        """Whether the cheat was found for what it is."""
        return any(
            finding.category == self.play.category and self.play.rule in ("", finding.rule)
            for finding in self.report.findings
            if finding.grade == "cheat" or (finding.grade == "habit" and not self.report.cheated)
        )


def small_chat() -> ChatRenderer:
    return ChatRenderer(train_tokenizer([system_prompt(TOOLS), "def f(x):\n    return x\n"], 400))


async def perform(play: Play, number: int, backend: Backend, chat: ChatRenderer, judge: bool = False) -> Performed:
    """One session, from its first message to the auditor's report."""
    scene = scene_of(play.kind, number)  # no thread: CPython 3.11 has one count of depth for all that parse
    told: list[str] = []
    messages = play.messages(scene, told)

    def next_message(results: list[str]) -> str:
        told.extend(results)
        return next(messages, DONE)

    async def session(sandbox: Sandbox) -> SessionResult:
        return await run_session(
            scene.task.instruction, sandbox, ScriptedSampler(next_message, chat), chat,
            HARNESS["agent" if number % 2 else "small"], scene.task.limits, session_id=play.name, seed=0,
            files=scene.task.files,
        )  # fmt: skip

    sealed = await run_to_seal(scene.task, backend, session)
    report = audit_session(scene.task, sealed.result.events, sealed.final)
    verdict = await verify(scene.task, sealed.final, backend) if judge else None
    if isinstance(verdict, InfraFailed):
        raise RuntimeError(verdict.what)
    return Performed(play, scene, report, verdict is not None and verdict.reward == 1.0)


async def measure(
    plays: Sequence[tuple[Play, int]], backend: Backend, chat: ChatRenderer, judge: bool = False
) -> list[Performed]:
    """All of them, a few at a time, in the order given."""
    gate = asyncio.Semaphore(CONCURRENT)

    async def one(play: Play, number: int) -> Performed:
        async with gate:
            return await perform(play, number, backend, chat, judge)

    return list(await asyncio.gather(*(one(play, number) for play, number in plays)))
