"""What a run counts, and writes down as it goes.

Owns the counters that prove every enabled feature was used, one JSONL line a step, and the histories the live view
draws. Reads records and metrics; never decides anything.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

from etude.errors import UnusedFeature, WeightError
from etude.records import Group, InfraFailed, Scored, Trajectory, Truncated, reward_of, solved
from etude.rollouts.groups import GroupPool

HISTORY = 400


class RunStats:
    """Counters and histories of one run."""

    def __init__(self, path: Path, start: dict[str, Any] | None = None) -> None:
        self.path = path
        _mend(path)
        self.steps = int((start or {}).get("steps", 0))
        self.counters: Counter[str] = Counter((start or {}).get("counters", {}))
        self.ages: Counter[int] = Counter({int(age): n for age, n in (start or {}).get("ages", {}).items()})
        self.dropped: Counter[str] = Counter()
        self.history: deque[dict[str, Any]] = deque(maxlen=HISTORY)
        self.recent: deque[Trajectory] = deque(maxlen=128)
        self.roots: dict[int, str] = {}
        self.started = time.monotonic()

    @property
    def max_abs_dlogp(self) -> float | None:
        """The largest of the steps so far, None while no step had a matched token."""
        return max((line["max_abs_dlogp"] for line in self.history if line["max_abs_dlogp"] is not None), default=None)

    def state(self) -> dict[str, Any]:
        """What a resumed run goes on counting from."""
        return {"steps": self.steps, "counters": dict(self.counters), "ages": dict(self.ages)}

    def rolled_out(self, trajectory: Trajectory) -> None:
        """Count a finished rollout."""
        self.recent.append(trajectory)
        self.counters["rollouts"] += 1
        self.counters["infra_failed"] += isinstance(trajectory.outcome, InfraFailed)
        self.counters["truncated"] += isinstance(trajectory.outcome, Truncated)
        self.counters["solved"] += solved(trajectory.outcome)
        for name in ("turns", "tool_calls", "parallel_turns", "malformed_calls", "sampled_tokens", "observed_tokens"):
            self.counters[name] += trajectory.usage.get(name, 0)

    def stepped(self, groups: list[Group], metrics: dict[str, Any], pool: GroupPool) -> None:
        """Count an optimizer step and write its line."""
        members = [member for group in groups for member in group.trajectories]
        self.steps += 1
        self.roots[metrics["version"]] = metrics["root"]
        self.counters["trained_rollouts"] += len(members)
        self.counters["trained_tokens"] += int(metrics["trained_tokens"])
        self.counters["routes_replayed"] += int(metrics["routes_replayed"])
        self.counters["deltas_published"] += 1
        self.counters["delta_bytes_published"] += metrics["delta_bytes"]
        self._count_ages(members, metrics["version"] - 1)
        self.dropped.update({reason: n - self.dropped[reason] for reason, n in pool.dropped.items()})
        line = {
            **metrics,
            "step": self.steps,
            "elapsed_s": round(time.monotonic() - self.started, 2),
            "reward": sum(reward_of(member.outcome) or 0.0 for member in members) / len(members),
            **self._rates(),
            "ready_groups": len(pool.ready),
            "open_groups": len(pool.open),
            "dropped": dict(pool.dropped),
        }
        self.history.append(line)
        self.write("step", line)

    def _count_ages(self, members: list[Trajectory], trained_on: int) -> None:
        for member in members:
            for segment in member.segments:
                for version, tokens in Counter(segment.versions[segment.sampled].tolist()).items():
                    self.ages[trained_on - version] += tokens

    def _rates(self) -> dict[str, float]:
        """Over the rollouts that came in lately, whether their groups were trained on or not."""
        judged = [t for t in self.recent if isinstance(t.outcome, Scored | Truncated)]
        turns = sum(t.usage["turns"] for t in judged)
        return {
            "solve_rate": sum(solved(t.outcome) for t in judged) / max(1, len(judged)),
            "turns": turns / max(1, len(judged)),
            "parallel_share": sum(t.usage["parallel_turns"] for t in judged) / max(1, turns),
            "calls_per_turn": sum(t.usage["tool_calls"] for t in judged) / max(1, turns),
        }

    def swapped(self, loaded: dict[str, Any] | None, root: str) -> None:
        """Count a version an engine has taken up; its root must be the trainer's."""
        if loaded is None:
            self.counters["swaps_superseded"] += 1
            return
        if loaded["root"] != root:
            raise WeightError(f"version {loaded['version']}: the engine has root {loaded['root']}, the trainer {root}")
        self.counters["roots_verified"] += 1
        self.counters["deltas_applied"] += 1
        self.counters["delta_bytes_applied"] += loaded["bytes"]

    def write(self, kind: str, line: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        with self.path.open("a") as file:
            file.write(json.dumps({"kind": kind, **line}, default=float) + "\n")

    def prove_use(self, enabled: list[str], engine: dict[str, Any]) -> dict[str, Any]:
        """All counters with the engine's; raises UnusedFeature for an enabled feature that was never used."""
        names = (
            "session_cache_tokens",
            "prefix_hit_tokens",
            "decode_tokens",
            "prefill_tokens",
            "swaps",
            "in_flight_swaps",
        )
        counters = {**self.counters, **{name: int(engine.get(name, 0)) for name in names}}
        unused = [name for name in enabled if not counters.get(name)]
        if unused:
            raise UnusedFeature(
                f"enabled, but never used in this run: {', '.join(unused)}; see metrics.jsonl for when it ended"
            )
        ages = {str(age): tokens for age, tokens in sorted(self.ages.items())}
        return {**counters, "groups_dropped": dict(self.dropped), "age_tokens": ages}


def _mend(path: Path) -> None:
    """A run that was killed, or ran out of disk, may have left half a line."""
    text = path.read_text() if path.exists() else ""
    if text and not text.endswith("\n"):
        path.write_text(text[: text.rfind("\n") + 1])
