"""Makes training tasks of real functions: one line of a function is broken, and calls judge whether it was mended.

    directories ─► functions, less what is kept out ─► calls that are plain ─► bugs that they tell ─► sound? ─► Harbor

Owns `generate_calls` and `training_task`. The tasks are of the kind of the evaluation's real code (`tasks.realcalls`),
and nothing of that is in them (`rewards.mining.functions`), nor any kind of bug that is held out. In each task the
package has a name of its own (`tasks.renamed`): who practises on thirty packages learns their names by heart, and does
not learn to copy a path. Every function that was tried is in a journal before the next is, so that a killed run goes
on; the same seed makes the same tasks.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from etude.durable import write_whole
from etude.environments.base import Backend
from etude.records import Limits, Task
from etude.rewards.called import AT_ONCE, Explored, candidates, explored, hash_of, sound
from etude.rewards.mining.functions import functions_of
from etude.rewards.mining.journal import Decision, Journal
from etude.rewards.pure import Found, Refused
from etude.tasks.harbor import write_task
from etude.tasks.holdout import is_held_out
from etude.tasks.realcalls import CallRecord, task_of
from etude.tasks.renamed import renamed

LIMITS = Limits(max_turns=14, max_context_tokens=4096, max_sampled_tokens=1536)
"""The evaluation's turns, with room for a published model's tokens: in those of SmolLM2 its prompt, a function and five
tries are about 2,000, half of them said by the player."""
PER_FUNCTION = 2
"""Tasks of one function at most, each with another kind of bug."""
NO_CALLS = "too few calls give a plain value"
NOT_TOLD = "no bug that enough calls tell"
NOT_SOUND = "not sound"


@dataclass(frozen=True)
class CallsMade:
    """What came of it: how many functions were looked at, why so many of them make no task, and the tasks."""

    functions: int
    refused: dict[str, int]
    tasks: tuple[str, ...]
    bugs: dict[str, int]
    sandbox_s: float

    def lines(self, asked: int) -> list[str]:
        """For people, of whom so many tasks were wanted."""
        told = [f"{self.functions:6d} functions looked at", *(f"{-n:6d} {why}" for why, n in self.refused.items())]
        kinds = ", ".join(f"{kind} {count}" for kind, count in self.bugs.items())
        told.append(f"{len(self.tasks):6d} tasks, {self.sandbox_s:.0f} s of sandboxes: {kinds}")
        fewer = f"fewer than the {asked} that were asked for, and no function is left; name more directories of source"
        return [*told, fewer] if len(self.tasks) < asked else told


def training_task(record: CallRecord) -> Task:
    """A task to learn from."""
    task = task_of(record)
    facts = {key: task.provenance[key] for key in ("package", "function", "path", "bug", "old", "new", "protected")}
    name = f"calls-{record.module}-{record.function}-{record.bug}-{record.line}"
    return replace(task, id=name, split="train", limits=LIMITS, provenance={"family": "calls", **facts})


async def generate_calls(
    directories: Sequence[Path],
    out: Path,
    backend: Backend,
    *,
    count: int,
    seed: int = 0,
    jobs: int = 2,
    progress: Callable[[int, int, Decision | None], None] = lambda done, of, decision: None,
) -> CallsMade:
    """Write Harbor directories below `out` until it has `count` tasks, or there are no more functions; what is there
    already is not made again. Raises ConfigError for a directory without Python source, or another run's `out`."""
    functions = functions_of(directories, seed)
    asked = {"calls_of": sorted(str(each.resolve()) for each in directories), "seed": seed}
    journal = Journal(out / "journal.jsonl", asked)
    try:
        for torn in out.glob(".writing-*"):  # by a run that was killed
            shutil.rmtree(torn)
        maker = _Maker(out, backend, journal, count)
        async with aclosing(maker.explored(functions, jobs)) as groups:
            async for group, answers, spent in groups:
                for decision in await maker.decide(group, answers, spent):
                    progress(len(maker.tasks), count, decision)
        made = maker.made()
        write_whole(out / "report.json", (json.dumps(asdict(made), indent=1) + "\n").encode())
        return made
    finally:
        journal.close()


Group = tuple[list[Found], list[Explored], float]


class _Maker:
    def __init__(self, out: Path, backend: Backend, journal: Journal, count: int) -> None:
        self.out, self.backend, self.journal, self.count = out, backend, journal, count
        self.refused: Counter[str] = Counter()
        """By why, of what was never tried: it is found again each time, for parsing is cheap."""
        self.functions = 0
        whole = journal.decisions  # of a function whose own line is missing, nothing is known
        known = [each for name, each in whole.items() if each.task and name.partition("#")[0] in whole]
        self.tasks = [each.task for each in known if each.task]
        self.bugs = Counter(each.detail for each in known)

    async def explored(self, functions: Iterator[Found | Refused], jobs: int) -> AsyncGenerator[Group]:
        """Functions that were not decided yet, with their calls, in order; some groups are explored at once."""
        under_way: deque[tuple[list[Found], asyncio.Task[tuple[list[Explored], float]]]] = deque()
        fresh = self._fresh(functions)
        try:
            while len(self.tasks) < self.count:
                while len(under_way) < jobs and (group := list(itertools.islice(fresh, AT_ONCE))):
                    under_way.append((group, asyncio.create_task(self._timed(group))))
                    await asyncio.sleep(0)  # parsing holds up all else
                if not under_way:
                    return
                group, explores = under_way.popleft()
                yield group, *(await explores)
        finally:
            for _, explores in under_way:
                explores.cancel()
            await asyncio.gather(*(explores for _, explores in under_way), return_exceptions=True)

    def _fresh(self, functions: Iterator[Found | Refused]) -> Iterator[Found]:
        for each in functions:
            self.functions += 1
            if isinstance(each, Refused):
                self.refused[each.why] += 1
            elif _key(each) not in self.journal.decisions:
                yield each

    async def _timed(self, group: Sequence[Found]) -> tuple[list[Explored], float]:
        started = time.monotonic()
        return await explored(group, self.backend), time.monotonic() - started

    async def decide(self, group: Sequence[Found], answers: Sequence[Explored], spent: float) -> list[Decision]:
        """Tasks on disk, and lines of the journal: a function's own is the last of its lines. Ends with `count`."""
        started, planned = time.monotonic(), self.bugs.copy()
        chosen = [_chosen(candidates(*each, "train"), planned) for each in zip(group, answers, strict=True)]
        tasks = {record.id: training_task(renamed(record)) for records in chosen for record in records}
        fine, told = await sound(list(tasks.values()), self.backend), list[Decision]()
        share = round((spent + time.monotonic() - started) / len(group), 3)
        for found, answer, records in zip(group, answers, chosen, strict=True):
            if not (room := self.count - len(self.tasks)):
                break
            kept = [record for record in records if tasks[record.id].id in fine][:room]
            for record in kept:
                await asyncio.to_thread(self._write, tasks[record.id])
            for number, record in reversed([*enumerate(kept)]):
                name = f"{_key(found)}#{number}" if number else _key(found)
                about = (tasks[record.id].id, None, record.bug, 0.0 if number else share, len(record.hidden))
                told.append(self._noted(Decision(name, *about)))
            if not kept:
                why = NOT_SOUND if records else NOT_TOLD if answer[0] else NO_CALLS
                told.append(self._noted(Decision(_key(found), None, why, sandbox_s=share)))
        return told

    def _noted(self, decision: Decision) -> Decision:
        self.journal.add(decision)
        if decision.task:
            self.tasks.append(decision.task)
            self.bugs[decision.detail] += 1
        return decision

    def _write(self, task: Task) -> None:
        directory = self.out / task.id
        if directory.exists():  # a run was killed between this and its line in the journal
            shutil.rmtree(directory)
        write_task(task, directory)

    def made(self) -> CallsMade:
        decided = self.journal.decisions.values()
        refused = self.refused + Counter(each.reason for each in decided if each.reason)
        spent = round(sum(each.sandbox_s for each in decided), 3)
        kinds = {kind: count for kind, count in self.bugs.most_common() if count}
        return CallsMade(self.functions, dict(refused.most_common()), tuple(sorted(self.tasks)), kinds, spent)


def _chosen(records: Iterable[CallRecord], bugs: Counter[str]) -> list[CallRecord]:
    """Kinds of bugs as even as they come; `bugs` counts them."""
    left = [record for record in records if not is_held_out("bug", record.bug)]
    chosen: list[CallRecord] = []
    while left and len(chosen) < PER_FUNCTION:
        best = min(left, key=lambda record: (bugs[record.bug], hash_of(record.id)))
        chosen.append(best)
        bugs[best.bug] += 1
        left = [record for record in left if record.bug != best.bug]
    return chosen


def _key(found: Found) -> str:
    return f"{found.module}.{found.name}"
