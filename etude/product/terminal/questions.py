"""Asks a person for permission: what is to be done, which rule wants it asked, and what they can answer.

Owns the words of it and how an answer is read. One question a turn: several calls are put together, and answered
together or one by one. What is typed that is no answer is a no, and goes to the model as the reason. Decides nothing
(`harness.permissions` does), reads no keys (`typing` does).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from etude.harness.permissions.gate import Answer, Question
from etude.plain import exact
from etude.product.terminal.diffs import request_rows
from etude.product.terminal.screen import Screen
from etude.product.terminal.show import call_shown

Read = Callable[[str], Awaitable[str]]
"""Reads one line that is typed after a prompt."""
_YES, _SESSION, _ALWAYS, _NO = ("y", "yes"), ("s", "session"), ("a", "always"), ("n", "no", "")
_EACH = ("e", "each")
_REFUSED = "the user refused this"


class Questions:
    """For one screen. Use as the gate's `ask`."""

    def __init__(self, screen: Screen, read: Read) -> None:
        self._screen, self._read = screen, read

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        """One answer a question, in order."""
        self._screen.status("")
        self._screen.gap()
        for number, question in enumerate(questions, 1):
            self._put(question, f"{number}. " if len(questions) > 1 else "")
        answer = await self._answer(questions, each=len(questions) > 1)
        if answer is not None:
            return [_for(question, answer) for question in questions]
        answers = []
        for number, question in enumerate(questions, 1):
            self._put(question, f"{number}. ")
            one = await self._answer([question], each=False)
            assert one is not None, "a single question has no parts"
            answers.append(_for(question, one))
        return answers

    def _put(self, question: Question, number: str) -> None:
        what, said = call_shown(question.tool, question.arguments)
        self._screen.line(("? ", "bold yellow"), number, exact(what), (exact(said), "bold"))
        asked = [(reason.piece, reason.by) for reason in question.decision.reasons if reason.verdict == "ask"]
        for piece, by in dict.fromkeys(asked):
            self._screen.line((exact(f"{piece}: "), "dim"), (exact(by), "yellow"), indent=2)
        if rows := request_rows(question.tool, question.arguments):
            self._screen.rows([(exact(text), style) for text, style in rows], indent=2)

    async def _answer(self, questions: Sequence[Question], each: bool) -> Answer | None:
        """What is typed, as an answer to all of these; None: one by one."""
        lasting = all(question.decision.remember for question in questions)
        self._choices(questions, lasting, each)
        while True:
            typed = (await self._read("  allow? ")).strip()
            word = typed.lower()
            if word in _YES:
                return Answer(True)
            if word in _NO:
                return Answer(False)
            if each and word in _EACH:
                return None
            if word in (*_SESSION, *_ALWAYS):
                if lasting:
                    return Answer(True, ("",), lasting=word in _ALWAYS)  # each question has rules of its own
                self._screen.line(("no rule can allow just this; say y or n", "yellow"), indent=2)
                continue
            return Answer(False, words=f"{_REFUSED}, and said: {typed}")

    def _choices(self, questions: Sequence[Question], lasting: bool, each: bool) -> None:
        keys = [("y", " once"), *([("s", " this session"), ("a", " always here")] if lasting else []), ("n", " no")]
        keys += [("e", " each by itself")] if each else []
        parts = [part for key, does in keys for part in ((key, "bold"), f"{does} · ")]
        self._screen.line(*parts, "or type what to do instead", indent=2)
        if lasting:
            rules = dict.fromkeys(rule for question in questions for rule in question.decision.remember)
            self._screen.line(("s and a allow ", "dim"), (exact(", ".join(rules)), "cyan"), indent=2)


def _for(question: Question, answer: Answer) -> Answer:
    """The same answer, with this question's own rules."""
    rules = question.decision.remember if answer.rules else ()
    return Answer(answer.allowed, rules, answer.words, answer.lasting)
