"""Stands between a model's calls and the tools: what is forbidden is not run, and what must be asked for is asked.

Owns `Gate`. It guards tools by giving them a `run` of its own in front; schemas stay as they are, so the prompt does
not tell a guarded tool from another. A refused call is answered like any other that fails, and the model goes on. All
calls of one turn are asked about at once: `review` them before they run. A call that nobody reviewed is judged when it
runs, so that no way round the gate is open. The terminal, editor or server decides how to ask a person; where nobody
can be asked, the answer is no. A user may also be asked less, or want nothing changed at all, for a while: that is the
gate's `mode`.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar

from etude.environments.base import Sandbox
from etude.harness.permissions.decision import Decision, Reason
from etude.harness.permissions.judge import Judge
from etude.harness.permissions.rules import OWN, kind_of
from etude.harness.schema import MalformedCall, ToolCall
from etude.harness.tools.base import Tool, ToolConfig, ToolError

T = TypeVar("T")


@dataclass(frozen=True)
class Question:
    """One call that needs a yes."""

    tool: str
    arguments: Mapping[str, Any]
    decision: Decision
    """Why it is asked: `explain()` names the pieces and the rules, `remember` what would allow it for good."""


@dataclass(frozen=True)
class Answer:
    """What the user said. With a yes, `rules` hold for the rest of the session, and, where they are `lasting`, in this
    project for good; `words` are for the model, with a no."""

    allowed: bool
    rules: tuple[str, ...] = ()
    words: str = ""
    lasting: bool = False


Mode: TypeAlias = Literal["ask", "read", "auto"]
"""`ask`: as the rules say. `read`: nothing is changed and no command is run. `auto`: what no rule denies is done."""
Ask: TypeAlias = Callable[[Sequence[Question]], Awaitable[Sequence[Answer]]]
"""Puts the questions of one turn to the user, together. A person may take as long as they like."""


class Gate:
    """The permissions of one session at work. `remember` keeps rules that are to outlive it."""

    def __init__(
        self, judge: Judge, ask: Ask | None = None, remember: Callable[[Sequence[str]], None] | None = None
    ) -> None:
        self.judge = judge
        self.mode: Mode = "ask"
        """May be changed at any moment, and holds from then on."""
        self._ask, self._remember = ask, remember
        self._thread = ThreadPoolExecutor(1, "permissions")
        self._answered: dict[str, list[Answer]] = {}
        self.counts: Counter[str] = Counter()
        """Calls that were "allowed" by rules, "granted" or "refused" by the user, or "denied" by rules."""
        self.missing_rules: dict[str, None] = {}
        """Rules that would have allowed what was refused because nobody could be asked."""
        self.unasked: list[Question] = []
        """Those calls themselves, in their order."""

    def guard(self, tools: Mapping[str, Tool]) -> dict[str, Tool]:
        """The same tools, each behind the gate."""
        return {name: replace(tool, run=self._guarded(tool)) for name, tool in tools.items()}

    async def review(self, calls: Sequence[ToolCall | MalformedCall]) -> None:
        """Ask for everything this turn needs, in one go. The answers count for these calls, each once."""
        self._answered.clear()
        named = [call for call in calls if isinstance(call, ToolCall)]
        asked = [question for call in named if (question := await self._question(call))]
        for question, answer in zip(asked, await self._put(asked) if asked else (), strict=True):
            self._answered.setdefault(_key(question.tool, question.arguments), []).append(answer)

    async def permit(self, tool: str, arguments: Mapping[str, Any]) -> None:
        """Return if this call may be made; ToolError, for the model to read, if it may not."""
        decision = await self._judged(tool, arguments)
        if decision.verdict == "deny":
            self.counts["denied"] += 1
            raise ToolError(f"not permitted: {decision.explain()}")
        if decision.verdict == "allow":
            self.counts["allowed"] += 1
            return
        waiting = self._answered.get(_key(tool, arguments))
        answer = waiting.pop(0) if waiting else (await self._put([Question(tool, arguments, decision)]))[0]
        self.counts["granted" if answer.allowed else "refused"] += 1
        if not answer.allowed:
            raise ToolError(answer.words or f"the user refused this: {decision.explain()}")

    async def _in_turn(self, act: Callable[..., T], *arguments: Any) -> T:
        """The judge may wait for git, and does one thing at a time: in a thread, though its asker may be cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, act, *arguments)

    async def _judged(self, tool: str, arguments: Mapping[str, Any]) -> Decision:
        """The rules' verdict, as the mode changes it. What a rule denies is denied in every mode."""
        decision = await self._in_turn(self.judge.judge, tool, arguments)
        if self.mode == "read" and decision.verdict != "deny" and not (kind_of(tool) == "read" or tool in OWN):
            return Decision("deny", (Reason("deny", tool, "the user wants nothing changed now, and no command run"),))
        if self.mode == "auto" and decision.verdict == "ask":
            return Decision("allow", decision.reasons)
        return decision

    def _guarded(self, tool: Tool) -> Callable[[Sandbox, ToolConfig, Mapping[str, Any]], Awaitable[str]]:
        async def run(sandbox: Sandbox, config: ToolConfig, arguments: Mapping[str, Any]) -> str:
            await self.permit(tool.name, arguments)
            return await tool.run(sandbox, config, arguments)

        return run

    async def _question(self, call: ToolCall) -> Question | None:
        decision = await self._judged(call.name, call.arguments)
        return Question(call.name, call.arguments, decision) if decision.verdict == "ask" else None

    async def _put(self, questions: Sequence[Question]) -> Sequence[Answer]:
        if self._ask is None:
            self.unasked += questions
            self.missing_rules |= dict.fromkeys(rule for each in questions for rule in each.decision.remember)
            return [_nobody(question) for question in questions]
        answers = await self._ask(questions)
        for answer in answers:
            rules = answer.rules if answer.allowed else ()
            for rule in rules:
                await self._in_turn(self.judge.allow, rule)
            if rules and answer.lasting and self._remember is not None:
                self._remember(rules)
        return answers


def _nobody(question: Question) -> Answer:
    return Answer(False, words=f"not permitted without a user to ask: {question.decision.explain()}")


def _key(tool: str, arguments: Mapping[str, Any]) -> str:
    return json.dumps([tool, dict(arguments)], sort_keys=True)
