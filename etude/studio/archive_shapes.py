"""What the studio answers about trajectories, as the document at /openapi.json has it.

Owns the dataclasses of those answers; a row is the archive's own `TrajectoryRow`, a note its `Note`. Times are Unix
seconds where they are named `…_at` or `at`. In addresses the id g12/3 is written g12~3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from etude.archive.notes import Note
from etude.archive.records import TrajectoryRow

LineKind = Literal["same", "added", "removed"]


@dataclass(frozen=True)
class TrajectoryPage:
    """`next` goes into `after` for more; None after the last."""

    rows: list[TrajectoryRow]
    next: str | None


@dataclass(frozen=True)
class Count:
    """How many there are."""

    count: int
    filling: bool
    """There are more: the archive's index is being filled, and this is what it has by now."""


@dataclass(frozen=True)
class Bins:
    """How a field is spread: `edges` are one more than `counts`; `solved` are those of each bin that were."""

    edges: list[float]
    counts: list[int]
    solved: list[int]


@dataclass(frozen=True)
class Values:
    """What there is to filter by: how many rows have which value."""

    outcome: dict[str, int]
    task: dict[str, int]
    """The 500 with the most."""
    tool: dict[str, int]
    phase: dict[str, int]
    dropped: dict[str, int]
    orders: list[str]
    histograms: list[str]


@dataclass(frozen=True)
class TaskAnswer:
    """What was to be done."""

    id: str
    instruction: str
    files: list[str]
    """Their names, 500 at most."""
    verifier: str
    """Its command."""
    split: str
    provenance: Mapping[str, Any]


@dataclass(frozen=True)
class SegmentAnswer:
    """A context: its kind, and how many tokens it has. `from_turn` is the first turn in it."""

    kind: Literal["turns", "summary"]
    tokens: int
    sampled: int
    from_turn: int


@dataclass(frozen=True)
class CallResult:
    """What a tool answered: its beginning; `bytes` it has in all, `cut` whether there is more of it."""

    text: str
    bytes: int
    cut: bool


@dataclass(frozen=True)
class CallAnswer:
    """A tool call. `event` is its number in the log; calls of one turn ran side by side where their times overlap."""

    event: int
    name: str
    arguments: dict[str, Any]
    """Empty where the call could not be read; `raw` is then what was written."""
    raw: str | None
    started_at: float | None
    ended_at: float | None
    failed: bool | None
    """None where it has no result."""
    result: CallResult | None


@dataclass(frozen=True)
class TurnAnswer:
    """A message of the model, and its calls. `tokens` are its segment, first and one after the last in that segment."""

    n: int
    event: int
    kind: Literal["turn", "summary"]
    at: float
    text: str
    """Without its calls."""
    thinking: str | None
    version: int | None
    calls: list[CallAnswer]
    """The first of them."""
    calls_total: int
    tokens: tuple[int, int, int] | None


@dataclass(frozen=True)
class OutcomeAnswer:
    """What became of it."""

    kind: str
    reward: float | None
    solved: bool
    parts: Mapping[str, float]
    limit: str | None
    evidence: str


@dataclass(frozen=True)
class FindingAnswer:
    """What was held against it; `event` is the call that it names, where it can be told."""

    text: str
    event: int | None


@dataclass(frozen=True)
class FileAnswer:
    """A file that it changed. Lines added and removed are None where they were not counted: of binary files, of long
    ones, and after many."""

    path: str
    added: int | None
    removed: int | None
    binary: bool
    cut: bool


@dataclass(frozen=True)
class FilePage:
    """`next` goes into `after` for more."""

    rows: list[FileAnswer]
    total: int
    next: int | None


@dataclass(frozen=True)
class MarksAnswer:
    """The step that trained on it."""

    step: int
    trained_tokens: int


@dataclass(frozen=True)
class TrajectoryAnswer:
    """A trajectory without its tokens: turns and files as many as were asked for."""

    row: TrajectoryRow
    task: TaskAnswer | None
    prompts: list[str]
    """What the user said, the instruction first."""
    segments: list[SegmentAnswer]
    turns: list[TurnAnswer]
    turns_total: int
    outcome: OutcomeAnswer
    findings: list[FindingAnswer]
    files: list[FileAnswer]
    """The first 200."""
    files_total: int
    verifier: CallResult
    marks: MarksAnswer | None
    usage: Mapping[str, Any]
    environment: Mapping[str, Any]
    annotations: list[Note]


@dataclass(frozen=True)
class TokenColumns:
    """Tokens of one segment from a place on; each column is as long as `id`, or None where nothing of it is known. A
    value is None where a token has none: what was not sampled has no log-probability, what was not trained on no
    advantage."""

    begins: int
    total: int
    """In the segment."""
    id: list[int]
    text: list[str] | None
    """By the run's tokenizer; None where that is not to be had."""
    sampled: list[bool]
    logprob: list[float | None]
    version: list[int | None]
    advantage: list[float | None] | None
    trainer_logprob: list[float | None] | None
    entropy: list[float | None] | None
    mask: list[str | None] | None
    """trained, or why not: left_out, masked_up, masked_down, gated."""


@dataclass(frozen=True)
class Hunk:
    """Lines that changed, and three around them. `old` and `new` are the first line's numbers there, from 1."""

    old: int
    new: int
    lines: list[tuple[LineKind, str]]


@dataclass(frozen=True)
class DiffAnswer:
    """One file before and after. `cut`: there is more of it than is kept, or than is shown."""

    path: str
    hunks: list[Hunk]
    binary: bool
    cut: bool


@dataclass(frozen=True)
class OutputAnswer:
    """Part of a long text. `begins` counts characters; `total` is how many there are."""

    text: str
    begins: int
    total: int


@dataclass(frozen=True)
class MemberAnswer:
    """One of a group. `calls` are one line a turn."""

    row: TrajectoryRow
    calls: list[str]
    files: int
    added: int
    removed: int


@dataclass(frozen=True)
class Parting:
    """A turn at which members do not do the same: each one's line, None for one that has ended."""

    turn: int
    kinds: dict[str, str | None]


@dataclass(frozen=True)
class GroupAnswer:
    """Members side by side, and the turns at which they part, from the first on, 50 at most."""

    id: str
    task: TaskAnswer | None
    members: list[MemberAnswer]
    parting: list[Parting]


@dataclass(frozen=True)
class StepGroup:
    """A group of a step."""

    id: str
    task: str
    rewards: list[float | None]
    trained: list[str]
    """Its members that were trained on."""
    dropped: dict[str, str | None]
    """The others, and why."""


@dataclass(frozen=True)
class LaneRollout:
    """A rollout in time. `spans` are [from, to, version]: which weights sampled when."""

    id: str
    begun_at: float
    ended_at: float
    outcome: str
    reward: float | None
    solved: bool
    spans: list[tuple[float, float, int]]


@dataclass(frozen=True)
class Lane:
    """What one process played, in time."""

    worker: str
    rollouts: list[LaneRollout]


@dataclass(frozen=True)
class StepAnswer:
    """A step: its line in the metrics, the groups that it trained on, and when they were played."""

    step: int
    line: dict[str, Any]
    groups: list[StepGroup]
    lanes: list[Lane]


@dataclass(frozen=True)
class TrajectoriesEvent:
    """Of `run/ID/trajectories`: rows that are new or have changed. `anew`: forget those told before."""

    rows: list[TrajectoryRow]
    anew: bool


@dataclass(frozen=True)
class Removed:
    """What was taken away."""

    removed: str
