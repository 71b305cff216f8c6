"""Samples: what a run's controller knows of a rollout, without a token of it.

    session worker ──writes──► the slot's directory: log and routes ──read once──► trainer
          └──► Sample, with the directory's name ──► controller ──► the same Sample, in a group ──┘

Owns `Sample` and `SampleGroup`: the outcome, the counts, how many tokens each version sampled, and where the rest is.
Tokens travel by that reference alone; `rollouts.trajectory_store` writes and reads them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from etude.harness.conduct import Conduct, conduct_of
from etude.records import Cheated, Event, InfraFailed, Outcome, Scored, Segment, Task, Trajectory, Truncated

_OUTCOMES: dict[str, type[Outcome]] = {kind.__name__: kind for kind in (Scored, Truncated, InfraFailed, Cheated)}


@dataclass(frozen=True)
class Sample:
    """One rollout. All but what comes after `seconds` are those of its `records.Trajectory`."""

    id: str
    task_id: str
    group_id: str
    outcome: Outcome
    environment: Mapping[str, str]
    usage: Mapping[str, int]
    findings: tuple[str, ...]
    seconds: float
    versions: Mapping[int, int]
    """Version → how many of its tokens that version sampled."""
    conduct: Conduct
    turns: tuple[tuple[float, ...], ...] = ()
    """[tokens read, tokens sampled, seconds of tools] of each turn."""
    session_s: float = 0.0
    """The session's own clock at its end."""
    checksum: int = 0
    """Of its log and routes as they are on the disk."""

    @property
    def oldest(self) -> int | None:
        """The oldest version that sampled a token of it; None where it has none."""
        return min(self.versions, default=None)

    def trajectory(self, segments: tuple[Segment, ...], events: tuple[Event, ...]) -> Trajectory:
        """The whole of it."""
        return Trajectory(
            self.id, self.task_id, self.group_id, segments, events, self.outcome, self.environment, self.usage,
            self.findings, self.seconds,
        )  # fmt: skip

    def judged(self, verdict: Trajectory, checksum: int) -> Sample:
        """The same with what a judge has added to the trajectory."""
        added = {name: getattr(verdict, name) for name in ("outcome", "usage", "findings", "seconds")}
        return replace(self, **added, checksum=checksum)

    def encoded(self) -> bytes:
        record = asdict(self) | {"outcome": [type(self.outcome).__name__, asdict(self.outcome)]}
        return json.dumps(record, default=_plain).encode()

    @staticmethod
    def decoded(record: bytes) -> Sample:
        """Raises KeyError, TypeError or ValueError for what `encoded` did not make."""
        data = json.loads(record)
        kind, outcome = data["outcome"]
        read: dict[str, Any] = {
            "outcome": _OUTCOMES[kind](**outcome),
            "findings": tuple(data["findings"]),
            "versions": {int(version): count for version, count in data["versions"].items()},
            "conduct": Conduct(**data["conduct"]),
            "turns": tuple(map(tuple, data["turns"])),
        }
        return Sample(**{**data, **read})


@dataclass(frozen=True)
class SampleGroup:
    """The samples of one task that are compared with each other: a `records.Group` by reference."""

    id: str
    task: Task
    samples: tuple[Sample, ...]


def sample_of(trajectory: Trajectory) -> Sample:
    """What the controller is told of a trajectory."""
    turns, session_s = _turns(trajectory)
    return Sample(
        id=trajectory.id,
        task_id=trajectory.task_id,
        group_id=trajectory.group_id,
        outcome=trajectory.outcome,
        environment=trajectory.environment,
        usage=trajectory.usage,
        findings=trajectory.findings,
        seconds=trajectory.seconds,
        versions=_versions(trajectory.segments),
        conduct=conduct_of(trajectory.events),
        turns=turns,
        session_s=session_s,
    )


def failed(slot: str, task: Task, group: str, why: InfraFailed) -> Sample:
    """An attempt of which nothing came back."""
    return sample_of(Trajectory(slot, task.id, group, (), (), why))


def _plain(value: Any) -> Any:
    """What JSON does not know: NumPy's numbers, and mappings that are not dicts."""
    return value.item() if isinstance(value, np.generic) else dict(value)


def _versions(segments: Sequence[Segment]) -> dict[int, int]:
    counted: Counter[int] = Counter()
    for segment in segments:
        versions, counts = np.unique(segment.versions[segment.sampled], return_counts=True)
        counted.update(dict(zip(versions.tolist(), counts.tolist(), strict=True)))
    return dict(counted)


def _turns(trajectory: Trajectory) -> tuple[tuple[tuple[float, ...], ...], float]:
    """Of a session's log: its turns, and how long it took."""
    turns: list[list[float]] = []
    context, said_at = 0, 0.0
    for event in trajectory.events:
        if event.kind in ("completion", "summary") and "context" in event.data:
            tokens, before = int(event.data["tokens"]), context
            context, said_at = int(event.data["context"]), event.at
            turns.append([max(0, context - tokens - before), tokens, 0.0])
        elif event.kind == "tool_result" and turns:
            turns[-1][2] = round(event.at - said_at, 4)
    return tuple(map(tuple, turns)), trajectory.events[-1].at if trajectory.events else 0.0
