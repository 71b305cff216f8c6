"""What the studio answers about runs, as the document at /openapi.json has it.

Owns the dataclasses of answers and events; the pages' types are made of the document. Ratios are from 0 to 1, times are
Unix seconds where they are named `…_at`, and seconds where `…_s`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

RunState = Literal["running", "ended", "stopped", "copied"]


@dataclass(frozen=True)
class Entered:
    """What a page knows once it was let in."""

    token: str
    work: bool
    """Whether agents may be started here."""
    version: str
    """Of Etude."""


@dataclass(frozen=True)
class NewCode:
    """A code that works once, for one more tab: `#code=` it."""

    code: str


@dataclass(frozen=True)
class RunRow:
    """A run in the list. `copied`: its directory was made elsewhere, and no process has it here."""

    id: str
    name: str
    """Of its directory."""
    recipe: str
    """The name in its recipe."""
    directory: str
    state: RunState
    started_at: float | None
    updated_at: float
    steps: int
    version: int
    figures: dict[str, float | None]
    """The last step's solve_rate, reward, loss, entropy and mean_age; base_pass1 and pass1 of a run that has ended."""
    trajectories: int | None
    """In its archive; None in a list, and where it has none."""
    bytes: int
    """Of the files in its directory itself, and of its archive."""
    remark: str | None
    """Of a run in a store: what of it is not here, and why. None where all of it is."""


@dataclass(frozen=True)
class RunList:
    """The newest first. `remarks` say which stores do not answer, and what in them cannot be read."""

    runs: list[RunRow]
    total: int
    remarks: list[str]


@dataclass(frozen=True)
class Phase:
    """Part of a run's life, from when on."""

    name: str
    at: float


@dataclass(frozen=True)
class RunNote:
    """What happened beside training: a restart, a change by an operator, a finding; the rest is in `data`."""

    kind: str
    at: float | None
    data: dict[str, Any]


@dataclass(frozen=True)
class RunDetail(RunRow):
    """A run in full."""

    keys: dict[str, Any]
    """Every key of its recipe by its dotted path."""
    counters: dict[str, Any]
    summary: dict[str, Any] | None
    """What it ended with; None where it has not."""
    phases: list[Phase]
    notes: list[RunNote]
    """The last 200."""


@dataclass(frozen=True)
class Series:
    """One figure in buckets: of each the smallest, the largest and the last value, and the last one's x."""

    x: list[float]
    min: list[float]
    max: list[float]
    last: list[float]


@dataclass(frozen=True)
class Curves:
    """Figures of steps. `cursor` is where the topic `run/ID/steps` goes on after this answer."""

    x: list[float]
    """The first and the last step there is; empty where there is none."""
    names: list[str]
    """All there are; `delivery.` begins those of a version's way to the engines, whose x is the version."""
    series: dict[str, Series]
    cursor: str


@dataclass(frozen=True)
class LiveSlot:
    """One sample that is wanted, and where it is; `since` is in Unix seconds, None where it is not known."""

    id: str
    state: str
    since: float | None
    task: str
    worker: str | None


@dataclass(frozen=True)
class LiveCall:
    """A tool call as one line. `failed` is None while it runs."""

    name: str
    arguments: str
    result: str
    failed: bool | None


@dataclass(frozen=True)
class Watched:
    """The rollout whose calls are told as it makes them."""

    id: str
    instruction: str
    calls: list[LiveCall]


@dataclass(frozen=True)
class Busy:
    """The share of its time that each works."""

    engine: float
    trainer: float


@dataclass(frozen=True)
class Throughput:
    """By the run's own clock."""

    samples_per_s: float
    tokens_per_s: float


@dataclass(frozen=True)
class Live:
    """What a run does now. Of one that no process has, `phase` is the last there was, and what only a process knows is
    None or empty."""

    state: RunState
    phase: str
    at: float
    elapsed_s: float | None
    left_s: float | None
    """Of training."""
    evaluated: int
    to_evaluate: int
    busy: Busy | None
    ages: dict[str, int]
    """Trained tokens by how many versions old they were."""
    sandboxes: int | None
    failures: dict[str, int]
    """By cause: what failed, and why samples were dropped."""
    throughput: Throughput | None
    states: dict[str, int]
    """Samples by the state they are in."""
    slots: list[LiveSlot]
    """Those alive, 2,000 at most."""
    watched: Watched | None
    figures: dict[str, float]
    """What is known already, such as base pass@1."""


@dataclass(frozen=True)
class Delivery:
    """A version put into one engine: when, and for how long it paused."""

    engine: str
    at: float | None
    pause_ms: float


@dataclass(frozen=True)
class VersionRow:
    """A version of the weights."""

    version: int
    step: int
    bytes: int | None
    raw_bytes: int | None
    changed_share: float | None
    kind: Literal["base", "delta"]
    root: str | None
    published_at: float | None
    publish_ms: float | None
    pause_ms: float | None
    """For how long an engine paused, at most."""
    lag_ms: float | None
    """From the end of its step until the last engine had it."""
    deliveries: list[Delivery]


BASE = VersionRow(0, 0, None, None, None, "base", None, None, None, None, None, [])
"""What training began with: no run has made it, so its lines say nothing of it."""


@dataclass(frozen=True)
class Versions:
    """The chain, newest last. `next` goes into `after` for more."""

    rows: list[VersionRow]
    total: int
    next: int | None


@dataclass(frozen=True)
class PlanAnswer:
    """What `etude plan --from RUN --json` says of the run's own recipe."""

    now: dict[str, Any]
    recommended: dict[str, Any]
    tried: list[dict[str, Any]]
    engine_s_per_sample: float
    trainer_s_per_sample: float
    engines_per_trainer: float
    inference_share: float
    rates: dict[str, Any]
    said: list[str]
    """The same in words, line by line."""


@dataclass(frozen=True)
class Opened:
    """First of a topic: from this cursor on it is told."""

    opened: bool


@dataclass(frozen=True)
class StepFigures:
    """A step, by the names that curves have."""

    step: int
    at: float | None
    figures: dict[str, float]


@dataclass(frozen=True)
class StepsEvent:
    """Of `run/ID/steps`. One member is there: a step; `cut`, after which step those told before are not true any more,
    because a run that was killed makes them again; or `reset`: forget all, and ask for the curves again."""

    step: StepFigures | None = None
    cut: int | None = None
    reset: bool | None = None


@dataclass(frozen=True)
class LiveEvent:
    """Of `run/ID/live`: how things stand now, told when they change."""

    live: Live


@dataclass(frozen=True)
class RunsEvent:
    """Of `runs`. `runs` are all there are, in the place of those told before; `changed` and `gone` are what is other
    than at the last event. `remarks` are those of the list, at every event."""

    runs: list[RunRow] | None = None
    changed: list[RunRow] | None = None
    gone: list[str] | None = None
    remarks: list[str] | None = None


EVENTS: tuple[type, ...] = (Opened, StepsEvent, LiveEvent, RunsEvent)
"""What streams tell; `Opened` first of each topic, and {"failed": why} in the place of any."""
