"""What a run counts, and writes down as it goes.

Owns the counters that prove every enabled feature was used, one JSONL line a step, and the histories the live view
draws. Reads records and metrics; never decides anything.

A step's line has two parts: what the controller knows before it (`before_step`), which goes into the checkpoint, and
the trainer's metrics, saved beside it; so a run killed right after a step still counts it and writes its line. Its
version reaches the engines later, and has a line of its own then (`delivered`).
"""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.durable import write_whole
from etude.errors import WeightError
from etude.harness.conduct import habits
from etude.records import Cheated, InfraFailed, Scored, Truncated, Version, in_quarantine, reward_of, solved
from etude.rollouts.groups import DropReason, GroupPool
from etude.rollouts.lines import note, rows
from etude.rollouts.plan.rates import engine_line, rollout_line
from etude.rollouts.sample import Sample, SampleGroup
from etude.rollouts.slots import member_of

if TYPE_CHECKING:
    from etude.rollouts.links import Swap

HISTORY = 400
MOST_ENGINES = 64
"""Whose pauses are in a delivery's line one by one."""
_FROM_USAGE = (
    "turns", "tool_calls", "parallel_turns", "malformed_calls", "sampled_tokens", "observed_tokens", "summaries",
    "audited", "audit_failed", "cheats_found", "findings", "files_stripped", "quality_judged", "quality_faults",
    "planted", "planted_found", "verdicts_known", "own_parts", "own_parts_failed",
    "criteria_judged", "criteria_met", "criteria_not_judged", "overdue_calls", "checkpoints", "checkpoint_bytes",
    "checkpoint_ms", "memory_checkpoints", "taken_up", "turns_taken_up", "archived",
)  # fmt: skip
_FROM_ENGINE = (
    "session_cache_tokens", "prefix_hit_tokens", "decode_tokens", "prefill_tokens", "swaps", "in_flight_swaps",
    "low_precision_rows_sampled", "checks", "checks_of_the_step", "routed_positions",
    "engines_borrowed", "guessed_tokens", "guessed_right", "further_right",
)  # fmt: skip


class RunStats:
    """Counters and histories of one run."""

    def __init__(
        self, path: Path, saved: dict[str, Any] | None = None, last_step: dict[str, Any] | None = None
    ) -> None:
        """`saved` is a checkpoint's `state`, `last_step` the line of the step that made the checkpoint."""
        saved = saved or {}
        self.path = path
        self.steps = int(saved.get("steps", 0))
        self.counters: Counter[str] = Counter(saved.get("counters", {}))
        self.ages: Counter[int] = Counter(saved.get("ages", {}))
        self.dropped: dict[DropReason, int] = saved.get("dropped", {})
        """Groups."""
        self.max_abs_dlogp: float | None = saved.get("max_abs_dlogp")
        """The largest of the steps so far, None while no step had a matched token."""
        self.newest_published = int(saved.get("published", 0))
        """The newest version that was counted as published; the base, version 0, is none of a run's own."""
        self.development: dict[str, float] = saved.get("development", {})
        """`dev_pass1`, once something was evaluated beside training."""
        self._engine_before: Counter[str] = Counter(saved.get("engine", {}))
        self._engine_now: dict[str, int] = {}
        version = last_step["version"] if last_step else 0
        self.history: deque[dict[str, Any]] = deque(_mended(path, self.steps, version), maxlen=HISTORY)
        self.deliveries: deque[dict[str, Any]] = deque(maxlen=HISTORY)
        self.recent: deque[Sample] = deque(maxlen=128)
        """The last rollouts."""
        if last_step is not None:
            self.stepped(last_step)

    def state(self) -> dict[str, Any]:
        """What a resumed run goes on counting from."""
        return {
            "steps": self.steps, "counters": dict(self.counters), "ages": dict(self.ages), "dropped": self.dropped,
            "max_abs_dlogp": self.max_abs_dlogp, "published": self.newest_published,
            "engine": self._engine_counts(), "development": self.development,
        }  # fmt: skip

    def saw_engine(self, engine: Mapping[str, Any]) -> None:
        """What the engines of this life of the run have counted so far."""
        self._engine_now = {name: int(engine[name]) for name in _FROM_ENGINE if name in engine}

    def _engine_counts(self) -> dict[str, int]:
        """Over all lives, as far as they are known."""
        names = {**self._engine_before, **self._engine_now}
        return {name: self._engine_before[name] + self._engine_now.get(name, 0) for name in names}

    def rolled_out(self, sample: Sample) -> None:
        """Count a finished rollout."""
        self.recent.append(sample)
        self.counters["rollouts"] += 1
        self.counters["infra_failed"] += isinstance(sample.outcome, InfraFailed)
        self.counters["truncated"] += isinstance(sample.outcome, Truncated)
        self.counters["solved"] += solved(sample.outcome)
        if isinstance(sample.outcome, Scored | Truncated):
            self.counters["effort_charged"] += sample.outcome.parts.get("effort", 0.0) < 0
        for name in _FROM_USAGE:
            self.counters[name] += sample.usage.get(name, 0)
        of_policy = {} if sample.usage.get("planted") else sample.conduct.by_tool
        for name, calls in of_policy.items():
            self.counters[f"calls_of_{name}"] += calls
        self.write("rollout", rollout_line(sample))
        if in_quarantine(sample.outcome):
            self.counters["quarantined"] += 1
            told = {"rollout": sample.id, "task": sample.task_id, "planted": bool(sample.usage.get("planted"))}
            self.write("quarantined", told | {"evidence": sample.outcome.evidence})
        if sample.findings:
            said = {"rollout": sample.id, "task": sample.task_id, "findings": list(sample.findings)}
            self.write("findings", said)

    def before_step(
        self, groups: list[SampleGroup], pool: GroupPool, version: Version, elapsed_s: float
    ) -> dict[str, Any]:
        """The line of a step that trains `version` on these groups, as far as it is known before it."""
        members = [member for group in groups for member in group.samples]
        return {
            "step": self.steps + 1,
            "elapsed_s": round(elapsed_s, 2),
            "trained_rollouts": len(members),
            "groups": {group.id: [member_of(member.id) for member in group.samples] for group in groups},
            "slots": pool.slots.counts(),
            "reward": sum(reward_of(member.outcome) or 0.0 for member in members) / len(members),
            "parts": _mean_parts(members),
            **self._rates(),
            **self.development,
            "ready_groups": len(pool.ready),
            "open_groups": len(pool.open),
            "dropped": dict(pool.dropped),
            "age_tokens": _age_tokens(members, version),
        }

    def stepped(self, line: dict[str, Any]) -> None:
        """Count an optimizer step by its whole line, and write it."""
        self.steps = line["step"]
        for name in ("trained_rollouts", "trained_tokens", "routes_given"):
            self.counters[name] += int(line[name])
        for name in ("parity_tokens", "segments_trained", "summary_tokens_trained", "summary_tokens_masked"):
            self.counters[name] += int(line.get(name, 0))
        self.counters["steps_shortened"] += line.get("shortened", False)
        self.counters["low_precision_rows_trained"] += line.get("low_precision_rows_trained", 0)
        for name in ("publish_stall_ms", "snapshot_ms", "save_stall_ms"):
            self.counters[name] += line[name]
        self.counters.update(line["used"])
        self.ages.update(line["age_tokens"])
        self.dropped = line["dropped"]
        known = [value for value in (self.max_abs_dlogp, line["max_abs_dlogp"]) if value is not None]
        self.max_abs_dlogp = max(known, default=None)
        self.history.append(line)
        self.write("step", line)

    def evaluated_beside(self, line: dict[str, Any]) -> None:
        """What development tasks said of the policy, while training went on."""
        if line.get("played"):
            self.counters["evaluated_beside"] += line["played"]
            self.development = {"dev_pass1": line["solved"] / line["played"]}
        self.write("development", line)

    def step_lines(self) -> Iterator[dict[str, Any]]:
        """Of all steps, from the file."""
        with self.path.open() as file:
            for line in map(json.loads, file):
                if line["kind"] == "step":
                    yield line

    def _rates(self) -> dict[str, float | None]:
        """Over the rollouts that came in lately, whether their groups were trained on or not."""
        judged = [sample for sample in self.recent if isinstance(sample.outcome, Scored | Truncated)]
        conducts = [sample.conduct for sample in judged]
        turns, sessions = sum(t.usage["turns"] for t in judged), max(1, len(judged))
        edited = [conduct.looked for conduct in conducts if conduct.edited]
        calls = sum(conduct.calls for conduct in conducts)
        return {
            "solve_rate": sum(solved(t.outcome) for t in judged) / sessions,
            "turns": turns / sessions,
            "parallel_share": sum(t.usage["parallel_turns"] for t in judged) / max(1, turns),
            "calls_per_turn": sum(t.usage["tool_calls"] for t in judged) / max(1, turns),
            "sampled_tokens": sum(t.usage["sampled_tokens"] for t in judged) / sessions,
            "malformed_calls": sum(t.usage["malformed_calls"] for t in judged) / sessions,
            "errors": sum(t.usage["error_observations"] for t in judged) / sessions,
            "looks_before_edit": sum(edited) / max(1, len(edited)),
            "terminal_share": sum(conduct.in_terminal for conduct in conducts) / max(1, calls),
            **habits(conducts),
        }

    def published(self, publication: dict[str, Any]) -> None:
        """Count a version that is in the store; each once, however often it is told."""
        if publication["version"] > self.newest_published:
            self.newest_published = publication["version"]
            self.counters["deltas_published"] += 1
            self.counters["delta_bytes_published"] += publication["delta_bytes"]

    def swapped(self, publication: Mapping[str, Any], swaps: Iterable[Swap]) -> None:
        """Count what came of telling engines of a version; the root of each that took it up must be the trainer's."""
        for swap in swaps:
            loaded = swap.loaded
            if loaded is None:
                self.counters["swaps_lost" if swap.lost else "swaps_superseded"] += 1
                continue
            if loaded["root"] != publication["root"]:
                said = f"{swap.engine} has root {loaded['root']}, the trainer {publication['root']}"
                raise WeightError(f"version {loaded['version']}: {said}")
            self.counters["roots_verified"] += 1
            self.counters["deltas_applied"] += loaded["deltas"]
            self.counters["delta_bytes_applied"] += loaded["bytes"]
            self.counters["adapters_merged"] += loaded.get("adapters", 0)

    def delivered(self, publication: dict[str, Any], swaps: Iterable[Swap]) -> None:
        """A version has reached the engines; write its line. Of several engines, the slowest counts.

        `lag_ms` is from the end of its step, when its copy was made, until the engine held it: it is published and its
        checkpoint saved at the same time. `applied_GBps` are its bf16 weights over the pause between two decode steps
        in which they were put in.
        """
        taken = [swap for swap in swaps if swap.loaded is not None]
        if not taken:
            return
        pause_ms = max(swap.loaded["pause_ms"] for swap in taken if swap.loaded is not None)
        line = publication | {
            "pause_ms": pause_ms,
            "applied_GBps": publication["raw_bytes"] / max(pause_ms, 1e-6) / 1e6,
            "lag_ms": max(publication["publish_ms"], publication["saved_ms"])
            + 1000 * max(swap.seconds for swap in taken),
            "engines": {swap.engine: swap.loaded["pause_ms"] for swap in taken[:MOST_ENGINES] if swap.loaded},
        }
        self.deliveries.append(line)
        self.write("delivery", line)

    def delivery(self) -> dict[str, float | None]:
        """What publishing took of the trainer's time, and delivering of the engines': this life's latest versions."""

        def middle(name: str) -> float | None:
            values = [line[name] for line in self.deliveries]
            return statistics.median(values) if values else None

        return {
            "publish_stall_ms": self.counters["publish_stall_ms"],
            "snapshot_ms": self.counters["snapshot_ms"] / max(1, self.steps),
            "save_stall_ms": self.counters["save_stall_ms"],
            "publish_ms": middle("publish_ms"),
            "swap_pause_ms": middle("pause_ms"),
            "applied_GBps": middle("applied_GBps"),
            "lag_ms": middle("lag_ms"),
            "largest_lag_ms": max((line["lag_ms"] for line in self.deliveries), default=None),
        }

    def gauged(self, engine: dict[str, Any], elapsed_s: float) -> None:
        """Write down an engine's counters: what it takes for a token is learnt from their differences."""
        self.write("engine", engine_line(engine, elapsed_s))

    def write(self, kind: str, line: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        note(self.path, kind, line)

    def counted(self, engine: dict[str, Any]) -> dict[str, Any]:
        """All counters, with the engine's."""
        self.saw_engine(engine)
        return {
            **self.counters,
            **self._engine_counts(),
            "groups_dropped": self.dropped,
            "age_tokens": dict(sorted(self.ages.items())),
        }


def _mean_parts(members: list[Sample]) -> dict[str, float]:
    """What the mean reward is made of. A cheat's reward has no parts, and is a part of its own."""
    sums: defaultdict[str, float] = defaultdict(float)
    for member in members:
        match member.outcome:
            case Scored(parts=parts) | Truncated(parts=parts):
                for name, value in parts.items():
                    sums[name] += value
            case Cheated(reward=reward):
                sums["cheated"] += reward or 0.0  # in quarantine it is no member
    return {name: value / len(members) for name, value in sums.items()}


def _age_tokens(members: list[Sample], trained_on: Version) -> dict[str, int]:
    """How many sampled tokens are how many versions old."""
    ages: Counter[str] = Counter()
    for member in members:
        ages.update({str(trained_on - version): tokens for version, tokens in member.versions.items()})
    return dict(ages)


def _mended(path: Path, steps: int, version: int) -> list[dict[str, Any]]:
    """The step lines up to a step, after taking from the file what a killed run left beyond it: half a line when it
    ran out of disk, and steps and deliveries of versions that were not saved and will be made again.
    """
    whole = rows(path)
    again = {
        "step": lambda line: line["step"] > steps,
        "development": lambda line: line["step"] > steps,
        "delivery": lambda line: line["version"] > version,
    }
    kept = [line for line in whole if line["kind"] not in again or not again[line["kind"]](line)]
    if path.exists():
        write_whole(path, "".join(json.dumps(line) + "\n" for line in kept).encode())
    return [line for line in kept if line["kind"] == "step"]
