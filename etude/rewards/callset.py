"""Makes the two sets of real-code tasks that are judged by calls, and seals them.

    python -m etude.rewards.callset --out FILE        # again: the same text, where Python and the packages are the same

Owns the choice of functions, bugs and cases, all by hash, so that nobody chose what is easy. A bug counts when calls
tell it from the right function; every task has passed `rewards.validate`. Modules, not tasks, are dealt to the two
sets. Drawing calls is the work of `tasks.inside.explore`, in sandboxes without a network. Not needed at run time.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import hashlib
import lzma
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import structlog

from etude.environments.backends import open_backend
from etude.environments.base import Backend, SandboxSpec
from etude.errors import EtudeError
from etude.plain import say
from etude.rewards.callcard import write_card
from etude.rewards.pure import Found, functions_in, sources
from etude.rewards.validate import validate
from etude.tasks import realcalls
from etude.tasks.kept_out import STDLIB, Function, Print, print_of, prints_in
from etude.tasks.mutate import Mutation, mutations_of
from etude.tasks.realcalls import CallRecord, Case, Split, packed, task_of
from etude.tasks.realcode import real_records

SIZES: dict[Split, int] = {"eval": 60, "exam": 300}
EVAL_SHARE = 0.22
TRIES = 10
"""Bugs tried in one function."""
MOST_OF_PACKAGE, MOST_OF_MODULE = 40, 6
TRIED_OF_PACKAGE, TRIED_OF_MODULE = 60, 8
"""Functions that are tried, by hash."""
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
log = structlog.get_logger()


def split_of(module: str) -> Split:
    """The set of a module, on every machine."""
    return "eval" if int.from_bytes(_hash("split", module)[:8], "big") / 2**64 < EVAL_SHARE else "exam"


def _hash(*parts: object) -> bytes:
    return hashlib.sha256(" ".join(["etude real calls v1", *map(str, parts)]).encode()).digest()


def subjects(of_sources: Iterable[Iterable[Found]]) -> list[Found]:
    """Those that are tried: one of a name and body, wherever it is copied to, and none of the tested set."""
    taken = set(prints_in(real_records()))
    found = []
    for functions in of_sources:
        modules: Counter[str] = Counter()
        tried = 0
        for each in sorted(functions, key=lambda item: _hash(item.module, item.name)):
            mark = _mark(each)
            full = tried == TRIED_OF_PACKAGE or modules[each.module] == TRIED_OF_MODULE
            if not full and mark not in taken and _bugs(each):
                taken.add(mark)
                found.append(each)
                tried += 1
                modules[each.module] += 1
    return found


def _mark(found: Found) -> Print:
    body = ast.parse(found.files[found.path]).body
    return next(print_of(item)[0] for item in body if isinstance(item, Function) and item.name == found.name)


def _bugs(found: Found) -> dict[str, Mutation]:
    """Bugs to try, of as many templates as there are, in the order of a hash."""
    mutations = mutations_of(found.files[found.path], found.name)
    mutations.sort(key=lambda item: _hash(found.module, found.name, item.bug, item.line, item.wrong))
    seen: Counter[str] = Counter()
    ranked = []
    for mutation in mutations:
        seen[mutation.bug] += 1
        ranked.append((seen[mutation.bug], mutation))
    ranked.sort(key=lambda item: item[0])
    return {str(number): mutation for number, (_, mutation) in enumerate(ranked[:TRIES])}


async def explored(group: Sequence[Found], backend: Backend) -> list[tuple[list[Call], dict[str, str]]]:
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
    return [ast.literal_eval(line) for line in said.splitlines()]


def _request(found: Found) -> dict[str, Any]:
    text = found.files[found.path]
    return {
        "files": found.files, "module": found.module, "name": found.name, "path": found.path,
        "tops": sorted({path.split("/")[0].removesuffix(".py") for path in found.files}),
        "mutants": {number: bug.apply(text) for number, bug in _bugs(found).items()}, **found.told,
    }  # fmt: skip


def candidates(found: Found, calls: list[Call], judged: dict[str, str]) -> Iterator[CallRecord]:
    """A record for every bug that enough calls tell from the right function."""
    exact = [place for place, (_, value, _) in enumerate(calls) if _exact(found, value)]
    if len({calls[place][1] for place in exact}) < LEAST_VALUES:
        return
    source = found.source
    for number, bug in _bugs(found).items():
        flags = judged.get(number, "~")
        if "~" in flags:
            continue
        cases = _dealt(calls, flags, _usual(calls, exact)) or _dealt(calls, flags, exact)
        if cases is None:
            continue
        shown, hidden = cases
        yield CallRecord(
            split=split_of(found.module), package=source.package, version=source.version, licence=source.licence,
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
    given = {place: [type(each).__name__ for each in ast.literal_eval(calls[place][0])] for place in places}
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
                                for each in ast.walk(ast.parse(value))))  # fmt: skip


def choose(records: Sequence[CallRecord], split: Split, size: int) -> list[CallRecord]:
    """One record a function; templates, packages and modules as even as they come, ties by hash."""
    bugs: Counter[str] = Counter()
    homes: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    chosen: list[CallRecord] = []
    left = [record for record in records if record.split == split]
    while left and len(chosen) < size:
        best = min(
            left, key=lambda item: (bugs[item.bug], modules[item.module], homes[_home(item)] // 4, _hash(item.id))
        )
        chosen.append(best)
        bugs[best.bug] += 1
        homes[_home(best)] += 1
        modules[best.module] += 1
        left = [
            item for item in left
            if (item.module, item.function) != (best.module, best.function)
            and modules[item.module] < MOST_OF_MODULE and homes[_home(item)] < _most(item)
        ]  # fmt: skip
    return sorted(chosen, key=lambda item: _hash("order", item.id))


def _home(record: CallRecord) -> str:
    return record.package if record.package != STDLIB else f"{STDLIB} {record.home}"


def _most(record: CallRecord) -> int:
    return MOST_OF_PACKAGE if record.package != STDLIB else 2 * MOST_OF_MODULE


async def _sound(records: Sequence[CallRecord], backend: Backend) -> list[CallRecord]:
    gate = asyncio.Semaphore(CONCURRENT)

    async def one(record: CallRecord) -> bool:
        async with gate:
            found = await validate(task_of(record), backend)
        if not found.sound:
            log.info("given up", task=record.id, why=found.problems)
        return found.sound

    sound = await asyncio.gather(*map(one, records))
    return [record for record, fine in zip(records, sound, strict=True) if fine]


async def build(found: Sequence[Found], sizes: dict[Split, int]) -> list[CallRecord]:
    """The records of both sets, of these functions. What does not validate is replaced by the next choice."""
    backend = open_backend()
    gate = asyncio.Semaphore(CONCURRENT)

    async def gated(group: Sequence[Found]) -> list[CallRecord]:
        async with gate:
            answers = await explored(group, backend)
        log.info("explored", first=group[0].module, functions=len(group), with_calls=sum(bool(c) for c, _ in answers))
        return [record for each, answer in zip(group, answers, strict=True) for record in candidates(each, *answer)]

    try:
        groups = [found[at : at + AT_ONCE] for at in range(0, len(found), AT_ONCE)]
        records = [record for group in await asyncio.gather(*map(gated, groups)) for record in group]
        log.info("told apart", functions=len({(each.module, each.function) for each in records}), bugs=len(records))
        return await filled(records, sizes, backend)
    finally:
        await backend.close()


async def filled(records: Sequence[CallRecord], sizes: dict[Split, int], backend: Backend) -> list[CallRecord]:
    """The sets, one after the other; no function's name is in two. What does not validate is replaced by the next."""
    done: list[CallRecord] = []
    for split, size in sizes.items():
        names = {each.function for each in (*done, *real_records())}
        left = [record for record in records if record.function not in names]
        known: dict[str, bool] = {}
        while True:
            chosen = choose([record for record in left if known.get(record.id, True)], split, size)
            new = [record for record in chosen if record.id not in known]
            if not new:
                break
            sound = {record.id for record in await _sound(new, backend)}
            known |= {record.id: record.id in sound for record in new}
        done += chosen
    return done


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m etude.rewards.callset", description=__doc__)
    parser.add_argument("--constraints", type=Path, default=Path("constraints.txt"))
    parser.add_argument("--out", type=Path, default=Path(realcalls.__file__).parent / "data" / realcalls.DATA)
    options = parser.parse_args(arguments)
    try:
        records = asyncio.run(build(subjects(map(functions_in, sources(options.constraints))), SIZES))
    except EtudeError as error:
        say(str(error), sys.stderr)
        return 1
    text = packed(records)
    options.out.write_bytes(lzma.compress(text))
    write_card(records, options.out.parent)
    log.info("written", out=str(options.out), tasks=len(records), SHA256=hashlib.sha256(text).hexdigest())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
