"""Asks the judge, one criterion at a time, and believes it as far as it can be checked.

Owns `RubricJudge`. A yes is believed where the judge said no to the control question about the same change, gave a
quote that stands there, and stays with it when the words that the change brings are taken out; a no is believed as it
is.
Everything else ends as `NotJudged`, by name. Raises nothing but what is a mistake in the configuration.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Sequence

from etude.deadlines import scaled
from etude.errors import ContextOverflow, DeadlineExceeded, EndpointError
from etude.harness.endpoint.client import Endpoint, encode, silence
from etude.harness.endpoint.wire import TIMEOUTS, Timeouts
from etude.rewards.judge.config import MAX_CHARS, JudgeConfig
from etude.rewards.judge.control import control_criterion
from etude.rewards.judge.injection import without_words
from etude.rewards.judge.outcomes import Change, Judged, Judgement, NotJudged, RubricResult
from etude.rewards.judge.question import (
    SYSTEM,
    Answer,
    NoAnswer,
    Order,
    Question,
    read_answer,
    response_format,
)  # fmt: skip

JUDGED_S = 300.0
"""For one criterion with all its votes, each of which may have to wait for its turn."""
_CONCURRENT = 8
"""Requests under way at once, of one judge: what a small server takes without a queue."""


class RubricJudge:
    """Use on one event loop; the caller closes it. `counters` count judgements by how they ended, and requests."""

    def __init__(
        self, config: JudgeConfig, patience: Timeouts = TIMEOUTS, judged_s: float = JUDGED_S, control: bool = True
    ) -> None:
        """`patience` is with the endpoint, for one answer; without `control` every yes is believed."""
        body = {"response_format": response_format()} if config.structured == "schema" else {}
        self.config, self._judged_s, self._controlled = config, scaled(judged_s), control
        self._endpoint = Endpoint(config.endpoint.with_body(body), patience=patience)
        self._gate = asyncio.Semaphore(_CONCURRENT)
        self.counters: Counter[str] = Counter()

    async def close(self) -> None:
        await self._endpoint.close()

    async def judge(self, rubric: Sequence[str], change: Change, order: Order = "criterion first") -> RubricResult:
        """One judgement a criterion. With the control, a yes counts only from a judge that has passed it."""
        asked = asyncio.gather(*(self._judged(criterion, change, order) for criterion in rubric))
        fooled, judgements = await asyncio.gather(self._control(change, order), asked)
        final = tuple(_after_control(each, fooled) for each in judgements)
        for each in final:
            self.counters["judged" if isinstance(each, Judged) else each.why] += 1
        return RubricResult(final)

    async def _judged(self, criterion: str, change: Change, order: Order) -> Judgement:
        if len(change.text) > MAX_CHARS:
            said = f"{len(change.text)} characters, and {MAX_CHARS} are judged at most"
            return NotJudged(criterion, "too long", said)
        try:
            async with asyncio.timeout(self._judged_s):
                return await self._by_votes(criterion, change, order)
        except TimeoutError:
            return NotJudged(criterion, "late", f"no verdict within {self._judged_s:g} s")

    async def _by_votes(self, criterion: str, change: Change, order: Order) -> Judgement:
        answers = await asyncio.gather(*(self._ask(criterion, change, order) for _ in range(self.config.votes)))
        given = [each for each in answers if isinstance(each, Answer)]
        yes = [each for each in given if each.holds]
        no = [each for each in given if not each.holds]
        needed = self.config.votes // 2 + 1
        if len(no) >= needed:
            return Judged(criterion, False, no[0].quote, no[0].reason)
        if len(yes) < needed:
            missing = next((each for each in answers if isinstance(each, NoAnswer)), None)
            if missing is None or (yes and no):
                return NotJudged(criterion, "disagreed", f"{len(yes)} yes and {len(no)} no of {self.config.votes}")
            return NotJudged(criterion, missing.why, missing.detail)
        return await self._without_words(criterion, change, order, yes[0])

    async def _without_words(self, criterion: str, change: Change, order: Order, yes: Answer) -> Judgement:
        """A yes to a change that brings words must stand without them."""
        silent = without_words(change, criterion)
        if silent is not None:
            again = await self._ask(criterion, silent, order)
            if isinstance(again, NoAnswer) and again.why != "ungrounded":
                return NotJudged(criterion, again.why, f"asked again without the words it brings: {again.detail}")
            if isinstance(again, NoAnswer) or not again.holds:
                said = again.detail if isinstance(again, NoAnswer) else again.reason
                return NotJudged(criterion, "injected", f"without the words that the change brings: {said}")
        return Judged(criterion, True, yes.quote, yes.reason)

    async def _control(self, change: Change, order: Order) -> str:
        """Why nothing that the judge affirms of this change can be believed; empty if it can."""
        if not self._controlled or len(change.text) > MAX_CHARS:
            return ""
        judged = await self._judged(control_criterion(change), change, order)
        if isinstance(judged, Judged):
            return "it affirms what is surely not so" if judged.met else ""
        if judged.why in ("ungrounded", "injected"):
            return f"it affirms what is surely not so: {judged.detail}"
        return ""  # a judge that is refusing or broken is that in its own answers too

    async def _ask(self, criterion: str, change: Change, order: Order) -> Answer | NoAnswer:
        question = Question(criterion, change, secrets.token_hex(8), order)
        most = self.config.max_tokens
        items = [encode(item) for item in self._endpoint.dialect.opening(SYSTEM, question.text())]
        try:
            async with self._gate:
                self.counters["requests"] += 1
                said = await self._endpoint.ask(items, (), most, "judge", silence)
        except ContextOverflow as error:
            return NoAnswer("too long", str(error))
        except DeadlineExceeded as error:
            return NoAnswer("late", str(error))
        except EndpointError as error:
            return NoAnswer("refused" if "filter" in str(error) else "endpoint", str(error))
        if said.cut:
            return NoAnswer("cut", f"no end within {most} tokens: {said.text[:120]}")
        return read_answer(said.text, question)


def _after_control(judgement: Judgement, fooled: str) -> Judgement:
    """No is no, whoever says it; a yes needs a judge that can say no."""
    if fooled and isinstance(judgement, Judged) and judgement.met:
        return NotJudged(judgement.criterion, "injected", fooled)
    return judgement
