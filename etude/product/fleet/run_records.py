"""What agents side by side left, kept until it is no longer wanted.

Owns `Runs`, those of one repository, and `RunRecord`. A result is a commit below `refs/etude/results/RUN/AGENT` and a
line of the run's journal, both there as soon as the agent has ended, so that nothing which happens to the others or to
this process takes it away. The newest runs are kept; the refs of older ones go when the next run begins, and git clears
up what only they held. Ranks nothing and merges nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from etude.errors import CheckpointError, ConfigError
from etude.harness.cost import SessionCost
from etude.harness.fleet import Measurements, Ranked, Repository, Result, rank
from etude.harness.journal import Journal, whole_lines
from etude.harness.shadow import MAX_FILE_MB
from etude.plain import plain_line

REFS = "refs/etude/results"
KEPT_RUNS = 20


@dataclass(frozen=True)
class Done:
    """One agent that has ended: its task, what it left, and what that took."""

    entry: Ranked
    task: str
    session: str = ""
    """Of the store; empty where none was opened."""
    stop: str = ""
    """How its prompt ended; empty where it failed."""
    seconds: float = 0.0
    turns: int = 0
    spent: SessionCost = field(default_factory=SessionCost)

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def bad(self) -> bool:
        """Whether it failed, or a test says that what it did is wrong."""
        return bool(self.entry.error) or self.entry.marks.tests_pass is False

    @property
    def good(self) -> bool:
        """Whether it came to its end with a change that no test says is wrong."""
        return not self.bad and self.entry.result is not None and not self.entry.result.empty


@dataclass(frozen=True)
class RunRecord:
    """One run: its id, when it began, the task of each agent, and those that have ended."""

    id: str
    began: str
    start: str
    """The commit that all agents started from: the user's tree as it was."""
    tasks: Mapping[str, str]
    currency: str = "$"
    done: tuple[Done, ...] = ()
    left_out: tuple[str, ...] = ()
    """Files of the user's that were too large to be taken along."""

    @property
    def one_task(self) -> bool:
        """Whether all were given the same."""
        return len(set(self.tasks.values())) == 1

    def ranked(self) -> list[Done]:
        """Those that have ended, the best first."""
        by_name = {done.name: done for done in self.done}
        return [by_name[entry.name] for entry in rank([done.entry for done in sorted(self.done, key=_number)])]

    def best(self) -> Done | None:
        """The first of them, if it is good for something and all had the same task."""
        first = self.ranked()[:1]
        return first[0] if first and first[0].good and self.one_task else None

    def find(self, agent: str) -> Done:
        """By name or number. Raises ConfigError, which says whom there is."""
        name = f"agent-{agent}" if agent.isdigit() else agent
        for done in self.done:
            if done.name == name:
                return done
        ended = ", ".join(done.name for done in self.done) or "none"
        raise ConfigError(f"run {self.id} has no result of {name}; of its agents have ended: {ended}")


class Runs:
    """The runs of one repository. `home` is the session store's."""

    def __init__(self, home: Path, repository: Repository) -> None:
        digest = hashlib.sha256(os.fsencode(repository.root)).hexdigest()[:16]
        self._home, self._repository = home / "fleets" / f"{repository.root.name}-{digest}", repository

    async def begin(
        self, start: str, tasks: Mapping[str, str], currency: str, left_out: tuple[str, ...] = ()
    ) -> Recorder:
        """A new run's record. What is kept of old ones ends here."""
        now = datetime.now(UTC)
        name, began = f"{now:%Y%m%d-%H%M%S-%f}", now.isoformat(timespec="seconds")
        run = RunRecord(name, began, start, tasks, currency, left_out=left_out)
        recorder = Recorder(self._repository, run, Journal(self._home / f"{run.id}.jsonl"))
        await self._forget_old()
        return recorder

    def load(self, run_id: str | None = None) -> RunRecord:
        """A run by its id, or the newest. Raises ConfigError where there is no such."""
        ids = self._ids()
        if not ids:
            raise ConfigError(f"no agents have worked side by side on {self._repository.root} yet: --best-of, --fleet")
        if run_id is not None and run_id not in ids:
            raise ConfigError(f"there is no run {run_id}; there are {', '.join(ids[-5:])}")
        return _read(self._home / f"{run_id or ids[-1]}.jsonl")

    def _ids(self) -> list[str]:
        """Oldest first; those that were killed before they had begun are none."""
        return [path.stem for path in sorted(self._home.glob("*.jsonl")) if any(whole_lines(path))]

    async def _forget_old(self) -> None:
        paths = sorted(self._home.glob("*.jsonl"))
        kept = {path.stem for path in paths[-KEPT_RUNS:]}
        listed = (await self._repository.git("for-each-ref", "--format=%(refname)", f"{REFS}/")).decode().split()
        old = [ref for ref in listed if ref.removeprefix(f"{REFS}/").split("/")[0] not in kept]
        if old:
            given = "".join(f"delete {ref}\n" for ref in old).encode()
            await self._repository.git("update-ref", "--stdin", given=given)
        for path in paths[:-KEPT_RUNS]:
            path.unlink()


class Recorder:
    """Writes the record of a run while it goes on; close it at its end."""

    def __init__(self, repository: Repository, run: RunRecord, journal: Journal) -> None:
        self._repository, self._journal, self.run = repository, journal, run
        about = {"id": run.id, "began": run.began, "start": run.start, "tasks": dict(run.tasks)}
        self._write({**about, "currency": run.currency, "left_out": run.left_out})

    async def keep(self, done: Done) -> None:
        """From now on it outlives this process: the commit by its ref, and then the line that names it."""
        result = done.entry.result
        if result is not None and not result.empty:
            await self._repository.git("update-ref", f"{REFS}/{self.run.id}/{done.name}", result.commit)
        self._write({"done": asdict(done)})
        await self._journal.sync()
        self.run = replace(self.run, done=(*self.run.done, done))

    def close(self) -> None:
        self._journal.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        self._journal.append(json.dumps(line).encode())


def _read(path: Path) -> RunRecord:
    try:
        about, *rest = map(json.loads, whole_lines(path))
        done = tuple(_done(line["done"]) for line in rest)
        about["left_out"] = tuple(about.get("left_out", ()))
        return RunRecord(**about, done=done)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: is no record of a run ({error!r}); remove it") from None


def _done(data: Mapping[str, Any]) -> Done:
    entry = data["entry"]
    if kept := entry["result"]:
        kept["left_out"] = tuple(kept.get("left_out", ()))
    result = Result(**kept) if kept else None
    ranked = Ranked(entry["name"], result, Measurements(**entry["marks"]), entry["error"])
    rest = {key: value for key, value in data.items() if key not in ("entry", "spent")}
    return Done(ranked, spent=SessionCost(**data["spent"]), **rest)


def too_large(paths: Sequence[str]) -> str:
    """The words for files that are left out."""
    return f"files over {MAX_FILE_MB:g} MB: {plain_line(', '.join(paths))}"


def _number(done: Done) -> int:
    return int(done.name.rpartition("-")[2])
