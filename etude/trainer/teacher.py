"""A teacher behind an OpenAI-compatible endpoint: it plays the tasks, and what it solved is learned in our own tokens.

    the teacher's messages ──► the session, as the product has it ──► the verifier
             └──► each written as the learner would write it ──► documents

Owns `TaughtDialogue`: one conversation with two contexts, which are sealed together. The teacher's is the endpoint's
own messages, as `EndpointDialogue` has them. The learner's is what it would have read and said itself: its own system
prompt, the same results, and every message with its calls in our form. A session is as long as the learner's context
is, so that a summary is written where the learner would have to write one.

What is not learned stays in the context as what was read: a message with a call that was malformed, that was cut off,
or that our form cannot say so that the same calls are read from it. A teacher's reasoning, where the endpoint tells it
apart, is not part of the message. Owns `TeacherStart` too, which makes a warm start of such sessions. Every session is
on the disk as it ends, with its words and its cost; the endpoint's key never is.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from etude.config import Config
from etude.errors import EndpointError
from etude.harness.config import HarnessConfig
from etude.harness.cost import Price, SessionCost
from etude.harness.dialogue import PreparedInput, Reply
from etude.harness.endpoint import Endpoint, EndpointConfig
from etude.harness.endpoint.dialogue import EndpointDialogue
from etude.harness.events import Record
from etude.harness.prompt import written_message
from etude.harness.schema import MalformedCall, ToolCall
from etude.harness.scripted import ScriptedSampler
from etude.harness.session import token_dialogue
from etude.models.chat import ChatRenderer, open_chat
from etude.models.checkpoint import shape_of
from etude.records import BASE_VERSION, Segment
from etude.trainer.attempts import Attempt, Player
from etude.trainer.lessons import Made, Tasks, counters, learn, offer, play_missing, sandboxes
from etude.trainer.taught import Kept, TaughtSessions, all_said, masked, of_attempts

if TYPE_CHECKING:
    from etude.trainer.warm_start import WarmStartConfig


class TeacherSource(Config):
    """A model behind an endpoint plays, and what it solved is learned."""

    kind: Literal["teacher"] = "teacher"
    endpoint: EndpointConfig
    price: Price | None = None
    """Of the teacher; with it what its sessions cost is told in money too."""
    most_cost: float | None = Field(None, gt=0)
    """In money: no session is begun once so much is spent. What is under way then goes on to its end."""
    reasoning_tokens: int = Field(0, ge=0)
    """That a message may have beyond what the learner has room for: reasoning counts as tokens with most endpoints, and
    is not learned."""
    attempts: int = Field(1, ge=1)
    """At each task."""
    per_task: int = Field(1, ge=1)
    """Solved sessions that are learned of a task at most."""
    most_repeats: int = Field(4, ge=1)
    """How often a stratum's sessions may be repeated, so that it weighs as much as the others."""

    @model_validator(mode="after")
    def _priced(self) -> TeacherSource:
        if self.most_cost is not None and self.price is None:
            raise ValueError("most_cost: nobody knows what a session costs; give source.price too")
        return self


class TaughtDialogue:
    """Implements `Dialogue`: the teacher speaks, and the session's segments are the learner's."""

    def __init__(
        self, endpoint: Endpoint, chat: ChatRenderer, harness: HarnessConfig, source: TeacherSource, session_id: str
    ) -> None:
        self._teacher = EndpointDialogue(endpoint, harness.chosen(), session_id=session_id)
        nobody = ScriptedSampler(lambda _: "", chat)
        self._learner = token_dialogue(nobody, chat, harness, session_id=session_id, seed=0, temperature=1.0)
        self._chat, self._source, self._secrets = chat, source, endpoint.config.secrets()
        self._systems: dict[str, str] = {}
        """The learner's system prompt by the teacher's."""
        self.notes: Counter[str] = Counter()
        """Messages, and those that are not learned by why."""

    @property
    def cost(self) -> SessionCost:
        price, spent = self._source.price, SessionCost()
        for said in self._teacher.billed:
            money = None if price is None else price.of(said.prompt, said.cached, said.completion)
            spent += SessionCost(1, said.prompt, said.cached, said.completion, money)
        return spent

    @property
    def tokens(self) -> int:
        return self._learner.tokens

    def system(self, persona: str) -> str:
        told = self._teacher.system(persona)
        self._systems[told] = self._learner.system(persona)
        return told

    def opening(self, system: str, user: str) -> PreparedInput:
        return _both(self._teacher.opening(system, user), self._learner.opening(self._systems[system], user))

    def observation(self, results: Sequence[str], user: str | None = None) -> PreparedInput:
        return _both(self._teacher.observation(results, user), self._learner.observation(results, user))

    async def reply(self, max_tokens: int, draw: int) -> Reply:
        billed = len(self._teacher.billed)
        said = await self._teacher.reply(max_tokens + self._source.reasoning_tokens, draw)
        if self._source.most_cost is not None and billed == len(self._teacher.billed) and not said.repeated:
            raise EndpointError(
                "the endpoint does not say how many tokens it has used, so nobody knows when source.most_cost is "
                "reached; leave that out, or have the endpoint say it"
            )
        ids, against = self._written(said)
        self.notes["messages"] += 1
        if against:
            self.notes[against] += 1
        record = {**said.record, "own": {"ids": ids, "learned": not against}}
        return replace(said, tokens=len(ids), context=self._learner.tokens + len(ids), record=record)

    def calls(self, reply: Record, text: str, cut: bool) -> list[ToolCall | MalformedCall]:
        return self._teacher.calls(reply, text, cut)

    def append_input(self, words: Record) -> None:
        self._teacher.append_input(words)
        self._learner.append_input(words["own"])

    def append_reply(self, reply: Record) -> None:
        self._teacher.append_reply(reply)
        ids = reply["own"]["ids"]
        if reply["own"]["learned"]:
            drawn = {"logprobs": (0.0,) * len(ids), "versions": (int(BASE_VERSION),) * len(ids)}  # nothing was drawn
            self._learner.append_reply({"ids": ids, **drawn})
        else:
            self._learner.append_input({"ids": ids})

    def seal(self, kind: Literal["turns", "summary"]) -> Segment:
        self._teacher.seal(kind)
        return self._learner.seal(kind)

    def _written(self, said: Reply) -> tuple[list[int], str]:
        """A message as the learner would write it, and why it is not learned."""
        calls = self._teacher.calls(said.record, said.text, said.cut)
        ids = self._chat.quote(masked(_text(said, calls), self._secrets))
        if said.cut:
            return ids, "cut_off"
        if any(isinstance(call, MalformedCall) for call in calls):
            return ids, "malformed"
        read = self._learner.calls({}, self._chat.decode(ids), False)
        if list(map(_meant, read)) != list(map(_meant, calls)):
            return ids, "not_writable"
        return [*ids, self._chat.end_id], ""


def _text(said: Reply, calls: Sequence[ToolCall | MalformedCall]) -> str:
    if not said.record["calls"]:  # none, or they stand in the text
        return said.text
    if any(isinstance(call, MalformedCall) for call in calls):
        return "\n".join([*([said.text] if said.text else []), *(call.raw for call in calls)])
    return written_message(said.text, [(call.name, call.arguments) for call in calls if isinstance(call, ToolCall)])


def _meant(call: ToolCall | MalformedCall) -> object:
    return (call.name, dict(call.arguments)) if isinstance(call, ToolCall) else call


def _both(teacher: PreparedInput, learner: PreparedInput) -> PreparedInput:
    return PreparedInput(learner.tokens, {**teacher.record, "own": learner.record})


class TeacherStart:
    """`sessions` are played, `attempts` at a task; then the base is trained on `tokens`."""

    def __init__(self, config: WarmStartConfig, source: TeacherSource, directory: Path) -> None:
        self.config, self.source, self.directory = config, source, directory
        self.context = shape_of(config.model).max_context
        source.endpoint.read_key()  # where it cannot be had, nothing is begun

    def made(self) -> Made:
        config, source = self.config, self.source
        kept = Kept(source.per_task, self.context)
        tasks = Tasks(config).take(0, max(1, config.sessions // source.attempts))
        attempts = [Attempt(task, 0, each) for each in range(source.attempts) for task in tasks]
        with TaughtSessions(self.directory, config.identity(), source.endpoint.secrets()) as sessions:
            if of_attempts(attempts, sessions.played()):
                asyncio.run(self._played(attempts, sessions))
            offer(attempts, sessions, kept)
            cost = asdict(sessions.spent())
            if source.price is None:
                del cost["money"]
            counted = {**counters(kept), "cost": cost}
        return {**learn(config, kept.balanced(source.most_repeats), self.directory), **counted}

    async def _played(self, attempts: Sequence[Attempt], sessions: TaughtSessions) -> None:
        config, source = self.config, self.source
        endpoint, chat = Endpoint(source.endpoint), open_chat(config.model)

        def dialogue_of(attempt: Attempt) -> TaughtDialogue:
            return TaughtDialogue(endpoint, chat, config.harness, source, attempt.id)

        def is_enough() -> bool:
            return source.most_cost is not None and (sessions.spent().money or 0.0) >= source.most_cost

        try:
            async with sandboxes(config, [attempt.task for attempt in attempts]) as (backend, judges):
                player = Player(
                    backend, judges, config.harness, self.context, dialogue_of, lambda each: (each.cost, each.notes)
                )
                await play_missing(attempts, player, sessions, config.concurrency, all_said, is_enough)
        finally:
            await endpoint.close()
