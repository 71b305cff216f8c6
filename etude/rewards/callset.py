"""Makes the two sets of real-code tasks that are judged by calls, and seals them.

    python -m etude.rewards.callset --out FILE        # again: the same text, where Python and the packages are the same

Owns the choice of functions and bugs, all by hash, so that nobody chose what is easy; drawing calls and trying bugs is
`rewards.called`. Every task has passed `rewards.validate`. Modules, not tasks, are dealt to the two sets. Not needed at
run time.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import lzma
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import structlog

from etude.environments.backends import open_backend
from etude.environments.base import Backend
from etude.errors import EtudeError
from etude.plain import say
from etude.rewards.callcard import write_card
from etude.rewards.called import AT_ONCE, CONCURRENT, bugs_of, candidates, explored, hash_of, mark_of, sound
from etude.rewards.pure import Found, functions_in, sources
from etude.tasks import realcalls
from etude.tasks.kept_out import STDLIB, prints_in
from etude.tasks.realcalls import CallRecord, Split, packed, task_of
from etude.tasks.realcode import real_records

SIZES: dict[Split, int] = {"eval": 60, "exam": 300}
EVAL_SHARE = 0.22
MOST_OF_PACKAGE, MOST_OF_MODULE = 40, 6
TRIED_OF_PACKAGE, TRIED_OF_MODULE = 60, 8
"""Functions that are tried, by hash."""
log = structlog.get_logger()


def split_of(module: str) -> Split:
    """The set of a module, on every machine."""
    return "eval" if int.from_bytes(hash_of("split", module)[:8], "big") / 2**64 < EVAL_SHARE else "exam"


def subjects(of_sources: Iterable[Iterable[Found]]) -> list[Found]:
    """Those that are tried: one of a name and body, wherever it is copied to, and none of the tested set."""
    taken = {found for _, found in prints_in(real_records())}
    found = []
    for functions in of_sources:
        modules: Counter[str] = Counter()
        tried = 0
        for each in sorted(functions, key=lambda item: hash_of(item.module, item.name)):
            mark = mark_of(each)
            full = tried == TRIED_OF_PACKAGE or modules[each.module] == TRIED_OF_MODULE
            if not full and mark not in taken and bugs_of(each):
                taken.add(mark)
                found.append(each)
                tried += 1
                modules[each.module] += 1
    return found


def choose(records: Sequence[CallRecord], split: Split, size: int) -> list[CallRecord]:
    """One record a function; templates, packages and modules as even as they come, ties by hash."""
    bugs: Counter[str] = Counter()
    homes: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    chosen: list[CallRecord] = []
    left = [record for record in records if record.split == split]
    while left and len(chosen) < size:
        best = min(
            left, key=lambda item: (bugs[item.bug], modules[item.module], homes[_home(item)] // 4, hash_of(item.id))
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
    return sorted(chosen, key=lambda item: hash_of("order", item.id))


def _home(record: CallRecord) -> str:
    return record.package if record.package != STDLIB else f"{STDLIB} {record.home}"


def _most(record: CallRecord) -> int:
    return MOST_OF_PACKAGE if record.package != STDLIB else 2 * MOST_OF_MODULE


async def build(found: Sequence[Found], sizes: dict[Split, int]) -> list[CallRecord]:
    """The records of both sets, of these functions. What does not validate is replaced by the next choice."""
    backend = open_backend()
    gate = asyncio.Semaphore(CONCURRENT)

    async def gated(group: Sequence[Found]) -> list[CallRecord]:
        async with gate:
            answers = await explored(group, backend)
        log.info("explored", first=group[0].module, functions=len(group), with_calls=sum(bool(c) for c, _ in answers))
        return [
            record
            for each, answer in zip(group, answers, strict=True)
            for record in candidates(each, answer, split_of(each.module))
        ]

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
            fine = await sound([task_of(record) for record in new], backend)
            known |= {record.id: record.id in fine for record in new}
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
