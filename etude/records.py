"""The records that rooms exchange: frozen and documented.

Owns the nouns of docs/design.md: Task, Version, Segment, Trajectory, Outcome, Group, Batch. Token ids are the only
truth: text is never re-tokenised between sampling and training, so a `Segment` carries the exact ids that were sampled,
with the log-probability, weight version and expert routes of each. Does no I/O and imports no room.

Shapes in docstrings: T tokens of one segment, S sampled tokens, L mixture-of-experts layers, K experts a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NewType, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

Version = NewType("Version", int)
"""A policy version; 0 is the base. Each optimizer step makes the next one."""

BASE_VERSION = Version(0)

Ints: TypeAlias = npt.NDArray[np.int32]
Floats: TypeAlias = npt.NDArray[np.float32]
Bools: TypeAlias = npt.NDArray[np.bool_]
Routes: TypeAlias = npt.NDArray[np.uint8 | np.uint16]  # the smallest that holds an expert's number


@dataclass(frozen=True)
class Limits:
    """What a rollout may use before it is cut; part of the task, so a cut rollout keeps its verdict."""

    max_turns: int = 12
    max_context_tokens: int = 1024
    max_sampled_tokens: int = 512
    wall_s: float = 300.0
    """Seconds in which a call of its tools runs. Waiting for the model, for a checkpoint or for a user's answer counts
    for nobody: whoever is waited for has a deadline."""

    def within(self, context: int) -> Limits:
        """The same for a model whose own context is so long, where that is shorter."""
        return replace(self, max_context_tokens=min(self.max_context_tokens, context))


@dataclass(frozen=True)
class Verifier:
    """How a final state is judged, in a fresh sandbox the agent never saw.

    `files` (path → content, absolute paths) are put there after the agent is gone; `command` runs next, and writes a
    number from 0 to 1 to /logs/verifier/reward.txt, as Harbor's tests do.
    """

    files: Mapping[str, bytes]
    command: str = "sh /tests/test.sh"
    timeout_s: float = 30.0


@dataclass(frozen=True)
class Task:
    """One problem. On disk it is a Harbor 1.4 task directory (`tasks.harbor`)."""

    id: str
    instruction: str
    files: Mapping[str, bytes]
    """The workspace the agent starts from: path relative to /workspace → content."""
    verifier: Verifier
    image: str = "host"
    setup: tuple[str, ...] = ()
    solution: Mapping[str, bytes] = field(default_factory=dict)
    """Files of a reference solution. No session sees it. What checks, measures or hides a task reads it: validator,
    auditor, scrubber, the verifier's unseen calls, the difficulty, and the benchmark's policy that plays it."""
    rubric: tuple[str, ...] = ()
    limits: Limits = Limits()
    split: Literal["train", "eval", "heldout", "real"] = "train"
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Where it came from: family, rung, shapes, bug template, seed; whatever a report groups by."""


EventKind: TypeAlias = Literal[
    "session", "resumed", "model", "prompt", "completion", "tool_call", "tool_started", "tool_result", "observation",
    "summary_asked", "summary", "segment_sealed", "opening", "checkpoint", "undo", "redo", "end",
]  # fmt: skip


@dataclass(frozen=True)
class Event:
    """One line of a session's append-only log. The terminal, the HTTP API, traces and exports are views of these."""

    kind: EventKind
    at: float
    """Seconds since the session started (monotonic clock)."""
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Segment:
    """The tokens of one context, of all its turns; a trajectory is a chain of them.

    A segment of kind `summary` ends with the summary that the next one opens with. It holds the turns before it too:
    that is the context it was sampled in, and so a trainer computes them once.

    `logprobs` and `versions` are aligned with `token_ids` and meaningful only where `sampled`. `routed_experts`
    holds the experts the sampler used for each position it processed; a segment's last token is never fed back, so
    the array may be shorter than `token_ids`, but always covers every position that predicts a sampled token.
    """

    token_ids: Ints  # [T]
    sampled: Bools  # [T]
    logprobs: Floats  # [T]
    versions: Ints  # [T]
    routed_experts: Routes  # [<=T, layers with a router, K]; [0, 0, 0] for a sampler that gives no routes
    kind: Literal["turns", "summary"] = "turns"

    def __post_init__(self) -> None:
        length = len(self.token_ids)
        for name in ("sampled", "logprobs", "versions"):
            if len(getattr(self, name)) != length:
                raise ValueError(f"Segment.{name} has {len(getattr(self, name))} entries for {length} tokens")


@dataclass(frozen=True)
class Scored:
    """The verifier gave a verdict on a session that ended by itself, or was ended for repeating itself."""

    reward: float
    parts: Mapping[str, float]


@dataclass(frozen=True)
class Truncated:
    """A limit of the task cut the session. The final state was judged all the same: the verdict counts."""

    limit: Literal["turns", "context", "tokens", "wall"]
    reward: float
    parts: Mapping[str, float]


@dataclass(frozen=True)
class InfraFailed:
    """Our machinery failed. Never scored: it leaves the group before the baseline."""

    what: str
    retryable: bool = True
    lost: bool = False
    """The process that had it died. How often processes may die is bounded for itself, and a death takes many rollouts
    at once; so it does not count among failures in a row."""


@dataclass(frozen=True)
class Cheated:
    """The session broke the rules; `evidence` says how."""

    evidence: str
    reward: float | None = 0.0
    """Whatever the tests said, the lowest that an honest rollout could have got (`rewards.reward`): cheating must never
    pay more than failing. None: it is in quarantine, and leaves its group before the baseline. 0 in records that older
    versions have written."""


Outcome: TypeAlias = Scored | Truncated | InfraFailed | Cheated


def in_quarantine(outcome: Outcome) -> TypeGuard[Cheated]:
    """Whether it is a cheat's that teaches nothing: it is kept to be looked at."""
    return isinstance(outcome, Cheated) and outcome.reward is None


def reward_of(outcome: Outcome) -> float | None:
    """The scalar a group's baseline uses; None for a rollout that must not be scored."""
    match outcome:
        case Scored(reward=reward) | Truncated(reward=reward) | Cheated(reward=reward):
            return reward
        case InfraFailed():
            return None


def verdict_of(outcome: Outcome) -> float | None:
    """What the verifier said, whatever else the reward is made of: 1 or 0, -1 for a cheat; None as for `reward_of`."""
    match outcome:
        case Scored(parts=parts) | Truncated(parts=parts):
            return parts.get("tests", 0.0)
        case Cheated():
            return -1.0
        case InfraFailed():
            return None


def solved(outcome: Outcome) -> bool:
    """Whether the verifier's tests passed, whatever the other parts of the reward say."""
    return isinstance(outcome, Scored | Truncated) and outcome.parts.get("tests", 0.0) >= 1.0


@dataclass(frozen=True)
class Trajectory:
    """One rollout of one task."""

    id: str
    task_id: str
    group_id: str
    segments: tuple[Segment, ...]
    events: tuple[Event, ...]
    outcome: Outcome
    environment: Mapping[str, str] = field(default_factory=dict)
    """Which sandbox backend and isolation level it ran in."""
    usage: Mapping[str, int] = field(default_factory=dict)
    """The harness's counts: turns, tool calls, tokens, …, and the auditor's; empty for a rollout whose session never
    ended."""
    findings: tuple[str, ...] = ()
    """What the auditor found, a line each; empty where nobody audited."""
    seconds: float = 0.0
    """Wall time from dispatch to verdict."""
    verifier: str = ""
    """The end of what the verifier printed, or what kept it from a verdict; never for the agent."""


@dataclass(frozen=True)
class Group:
    """The trajectories of one task that are compared with each other."""

    id: str
    task: Task
    trajectories: tuple[Trajectory, ...]


@dataclass(frozen=True)
class Batch:
    """Packed segments, ready for one optimizer step. N tokens in all; M segments of T trajectories lie end to end.

    `advantages`, `behaviour_logprobs` and `ages` are aligned with `token_ids`: the value at a position belongs to that
    token, which the position before it predicted. `loss_mask` marks the tokens that are trained on. A piece of a batch
    keeps the numbers of its segments, so that `trajectory_of` and `group_of` are the whole batch's.
    """

    token_ids: Ints  # [N]
    positions: Ints  # [N], restarting at 0 with every segment
    segment_ids: Ints  # [N], 0, 0, …, 1, 1, …
    loss_mask: Bools  # [N]
    summary_mask: Bools  # [N], True on the tokens of summaries, whether they are trained on or not
    advantages: Floats  # [N]
    behaviour_logprobs: Floats  # [N]
    ages: Ints  # [N], versions between the one that sampled the token and the one trained on
    routed_experts: Routes  # [N, L, K], or [0, 0, 0] when replay is off
    routed_mask: Bools  # [N], False where the sampler gave no route
    trajectory_of: Ints  # [M], which trajectory each segment is of, from 0
    group_of: Ints  # [T], which group each of the T trajectories is of, from 0
    version: Version
