"""Asks the person in the editor for what no rule decides.

Owns `Asking`, which puts the questions of one turn as `session/request_permission`, one after the other: an answer for
good may settle those that follow. The request says which piece of the call is asked about and by which rule, shows the
edit it would make, and offers to remember exactly the rule that would allow it: for this session, or in this project
for good. Judges nothing: `harness.permissions` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from acp import RequestError
from acp.schema import AllowedOutcome, PermissionOption, ToolCallUpdate

from etude.harness.permissions.gate import Answer, Question
from etude.product.acp import calls

if TYPE_CHECKING:
    from acp.interfaces import Client

    from etude.product.acp.outbox import Outbox
    from etude.product.acp.projection import Projection


class _Choice(StrEnum):
    ONCE, SESSION, PROJECT, REJECT = "allow", "allow-session", "allow-project", "reject"


class Asking:
    """Of one session. A person may take as long as they like; cancelling the prompt withdraws the question."""

    def __init__(self, client: Client, projection: Projection, outbox: Outbox, cancel: Callable[[], object]) -> None:
        self._client, self._projection, self._outbox = client, projection, outbox
        self._cancel = cancel
        self._nameless = 0

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        answers: list[Answer] = []
        granted: set[str] = set()
        for question in questions:
            needed = question.decision.remember
            answer = Answer(True) if needed and granted.issuperset(needed) else await self._one(question)
            granted.update(answer.rules)
            answers.append(answer)
        return answers

    async def _one(self, question: Question) -> Answer:
        rules = question.decision.remember
        await self._outbox.flush()  # the client knows the call before it is asked about it
        try:
            answer = await self._client.request_permission(
                session_id=self._outbox.session_id, tool_call=self._shown(question), options=_options(rules)
            )
        except (RequestError, ConnectionError) as error:
            return Answer(False, words=f"not permitted: the user could not be asked ({error})")
        if not isinstance(answer.outcome, AllowedOutcome):
            self._cancel()
            return Answer(False, words="the user cancelled this")
        match answer.outcome.option_id:
            case _Choice.ONCE:
                return Answer(True)
            case _Choice.SESSION if rules:
                return Answer(True, rules)
            case _Choice.PROJECT if rules:
                return Answer(True, rules, lasting=True)
        return Answer(False)

    def _shown(self, question: Question) -> ToolCallUpdate:
        """The call as it is asked about: what it would change, and why it is asked."""
        shown: list[calls.Content] = []
        if question.tool in calls.EDITS:
            shown += self._projection.preview(question.tool, question.arguments)
        shown += calls.words(f"Asked because of\n{_listed(question.decision.explain())}")
        return ToolCallUpdate(
            tool_call_id=self._call_of(question.tool, question.arguments),
            title=calls.title_of(question.tool, question.arguments),
            kind=calls.kind_of(question.tool),
            status="pending",
            content=shown,
            raw_input=calls.clean_json(dict(question.arguments)),
            field_meta={"etude": {"rules": list(question.decision.remember), "why": question.decision.explain()}},
        )

    def _call_of(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """The call a question is about; of two that are the same, the first goes first."""
        asking = self._projection.asking
        for id, known in asking.items():
            if known == (tool, arguments):
                del asking[id]
                return id
        self._nameless += 1
        return f"question-{self._nameless}"


def _options(rules: Sequence[str]) -> list[PermissionOption]:
    options = [PermissionOption(option_id=_Choice.ONCE, name="Allow once", kind="allow_once")]
    if rules:
        named = ", ".join(rules)
        options += [
            PermissionOption(option_id=_Choice.SESSION, name=f"Allow {named} in this session", kind="allow_always"),
            PermissionOption(
                option_id=_Choice.PROJECT, name=f"Always allow {named} in this project", kind="allow_always"
            ),
        ]
    return [*options, PermissionOption(option_id=_Choice.REJECT, name="Reject", kind="reject_once")]


def _listed(reasons: str) -> str:
    return "\n".join(f"- {calls.clean(line)}" for line in reasons.splitlines())
