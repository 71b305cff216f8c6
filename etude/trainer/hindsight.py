"""What of a session is worth learning, as its own answers tell afterwards.

Owns `what_worked`, `accepted` and `confirmed`, which mark calls of a session's messages as read and not learned: those
that failed, and edits that were wrong guesses. What stands beside such a call in its message is learned: the check, and
the edit that takes the guess before it back. Where a call's tokens cannot be told, the whole message is left out. Plays
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence, Set

import numpy as np

from etude.harness.conduct import EDITS
from etude.harness.session import SessionResult
from etude.models.chat import ChatRenderer
from etude.records import Event
from etude.tasks.scripted import RUN_CHECK, passed
from etude.trainer.documents import Document, document_of, message_runs
from etude.trainer.taught import Learned

Calls = Set[tuple[int, int]]
"""Each a message, counted from 1 over all segments, and which of its calls, counted from 0."""
_CALL = re.compile(r"^<tool_call>", re.MULTILINE)


def what_worked(result: SessionResult, chat: ChatRenderer) -> Learned:
    """All that was said but for calls that failed, or found nothing, and wrong guesses, and how many these are."""
    failed, refuted = failed_calls(result.events), refuted_calls(result.events)
    notes = {"calls_failed": len(failed), "calls_refuted": len(refuted - failed)}
    return Learned(without(result, failed | refuted, chat), notes)


def accepted(result: SessionResult, chat: ChatRenderer) -> Learned:
    """All that was said but for calls that failed, or found nothing. Wrong guesses are learned: whoever cannot choose
    has to learn how another guess is made, and that it is another one."""
    failed = failed_calls(result.events)
    return Learned(without(result, failed, chat), {"calls_failed": len(failed)})


def confirmed(result: SessionResult, chat: ChatRenderer) -> list[Document]:
    """All that was said but for wrong guesses."""
    return without(result, refuted_calls(result.events), chat)


def failed_calls(events: Iterable[Event]) -> Calls:
    """Those that were answered with an error, or with nothing."""
    return {
        (number, index)
        for number, message in enumerate(_messages(events), 1)
        for index, (_, answer) in message.items()
        if answer is not None and (answer.data["error"] or answer.data["text"] == "no matches")
    }


def refuted_calls(events: Iterable[Event]) -> Calls:
    """Edits whose message runs the check, which does not pass: wrong guesses. An edit that takes an earlier one back is
    none, whatever the check says of the guess beside it."""
    found: set[tuple[int, int]] = set()
    made: set[tuple[object, ...]] = set()
    for number, message in enumerate(_messages(events), 1):
        edits = {index: pair for index, pair in message.items() if pair[0].data["name"] in EDITS}
        checked = any(call.data["name"] == RUN_CHECK[0] for call, _ in message.values())
        held = any(answer is not None and passed(answer.data["text"]) for _, answer in message.values())
        if checked and not held:
            found |= {(number, index) for index, (call, _) in edits.items() if _change(call, "new", "old") not in made}
        done = [call for call, answer in edits.values() if answer is not None and not answer.data["error"]]
        made |= {_change(call, "old", "new") for call in done if call.data["name"] == "edit_file"}
    return found


def without(result: SessionResult, calls: Calls, chat: ChatRenderer) -> list[Document]:
    """Of a session's segments; these calls are read and not learned."""
    texts = [event.data.get("text", "") for event in result.events if event.kind in ("completion", "summary")]
    counts = [len(message) for message in _messages(result.events)]
    documents, number = [], 0
    for segment in result.segments:
        learned = segment.sampled.copy()
        for start, end in message_runs(segment.sampled):
            number += 1
            if wrong := [index for message, index in calls if message == number]:
                ids = segment.token_ids[start:end].tolist()
                learned[start:end] = ~_of_calls(ids, texts[number - 1], wrong, counts[number - 1], chat.decode)
        documents.append(document_of(segment)._replace(sampled=learned))
    return documents


def _of_calls(
    ids: Sequence[int], text: str, wrong: Sequence[int], count: int, decode: Callable[[Sequence[int]], str]
) -> np.ndarray:
    """Which tokens of a message are these calls'; all, where the text does not show as many as there are."""
    begin = [found.start() for found in _CALL.finditer(text)]
    if len(begin) != count or not text.startswith(decode(ids)[: begin[-1]]):
        return np.ones(len(ids), bool)
    at = np.array([len(decode(ids[:token])) for token in range(len(ids))])
    call = np.searchsorted(begin, at, side="right") - 1
    return np.isin(call, wrong)


def _messages(events: Iterable[Event]) -> list[dict[int, tuple[Event, Event | None]]]:
    """Each message's calls with their answers, by their place in it."""
    messages: list[dict[int, tuple[Event, Event | None]]] = []
    for event in events:
        if event.kind in ("completion", "summary"):
            messages.append({})
        elif event.kind == "tool_call":
            messages[-1][event.data["index"]] = (event, None)
        elif event.kind == "tool_result":
            messages[-1][event.data["index"]] = (messages[-1][event.data["index"]][0], event)
    return messages


def _change(call: Event, before: str, after: str) -> tuple[object, ...]:
    given = call.data.get("arguments", {})
    return given.get("path"), given.get(before), given.get(after)
