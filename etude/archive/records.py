"""What the archive keeps of a trajectory, and the row by which it is found.

Owns the nouns of this room: `Kept`, what a writer is given; `TrajectoryRow`, what an index and a table have of it;
`Tokens`, `Marks`, `FileChange` and `KeptTask`. Does no I/O. Shapes: T tokens of all segments of a trajectory, S those
of them that were sampled, both in the order of the segments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from etude.records import Bools, Cheated, Event, Floats, InfraFailed, Ints, Outcome, Scored, Truncated, in_quarantine

Record: TypeAlias = Mapping[str, Any]
OutcomeKind = Literal["scored", "truncated", "infra_failed", "cheated", "quarantined"]

MASKS = ("trained", "left_out", "masked_up", "masked_down", "gated")
"""Why a sampled token was trained on or not, by its code in `Marks.mask`: it was; it is in no batch (a summary that is
left out of the loss); the divergence mask dropped it, as its probability had risen or fallen too far the way its
advantage pushes; the sequence gate rejected its segment."""


@dataclass(frozen=True)
class FileChange:
    """A file of the workspace that the session left other than it was given. None: there is no such file."""

    path: str
    before: bytes | None
    after: bytes | None
    cut: bool = False
    """Whether a side is longer than what is kept of it."""


@dataclass(frozen=True)
class KeptTask:
    """What is kept of a task, once a chunk."""

    id: str
    instruction: str
    files: tuple[str, ...]
    """Names, and no contents."""
    verifier: str
    """Its command."""
    split: str
    provenance: Mapping[str, Any]


@dataclass(frozen=True)
class Kept:
    """A trajectory as it is when it has been judged: all that a writer is given."""

    id: str
    group_id: str
    task: KeptTask
    tokens: Tokens
    said: Sequence[Said]
    """The session's log; `columns.split` makes both of it."""
    outcome: Outcome
    findings: Sequence[str]
    usage: Mapping[str, int]
    conduct: Mapping[str, Any]
    environment: Mapping[str, str]
    seed: int
    temperature: float
    attempt: int
    worker: str
    """Which process played it."""
    begun_at: float
    """Unix seconds: when its session began."""
    ended_at: float
    """Unix seconds: when its verdict was there."""
    files: Sequence[FileChange] = ()
    verifier: str = ""
    """What the verifier printed at the end, or what kept it from a verdict."""


@dataclass(frozen=True)
class TrajectoryRow:
    """What is known of a trajectory without its tokens and events. Times are unix seconds."""

    id: str
    phase: str
    """"training", or which evaluation it belongs to: base, development, after, control."""
    group_id: str
    task_id: str
    step: int | None
    """Which one trained on it; None until one has."""
    outcome: OutcomeKind
    reward: float | None
    solved: bool
    parts: Mapping[str, float]
    """Of the reward."""
    findings: int
    turns: int
    calls: int
    sampled_tokens: int
    total_tokens: int
    oldest_version: int | None
    newest_version: int | None
    worker: str
    begun_at: float
    ended_at: float
    seconds: float
    """From the beginning of its session to its verdict."""
    tools: tuple[str, ...]
    """Which it called, sorted."""
    limit: str | None
    """Which one cut it."""
    trained_tokens: int | None = None
    """Of the step that trained on it: how many of its tokens were in the loss."""
    dropped: str | None = None
    """Why it was not trained on, where that is known."""


@dataclass(frozen=True)
class SegmentSpan:
    """Where a segment lies in the tokens of its trajectory."""

    kind: Literal["turns", "summary"]
    start: int
    stop: int


@dataclass(frozen=True)
class Tokens:
    """The tokens of all segments, end to end."""

    segments: tuple[SegmentSpan, ...]
    token_ids: Ints  # [T]
    sampled: Bools  # [T]
    logprobs: Floats  # [T], meaningful where sampled
    versions: Ints  # [T], the same


@dataclass(frozen=True)
class Marks:
    """What a step made of the sampled tokens of one trajectory. NaN where a token was in no batch."""

    id: str
    advantages: Floats  # [S]
    trainer_logprobs: Floats  # [S], by the weights that were trained, before the step
    entropies: Floats  # [S], of the policy there, in nats
    mask: npt.NDArray[np.uint8]  # [S], places in MASKS

    @property
    def trained_tokens(self) -> int:
        return int((self.mask == 0).sum())


@dataclass(frozen=True)
class Said:
    """One event of the log, and where its tokens are: [segment, start, stop) in all tokens of the trajectory."""

    event: Event
    tokens: tuple[int, int, int] | None
    record: Record = field(default_factory=dict)
    """What the log had of it beside the tokens."""


def kind_of(outcome: Outcome) -> OutcomeKind:
    match outcome:
        case Scored():
            return "scored"
        case Truncated():
            return "truncated"
        case InfraFailed():
            return "infra_failed"
        case Cheated():
            return "quarantined" if in_quarantine(outcome) else "cheated"


def evidence_of(outcome: Outcome) -> str:
    """Of a cheat, what shows it; of a failure, what failed; else nothing."""
    match outcome:
        case Cheated(evidence=evidence):
            return evidence
        case InfraFailed(what=what):
            return what
        case _:
            return ""
