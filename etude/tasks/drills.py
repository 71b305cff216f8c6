"""Dense exercises for mid-training: single skills of the ladder, many to a document.

Owns five kinds of drill, all made from training shapes, bugs and words only: *repair* (a file with several broken
functions, an edit for each), *locate* (what the check names), *trace* (from a failing check to the definition), *tries*
(what no comment tells, one plausible mend after the other) and *code* (right functions as plain text). None knows what
a player could not know. Identifiers are often made up, and shapes are often put together at random
(`compose`), so that names and lines must be copied and not recalled. No sandbox runs here: a drill is written, not
recorded; sessions are recorded by the expert through the real harness.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from etude.harness.prompt import render_calls, render_result, render_results
from etude.tasks.check import printed_failure
from etude.tasks.compose import number_shape, random_shape
from etude.tasks.expert import WINDOW
from etude.tasks.generated import changed_line, define
from etude.tasks.grammar import (
    CHOICES,
    Function,
    break_it,
    bug_names,
    draw_arguments,
    from_shape,
    make_function,
    mends,
    with_slot,
)
from etude.tasks.hunt import UNTOLD
from etude.tasks.scripted import FAREWELL, RUN_CHECK, Call, Mend, edits_between
from etude.tasks.words import training_name

Role = Literal["user", "assistant", "observation", "text"]
Script = list[tuple[Role, str]]
"""A document before it is turned into token ids: what the user, the model and the tools say, or plain text."""

RANDOM_SHARE = 0.5
"""Functions of a random shape; the others have one of the ladder's."""
MOST_TRIED = 6
"""Mends in one drill of tries."""


def drill(seed: int, index: int) -> Script:
    """The drill of that seed and index, the same on every machine; there is one for every index."""
    rng = random.Random(f"etude drills v2 {seed} {index}")
    kinds: list[Callable[[random.Random], Script]] = [repair, locate, trace, tries, code]
    [kind] = rng.choices(kinds, weights=(4, 4, 2, 3, 2))
    return kind(rng)


def repair(rng: random.Random) -> Script:
    """Read a file, mend every broken function in it."""
    path = f"{training_name(rng)}.py"
    specimens = [_specimen(rng, broken=rng.random() < 0.6) for _ in range(rng.randint(1, 6))]
    text = "\n".join(specimen.shown.render() for specimen in specimens)
    edits: list[Call] = [("edit_file", {"path": path, "old": s.old, "new": s.new}) for s in specimens if s.old]
    if not edits or any(text.count(arguments["old"]) != 1 for _, arguments in edits):
        return repair(rng)
    return [
        ("user", f"Fix every bug in {path}."),
        ("assistant", render_calls([_read(path)])),
        ("observation", render_result(text)),
        ("assistant", render_calls(edits)),
        ("observation", render_results("ok" for _ in edits)),
        ("assistant", FAREWELL),
    ]


def locate(rng: random.Random) -> Script:
    """A file with one to three broken functions; the check names one of them after the other."""
    path = f"{training_name(rng)}.py"
    targets = [_specimen(rng, broken=True) for _ in range(rng.randint(1, 3))]
    others = [_specimen(rng, broken=False) for _ in range(rng.randint(0, 4))]
    text = "\n".join(s.shown.render() for s in rng.sample([*targets, *others], len(targets) + len(others)))
    seen = [said for target in targets if (said := _failure(rng, target)) and text.count(target.old) == 1]
    if len(seen) < len(targets):
        return locate(rng)
    script: Script = [("user", f"python3 check.py fails: there is a bug in {path}. Fix it.")]
    opening = [(RUN_CHECK, seen[0]), (_read(path), text)]
    rng.shuffle(opening)
    script.append(("assistant", render_calls([call for call, _ in opening])))
    script.append(("observation", render_results([result for _, result in opening])))
    for target, result in zip(targets, [*seen[1:], "passed"], strict=True):
        edit = ("edit_file", {"path": path, "old": target.old, "new": target.new})
        script.append(("assistant", render_calls([edit, RUN_CHECK])))
        script.append(("observation", render_results(["ok", result])))
    return [*script, ("assistant", FAREWELL)]


def tries(rng: random.Random) -> Script:
    """A function whose comment does not tell what is right, or not all of it: plausible mends in any order, until the
    check passes."""
    path, hunted = f"{training_name(rng)}.py", rng.random() < 0.6
    good, broken, forms = _untold(rng) if hunted else _vague(rng)
    others = [_specimen(rng, broken=False).good for _ in range(rng.randint(0, 2))]
    text = "\n".join(function.render() for function in rng.sample([broken, *others], 1 + len(others)))
    seen = _failing(rng, good, [broken, *forms], sizes=hunted)
    ways = [Mend(*changed_line(broken, form)) for form in forms]
    if seen is None or any(text.count(way.old) != 1 or way.new in text for way in ways):
        return tries(rng)
    script: Script = [
        ("user", f"python3 check.py fails: there is a bug in {path}. Fix it."),
        ("assistant", render_calls([RUN_CHECK, _read(path)])),
        ("observation", render_results([seen[0], text])),
    ]
    applied = None
    for way, result in zip(ways, seen[1:], strict=True):
        edits = edits_between(path, applied, way)
        script.append(("assistant", render_calls([*edits, RUN_CHECK])))
        script.append(("observation", render_results(["ok" for _ in edits] + [result])))
        applied = way
    return [*script, ("assistant", FAREWELL)]


def _vague(rng: random.Random) -> tuple[Function, Function, list[Function]]:
    """A function, its broken form, and every other operator for the one that the comment leaves open, the right one
    last."""
    while True:
        good = _function(rng, vague=True)
        broken = break_it(rng, good, "operator") if good.vague else None
        if broken is not None:
            others = [value for value in CHOICES["o"] if value != broken.slots[good.vague]]
            forms = [with_slot(broken, good.vague, value) for value in rng.sample(others, len(others))]
            return good, broken, _up_to(good, forms)


def _untold(rng: random.Random) -> tuple[Function, Function, list[Function]]:
    """The same of a function whose comment tells nothing, and of its plausible mends, of which there are few tried."""
    while True:
        good = replace(from_shape(rng, number_shape(rng), training_name(rng)), doc=UNTOLD)
        ways = mends(good)
        if ways:
            _, broken = rng.choice(ways)
            plausible = [form for _, form in mends(broken)]
            tried = _up_to(good, rng.sample(plausible, len(plausible)))
            if len(tried) <= MOST_TRIED:
                return good, broken, tried


def _up_to(good: Function, forms: list[Function]) -> list[Function]:
    """The forms as far as the right one."""
    return forms[: next(place for place, form in enumerate(forms, 1) if form.render() == good.render())]


def _failing(rng: random.Random, good: Function, forms: list[Function], sizes: bool) -> list[str] | None:
    """What one check prints of each form in turn, the last of which is right; None where it would pass before."""
    right, calls = define(good.render(), good.name), [define(form.render(), form.name) for form in forms]
    cases = [draw_arguments(rng, good.types) for _ in range(12)]
    printed = []
    for function in calls[:-1]:
        failed = [(case, _call(function, case)) for case in cases]
        failed = [(case, got) for case, got in failed if got != right(*case)]
        if not failed:
            return None
        said = [
            printed_failure(good.name, case, got, _size(got, right(*case)) if sizes else "").removesuffix("failed\n")
            for case, got in failed[:2]
        ]
        printed.append("".join(said) + "failed\n[exit 1]")
    return [*printed, "passed"]


def _size(got: Any, right: Any) -> str:
    if isinstance(got, Exception):
        return ""
    return ", too low" if got < right else ", too high"


def trace(rng: random.Random) -> Script:
    """From the failing function's name to the definition that matters, through functions that only call another."""
    target = _specimen(rng, broken=True)
    seen, good = _failure(rng, target), target.good
    if seen is None:
        return trace(rng)
    script: Script = [
        ("user", "python3 check.py fails. Find the bug and fix it."),
        ("assistant", render_calls([RUN_CHECK])),
    ]
    names = [good.name, *(training_name(rng) for _ in range(rng.randint(0, 2)))]
    params = ", ".join(good.params)
    for name, callee in zip(names, [*names[1:], None], strict=True):
        path, line = f"{training_name(rng)}.py", rng.randint(1, 90)
        script += [
            ("observation", render_result(seen)),
            ("assistant", render_calls([("grep", {"pattern": f"def {name}"})])),
            ("observation", render_result(f"{path}:{line}:def {name}({params}):")),
            ("assistant", render_calls([_read(path, line)])),
        ]
        seen = (
            f"def {name}({params}):\n    # the {callee} of {' and '.join(good.params)}\n    return {callee}({params})\n"
        )
    last = replace(target.shown, name=names[-1]).render()
    edit = ("edit_file", {"path": path, "old": target.old, "new": target.new})
    return [
        *script,
        ("observation", render_result(last)),
        ("assistant", render_calls([edit, RUN_CHECK])),
        ("observation", render_results(["ok", "passed"])),
        ("assistant", FAREWELL),
    ]


def code(rng: random.Random) -> Script:
    """A file of right functions: what comments mean, with no bug in sight."""
    return [("text", "\n".join(_specimen(rng, broken=False).good.render() for _ in range(rng.randint(3, 8))))]


@dataclass(frozen=True)
class Specimen:
    """A function as it should be and as the drill shows it; `old` and `new` are its wrong and right line, if it is
    broken.
    """

    good: Function
    shown: Function
    old: str = ""
    new: str = ""


def _specimen(rng: random.Random, broken: bool) -> Specimen:
    while True:
        bug = rng.choice(bug_names("train"))
        good = _function(rng, vague=False)
        if not broken:
            return Specimen(good, good)
        wrong = break_it(rng, good, bug)
        if wrong is not None:
            [(old, new)] = [(w.strip(), g.strip()) for g, w in zip(good.body, wrong.body, strict=True) if g != w]
            return Specimen(good, wrong, old, new)


def _function(rng: random.Random, vague: bool) -> Function:
    """Of one of the ladder's shapes, or of a random one."""
    if rng.random() < RANDOM_SHARE:
        return from_shape(rng, random_shape(rng), training_name(rng), vague)
    return make_function(rng, training_name(rng), "train", vague)


def _failure(rng: random.Random, specimen: Specimen) -> str | None:
    """What the check prints of the broken function (both forms are run); None if no case tells them apart."""
    good = specimen.good
    right, wrong = define(good.render(), good.name), define(specimen.shown.render(), good.name)
    for _ in range(30):
        arguments = draw_arguments(rng, good.types)
        got = _call(wrong, arguments)
        if got != right(*arguments):
            return f"{printed_failure(good.name, arguments, got)}[exit 1]"
    return None


def _call(function: Callable[..., Any], arguments: list[Any]) -> Any:
    try:
        return function(*arguments)
    except Exception as error:  # a wrong line may well raise; the check shows it as the result
        return error


def _read(path: str, line: int | None = None) -> Call:
    window = {} if line is None else {"start": str(line), "end": str(line + WINDOW)}
    return ("read_file", {"path": path, **window})
