"""What a run of mining or generating has decided, on disk: one line a commit or proposal, so that a killed run goes on.

Owns `Journal` and the `Funnel` that is reported. The first line says what was asked for; another question needs another
directory. A line that was torn by a kill is cut off, and its commit decided again.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from etude.durable import append_whole, cut, naming
from etude.errors import ConfigError
from etude.host.lock import hold
from etude.made_by import require_same
from etude.tasks.mined.split import Reason


@dataclass(frozen=True)
class Decision:
    """On one commit, or one proposal: a task's id, or the reason why there is none. `sandbox_s`: what its runs took;
    `unseen`: how many calls it asks beside its tests."""

    commit: str
    task: str | None
    reason: str | None
    detail: str = ""
    sandbox_s: float = 0.0
    unseen: int = 0


class Journal:
    """Append-only; open in one process at a time. Close it."""

    def __init__(self, path: Path, asked: Mapping[str, Any]) -> None:
        """Raises ConfigError where another process has it, or it holds the answers to another question."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = open(path, "a+b", buffering=0)  # noqa: SIM115  # it lives as long as this object
        try:
            hold(self._file.fileno())
        except BlockingIOError as error:
            self._file.close()
            raise ConfigError(
                f"{path}: another process mines into this directory ({error.strerror}); wait for it"
            ) from None
        self.decisions = self._read(path, dict(asked))

    def add(self, decision: Decision) -> None:
        """Noted, and on disk when this returns."""
        self._write(asdict(decision))
        self.decisions[decision.commit] = decision

    def close(self) -> None:
        self._file.close()

    def _read(self, path: Path, asked: dict[str, Any]) -> dict[str, Decision]:
        self._file.seek(0)
        whole, end, _ = self._file.read().rpartition(b"\n")
        cut(self._file.fileno(), len(whole) + len(end), path)
        lines = whole.splitlines()
        if not lines:
            self._write(asked)
            return {}
        try:
            first, *rest = (json.loads(line) for line in lines)
            found = [Decision(**line) for line in rest]
        except (ValueError, TypeError):
            raise ConfigError(f"{path}: not a journal of mining; remove it, or name another directory") from None
        require_same(path, first, asked)
        return {decision.commit: decision for decision in found}

    def _write(self, line: Mapping[str, Any]) -> None:
        append_whole(self._file.fileno(), json.dumps(line).encode() + b"\n", self._path)
        with naming(self._path):
            os.fsync(self._file.fileno())


@dataclass(frozen=True)
class Funnel:
    """How many commits were looked at, how many were dropped for each reason, and the tasks that were kept."""

    commits: int
    dropped: dict[str, int]
    kept: tuple[str, ...]
    undecided: dict[str, str]
    """Commits on which our own machinery failed, with what it said; to be tried again."""
    sandbox_s: float
    tests_alone: int
    """How many of the kept tasks ask no unseen calls, so that their tests alone decide."""

    def lines(self, what: str = "commits with one parent") -> list[str]:
        """For people: what was left after each reason, in the order in which they are looked at."""
        left = self.commits
        told = [f"{left:6d} {what}"]
        for reason, count in self.dropped.items():
            left -= count
            told.append(f"{-count:6d} {reason:<32}{left:6d} left")
        told += [f"{-1:6d} undecided: {commit[:12]} {why}" for commit, why in self.undecided.items()]
        told += [f"{len(self.kept):6d} tasks kept, {self.sandbox_s:.0f} s of sandboxes"]
        if not self.kept and self.dropped.get("no tests"):
            return [*told, "no tests: a commit has to change files that pytest finds by name, test_*.py or *_test.py"]
        return [
            *told,
            f"{self.tests_alone:6d} of them are judged by the repository's own tests only (no hidden checks)",
        ]


def funnel(decisions: Mapping[str, Decision], undecided: Mapping[str, str]) -> Funnel:
    """The report of a run."""
    counted = Counter(decision.reason for decision in decisions.values())
    dropped = {reason: counted[reason] for reason in get_args(Reason) if counted[reason]}
    kept = tuple(sorted(decision.task for decision in decisions.values() if decision.task))
    spent = sum(decision.sandbox_s for decision in decisions.values())
    alone = sum(decision.task is not None and not decision.unseen for decision in decisions.values())
    return Funnel(len(decisions) + len(undecided), dropped, kept, dict(undecided), round(spent, 3), alone)
