"""Targeted textual feedback: which message of a failed trajectory went wrong, and the hint that would have helped.

    find the message → put a hint before it → what the policy would say, hinted → distilled into the policy without it

A trajectory's one reward says that something went wrong, and pushes all of it down alike. Where a rule can say which
message it was, and what was wrong with it, the policy learns more from that: it reads the same context with a hint put
in just before that message, and its own distribution over that message's tokens, so informed, is what it is then taught
to have without the hint; on that message and nowhere else (`trainer.distil`). The reward's loss is as it was.

Owns `HintExample`, `hint_examples_of`, the `FaultFinder` protocol and the finder by rules. A model that reads
trajectories as a judge is another `FaultFinder`. Makes no gradient. Tests in tests/trainer/test_feedback.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from etude.harness.tools.base import cut_middle
from etude.models.chat import ChatRenderer
from etude.records import Event, Group, Ints, Task, Trajectory, solved
from etude.trainer.config import FeedbackConfig
from etude.trainer.documents import message_runs


class Fault(NamedTuple):
    """The message that went wrong, counted from 0 over a trajectory's turns and summaries, and what would have helped
    to know before it."""

    message: int
    hint: str


class FaultFinder(Protocol):
    """Says where a trajectory went wrong; None where it cannot say."""

    def __call__(self, task: Task, trajectory: Trajectory) -> Fault | None: ...


@dataclass(frozen=True)
class HintExample:
    """The same message in its context, and in its context with a hint; it is the last `length` tokens of either."""

    token_ids: Ints
    hinted_ids: Ints
    length: int


class MessageSpan(NamedTuple):
    """Where a message of the policy's stands: token_ids[start:end] of a segment."""

    segment: int
    start: int
    end: int


def hint_examples_of(
    groups: Sequence[Group], chat: ChatRenderer, config: FeedbackConfig, longest: int, finder: FaultFinder | None = None
) -> list[HintExample]:
    """At most `config.most`, from the trajectories that did not solve their task, in order; a hinted context of more
    than `longest` tokens is left out."""
    find = finder or first_fault
    found: list[HintExample] = []
    for group in groups:
        for trajectory in group.trajectories:
            if len(found) == config.most:
                return found
            if solved(trajectory.outcome) or (fault := find(group.task, trajectory)) is None:
                continue
            example = hint_example_of(trajectory, fault, chat)
            if len(example.hinted_ids) <= longest:
                found.append(example)
    return found


def hint_example_of(trajectory: Trajectory, fault: Fault, chat: ChatRenderer) -> HintExample:
    """The faulty message with and without the hint, which stands as the last words before it."""
    place = message_spans(trajectory)[fault.message]
    ids = trajectory.segments[place.segment].token_ids
    before, message, header = ids[: place.start], ids[place.start : place.end], np.asarray(chat.reply, np.int32)
    start = len(before) - len(header)  # a template may have no header
    if not np.array_equal(before[start:], header):
        raise ValueError(f"{trajectory.id}: message {fault.message} does not follow the header of a reply")
    hint = np.asarray(chat.interjection(fault.hint), np.int32)
    return HintExample(
        token_ids=ids[: place.end],
        hinted_ids=np.concatenate([before[:start], hint, header, message]),
        length=len(message),
    )


def message_spans(trajectory: Trajectory) -> list[MessageSpan]:
    """Every turn and summary, in order: the runs of sampled tokens. Raises ValueError where the log has others."""
    spans: list[MessageSpan] = []
    for at, segment in enumerate(trajectory.segments):
        spans += [MessageSpan(at, start, end) for start, end in message_runs(segment.sampled)]
    logged = [event.data["tokens"] for event in trajectory.events if event.kind in ("completion", "summary")]
    if [end - start for _, start, end in spans] != logged:
        raise ValueError(f"{trajectory.id}: its log has messages of {logged} tokens, its segments others")
    return spans


# --- the finder by rules ----------------------------------------------------------------------------------------------


def first_fault(task: Task, trajectory: Trajectory) -> Fault | None:
    """The first message after which the task cannot be solved, where a rule knows one; else the first with a call that
    was malformed or failed.

    Known to cannot be solved: a summary that leaves out one of the facts that the task will ask for
    (`provenance["facts"]`), though it had been read by then, in a session that can look nothing up any more.
    """
    facts = [str(fact) for fact in task.provenance.get("facts", ())]
    return _forgotten_fact(facts, trajectory.events) or _failed_call(trajectory.events)


def _forgotten_fact(facts: Sequence[str], events: Sequence[Event]) -> Fault | None:
    known: list[str] = []
    message = -1
    for event in events:
        if event.kind == "tool_result":
            known += [fact for fact in facts if fact not in known and fact in str(event.data["text"]).split(":")[0]]
        message += event.kind in ("completion", "summary")
        if event.kind == "summary" and (missing := [fact for fact in known if fact not in event.data["text"].split()]):
            return Fault(message, f"Keep in your summary what the task will ask for: {', '.join(missing)}.")
    return None


def _failed_call(events: Sequence[Event]) -> Fault | None:
    message = -1
    for event in events:
        message += event.kind in ("completion", "summary")
        if event.kind == "tool_result" and event.data["error"]:
            return Fault(message, f"The call you are about to make fails: {cut_middle(event.data['text'], 300)}")
    return None
