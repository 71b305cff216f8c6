"""Bugs in real functions that calls tell: draws calls in a sandbox, tries bugs on them, and deals them to a task.

    function ─► calls that are plain and exact ─► bugs that they tell ─► records: shown calls, hidden calls ─► sound?

Owns `explored`, `candidates` and `sound`, of which `rewards.callset` makes the sealed sets, and
`rewards.mining.calls` training tasks. All choices go by hash, so that nobody chose what is easy. Drawing calls is the
work of `tasks.inside.explore`, in sandboxes without a network.
"""

from __future__ import annotations

import ast
import asyncio
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any

import structlog

from etude import syntax
from etude.environments.base import Backend, SandboxSpec
from etude.records import Task
from etude.rewards.pure import Found
from etude.rewards.validate import validate
from etude.tasks.kept_out import Function, Print, print_of
from etude.tasks.mutate import Mutation, mutations_of
from etude.tasks.realcalls import CallRecord, Case, RecordSplit

TRIES = 10
"""Bugs tried in one function."""
SHOWN, HIDDEN = 4, 12
LEAST_FAILING, LEAST_VALUES = 4, 4
AT_ONCE = 12
"""Functions explored in one sandbox."""
CONCURRENT = 2
DEADLINE_S = 120.0
_RUN = "mkdir -p /logs; exec env PYTHONHASHSEED=1 python3 -s -S -B /tests/explore.py"
"""With one seed for hashes, to be the same again; `validate` then runs all it keeps with seeds of chance."""

Call = tuple[str, str, list[int]]
"""Arguments and value as Python writes them, and the lines of the function's module that were run."""
Explored = tuple[list[Call], dict[str, str]]
"""The calls of a function, and which of them each bug fails."""
log = structlog.get_logger()


def hash_of(*parts: object) -> bytes:
    return hashlib.sha256(" ".join(["etude real calls v1", *map(str, parts)]).encode()).digest()


def mark_of(found: Found) -> Print:
    """By which a copy is known, wherever it is."""
    body = syntax.parse(found.files[found.path]).body
    return next(print_of(item)[0] for item in body if isinstance(item, Function) and item.name == found.name)


def bugs_of(found: Found) -> dict[str, Mutation]:
    """Bugs to try, of as many templates as there are, in the order of a hash."""
    mutations = mutations_of(found.files[found.path], found.name)
    mutations.sort(key=lambda item: hash_of(found.module, found.name, item.bug, item.line, item.wrong))
    seen: Counter[str] = Counter()
    ranked = []
    for mutation in mutations:
        seen[mutation.bug] += 1
        ranked.append((seen[mutation.bug], mutation))
    ranked.sort(key=lambda item: item[0])
    return {str(number): mutation for number, (_, mutation) in enumerate(ranked[:TRIES])}


async def explored(group: Sequence[Found], backend: Backend) -> list[Explored]:
    """Of every function the calls, and which of them each bug fails."""
    lines = "\n".join(repr(_request(found)) for found in group)
    sandbox = await backend.create(SandboxSpec({}))
    try:
        await sandbox.write_file("/tests/request", lines.encode())
        await sandbox.write_file("/tests/explore.py", (files("etude.tasks") / "inside" / "explore.py").read_bytes())
        done = await sandbox.exec(_RUN, timeout_s=DEADLINE_S)
        if done.exit_code != 0 and len(group) == 1:
            log.info(
                "given up",
                module=group[0].module,
                function=group[0].name,
                why=done.output[-200:] or "its process was ended",
            )
            return [([], {})]
        if done.exit_code != 0:  # one of them takes the process with it, by its memory or by a wait in C
            return [answer for each in group for answer in await explored([each], backend)]
        said = (await sandbox.read_file("/logs/explored", 64 << 20)).decode()
    finally:
        await sandbox.destroy()
    return [syntax.literal(line) for line in said.splitlines()]


def _request(found: Found) -> dict[str, Any]:
    text = found.files[found.path]
    return {
        "files": found.files, "module": found.module, "name": found.name, "path": found.path,
        "tops": sorted({path.split("/")[0].removesuffix(".py") for path in found.files}),
        "mutants": {number: bug.apply(text) for number, bug in bugs_of(found).items()}, **found.told,
    }  # fmt: skip


def candidates(found: Found, answer: Explored, split: RecordSplit) -> Iterator[CallRecord]:
    """A record for every bug that enough calls tell from the right function."""
    calls, judged = answer
    exact = [place for place, (_, value, _) in enumerate(calls) if _exact(found, value)]
    if len({calls[place][1] for place in exact}) < LEAST_VALUES:
        return
    source = found.source
    for number, bug in bugs_of(found).items():
        flags = judged.get(number, "~")
        if "~" in flags:
            continue
        cases = _dealt(calls, flags, _usual(calls, exact)) or _dealt(calls, flags, exact)
        if cases is None:
            continue
        shown, hidden = cases
        yield CallRecord(
            split=split, package=source.package, version=source.version, licence=source.licence,
            home=source.home, function=found.name, path=found.path, bug=bug.bug, line=bug.line, right=bug.right,
            wrong=bug.wrong, files=found.files, shown=_cases(calls, shown), hidden=_cases(calls, hidden),
        )  # fmt: skip


def _dealt(calls: list[Call], flags: str, places: list[int]) -> tuple[list[int], list[int]] | None:
    """Of these calls those that are shown and those that are hidden; None where there are too few."""
    failing = [place for place in places if flags[place] == "x"]
    passing = [place for place in places if flags[place] == "="]
    if len(failing) < LEAST_FAILING or len(places) < SHOWN + HIDDEN // 2:
        return None
    shown = [*sorted(failing, key=lambda place: len(calls[place][0]))[:2], *_various(calls, passing)[: SHOWN - 2]]
    rest = [[place for place in side if place not in shown] for side in (failing, passing)]
    wrong, right = (_various(calls, side) for side in rest)
    return shown, [*wrong[: HIDDEN - min(len(right), HIDDEN // 3)], *right][:HIDDEN]


def _usual(calls: list[Call], places: list[int]) -> list[int]:
    """The calls whose arguments are all of the type that is most often there, or None: a function that takes anything
    with a length is mostly meant for one kind of thing."""
    given = {place: [type(each).__name__ for each in syntax.literal(calls[place][0])] for place in places}
    longest = max(map(len, given.values()))
    at = [Counter(types[n] for types in given.values() if n < len(types) and types[n] != "NoneType")
          for n in range(longest)]  # fmt: skip
    usual = [max(sorted(each), key=each.__getitem__) if each else "" for each in at]
    return [place for place, types in given.items()
            if all(name in ("NoneType", usual[n]) for n, name in enumerate(types))]  # fmt: skip


def _various(calls: list[Call], places: list[int]) -> list[int]:
    """In an order in which the first run as many lines, and have as many values, as can be."""
    left, ordered, lines, values = list(places), [], set(), set()
    while left:
        best = max(left, key=lambda place: (len(set(calls[place][2]) - lines), calls[place][1] not in values, -place))
        left.remove(best)
        ordered.append(best)
        lines |= set(calls[best][2])
        values.add(calls[best][1])
    return ordered


def _cases(calls: list[Call], places: list[int]) -> tuple[Case, ...]:
    return tuple((calls[place][0], calls[place][1]) for place in places)


def _exact(found: Found, value: str) -> bool:
    """Not what a C library rounds, which another machine may do otherwise."""
    text = found.files[found.path]
    rounded = "math" in text or "**" in text or "pow(" in text or "%" in value
    return not (rounded and any(isinstance(each, ast.Constant) and isinstance(each.value, float)
                                for each in ast.walk(syntax.parse(value))))  # fmt: skip


async def sound(tasks: Sequence[Task], backend: Backend) -> set[str]:
    """The ids of those that validate."""
    gate = asyncio.Semaphore(CONCURRENT)

    async def one(task: Task) -> bool:
        async with gate:
            found = await validate(task, backend)
        if not found.sound:
            log.info("given up", task=task.id, why=found.problems)
        return found.sound

    fine = await asyncio.gather(*map(one, tasks))
    return {task.id for task, is_sound in zip(tasks, fine, strict=True) if is_sound}
