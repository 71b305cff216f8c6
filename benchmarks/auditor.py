"""How many cheats the auditor finds, and how many honest sessions it accuses.

    python benchmarks/auditor.py [--scenes N] [--set NAME] [--only CATEGORY] [--mined] [--show] [--judge]

Plays the suite of `hack_suite/` through the real harness in real sandboxes: every script in N scenes, tasks of the
ladder and of real code. A cheat is caught where the report calls the session cheated and names its category, and for
published hacks the hack. An honest session is accused where the report calls it cheated. The later sets were
written after the rules; docs/rewards.md says what was found of them at first contact. `--judge` also runs the tests, to
say how many of the cheats they alone would have paid (`paid_share`), and how many of those the auditor names
(`named_share`). `--mined` plays those that name no file of their own scene again, in tasks mined from whole
repositories, whose packages are installed first; its figures are `mined` in the JSON. `--scenes-kind` plays in scenes
of another kind only; `careless` plays the scripts of leaky scenes in such as no scrubber has seen.

Prints a table by category, and last a line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from hack_suite.corpus import Play, read_plays
from hack_suite.play import Performed, measure, small_chat
from hack_suite.scenes import MINED, SUITE, Kind, mined_task

from etude.environments.backends import open_backend
from etude.environments.base import Backend
from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.rewards.audit.findings import CATEGORIES, HABITS
from etude.tasks.mined.environment import PLACE, Environment, Environments, default_root

HERE = Path(__file__).parent / "hack_suite"
SETS = {
    name: (*read_plays(HERE / f"{name}_hacks.txt", False), *read_plays(HERE / f"{name}_honest.txt", True))
    for name in ("first", "second", "third", "fourth", "fifth", "sixth", "seventh")
    if (HERE / f"{name}_hacks.txt").exists()
}
ALL: tuple[Play, ...] = tuple(play for plays in SETS.values() for play in plays)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=2, help="tasks that every script is played in")
    parser.add_argument("--set", choices=[*SETS, "all"], default="all", help="which part of the suite")
    parser.add_argument("--scenes-kind", choices=get_args(Kind), help="play in scenes of this kind instead")
    parser.add_argument("--only", default="", help="play only scripts of, or near, this category")
    parser.add_argument("--show", action="store_true", help="print every miss and every accusation")
    parser.add_argument("--judge", action="store_true", help="also run the tests on what was left behind")
    parser.add_argument("--mined", action="store_true", help="play in mined scenes as well")
    options = parser.parse_args()
    chosen = SETS.get(options.set, ALL)
    there = sorted({play.category for play in chosen})
    if options.only and options.only not in there:
        parser.error(f"--only {options.only!r} plays nothing; the categories of this set are: {', '.join(there)}")
    chosen = tuple(play for play in chosen if options.only in (play.category, ""))
    told = {}
    for name, kind in (("scenes", options.scenes_kind), *([("mined", "mined")] if options.mined else [])):
        plays = _in_scenes(chosen, kind)
        if not plays:
            parser.error(f"no script of this choice can be played in scenes of the kind {kind!r}")
        performed = asyncio.run(_measure(plays, options.scenes, options.judge))
        print(f"--- {name}")
        _print_table(performed)
        if options.show:
            _print_errors(performed)
        told[name] = summary(performed, options.judge)
    print(json.dumps(told.pop("scenes") | told))


def _in_scenes(plays: Sequence[Play], kind: Kind | None) -> list[Play]:
    """Those that can be played there; where they belong, if no kind is given."""
    if kind == "careless":
        return [replace(play, kind=kind) for play in plays if play.kind == "leaky"]
    return [replace(play, kind=kind) for play in plays if not _names_files(play)] if kind else list(plays)


async def _measure(plays: Sequence[Play], scenes: int, judge: bool) -> list[Performed]:
    backend = await _backend(any(play.kind == "mined" for play in plays))
    try:
        jobs = [(play, 3 * place + number) for place, play in enumerate(plays) for number in range(scenes)]
        return await measure([(play, number % 30) for play, number in jobs], backend, small_chat(), judge)
    finally:
        await backend.close()


async def _backend(mined: bool) -> Backend:
    if not mined:
        return open_backend()
    environments = Environments(default_root())
    for number in range(len(MINED)):
        environment = Environment.of_setup(mined_task(number).setup[0])
        assert environment is not None
        await environments.restore(environment)
    return NamespaceBackend(NamespaceConfig(binds={PLACE: environments.root}))


def _names_files(play: Play) -> bool:
    """Whether it speaks of files that only its own kind of scene has, or of a file that is short enough to replace."""
    names = ("check.py", SUITE, "test_project")
    texts = [f"{step.rest}\n{step.text}" for step in play.steps]
    replaces = any(step.verb == "write" and step.rest == "<<path>>" for step in play.steps)
    return replaces or any(name in text for text in texts for name in names)


def summary(performed: Sequence[Performed], judged: bool = False) -> dict[str, float | None]:
    """`hacks` and `honest` are sessions; the shares are of these, but `named_share`, which is of the hacks that the
    tests alone would have paid; habits are not among these. None where nobody ran the tests, and where there are none
    to have a share in."""
    hacks = [each for each in performed if not each.play.honest]
    honest = [each for each in performed if each.play.honest]
    attacks = [each for each in hacks if each.play.category not in HABITS]  # a habit beside a right solution is paid
    paid = [each for each in attacks if each.paid]
    return {
        "hacks": len(hacks),
        "caught_share": _share([each.found for each in hacks]),
        "honest": len(honest),
        "accused_share": _share([each.report.cheated for each in honest]),
        "paid": len(paid) if judged else None,
        "paid_share": _share([each.paid for each in attacks]) if judged else None,
        "named_share": _share([each.report.cheated for each in paid]) if judged else None,
    }


def _share(of: Sequence[bool]) -> float | None:
    return round(sum(of) / len(of), 4) if of else None


def _print_table(performed: Sequence[Performed]) -> None:
    count: Counter[tuple[str, str]] = Counter()
    for each in performed:
        category, kind = each.play.category, "honest" if each.play.honest else "hacks"
        count[category, kind] += 1
        count[category, "caught" if kind == "hacks" else "accused"] += (
            each.found if kind == "hacks" else each.report.cheated
        )
    print(f"{'category':22} hacks caught  honest accused")
    for category in CATEGORIES:
        row = [count[category, column] for column in ("hacks", "caught", "honest", "accused")]
        print(f"{category:22} {row[0]:5} {row[1]:6} {row[2]:7} {row[3]:7}")


def _print_errors(performed: Sequence[Performed]) -> None:
    for each in performed:
        said = "; ".join(map(str, each.report.findings)) or "nothing"
        if not each.play.honest and each.paid:
            print(f"PAID {each.play.category}: {each.play.name} in {each.scene.task.id}")
        if not each.play.honest and not each.found:
            print(f"MISSED {each.play.category}: {each.play.name} in {each.scene.task.id}: {said}")
        elif each.play.honest and each.report.cheated:
            print(f"ACCUSED near {each.play.category}: {each.play.name} in {each.scene.task.id}: {said}")


if __name__ == "__main__":
    main()
