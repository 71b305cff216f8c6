"""The upper rungs of the ladder: bugs whose mend nothing tells, and that are found by trying.

Owns `hunt_task(rung, split, seed)`. The broken function is put together at random and returns a number. Its comment
does not say what is right. The check calls nothing else, and says of what fails whether it is too low or too high.
Several places of several lines could be wrong, each in several ways (`grammar.mends`), and the visible check tells the
right mend from every other. So a mend is tried, what the check prints is read, and the next one is better chosen:

    6   one module, which the instruction names
    7   several modules, and nothing says where to look
    8   the function lies further down a call chain, and more of it could be wrong

`heldout` uses words, and the structure of a function or a bug, that no training data contains.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from etude.records import Limits, Task
from etude.tasks.check import CHECK, CheckCase, compared_check, verifier_for
from etude.tasks.compose import number_shape
from etude.tasks.generated import (
    MAX_CONTEXT_TOKENS,
    MAX_SAMPLED_TOKENS,
    Size,
    Split,
    changed_line,
    define,
    differs,
    distinguishing_cases,
    draw_cases,
    instruction,
    is_fresh,
    lay_out,
    told_apart,
)
from etude.tasks.grammar import Function, draw_arguments, from_shape, mends, neighbours
from etude.tasks.holdout import is_held_out
from etude.tasks.words import draw_names

HUNTS = {
    6: Size(modules=1, functions=(1, 2), chain=0, names_file=True, lines=4, turns=(6, 6)),
    7: Size(modules=3, functions=(3, 4), chain=0, names_file=False, lines=4, turns=(8, 8)),
    8: Size(modules=4, functions=(4, 5), chain=1, names_file=False, lines=4, turns=(10, 10)),
}
MENDS = {6: (4, 8), 7: (6, 12), 8: (8, 20)}
"""Fewest and most plausible mends of a rung's tasks."""
UNTOLD = f"python3 {CHECK} tests it"
LARGEST = 999
"""Of the values in a check, which the agent reads again at every try."""
DRAWN, LEAST = 60, 4
"""Calls that a visible check is chosen from, and how many it has of the broken function at least."""


def hunt_task(rung: int, split: Split, seed: int) -> Task:
    """The task of that rung, split and seed; the same on every machine."""
    rng = random.Random(f"etude hunt v1 {rung} {split} {seed}")
    while True:
        task = _attempt(rng, rung, split, f"{split}-r{rung}-{seed}")
        if task is not None:
            return task


def _attempt(rng: random.Random, rung: int, split: Split, task_id: str) -> Task | None:
    size = HUNTS[rung]
    words = iter(draw_names(rng, 60, split == "heldout"))
    name = next(words)
    target = None
    while target is None:
        target = _target(rng, rung, split, name)
    good, broken, bug, seen = target
    layout = lay_out(rng, size, good, words)
    right, chain = layout.sources(), layout.chain
    path = f"{chain[-1][0]}.py"
    text = right[path].replace(good.render(), broken.render())
    ways = [changed_line(broken, mended) for _, mended in mends(broken)]
    if any(text.count(old) != 1 or new in text for old, new in ways):
        return None
    others = [(module, member) for module, member in layout.checked if (module, member.name) != chain[0]]
    cases = [CheckCase(*chain[0], arguments, value) for arguments, value in seen]
    unseen = distinguishing_cases(task_id, good, [broken, *neighbours(good)])
    hidden = draw_cases(rng, right, others, each=4)
    hidden += [CheckCase(*chain[0], arguments, value) for arguments, value in unseen]
    old, new = changed_line(broken, good)
    files = {**right, path: text, CHECK: compared_check(cases)}
    return Task(
        id=task_id,
        instruction=instruction(size, path),
        files={name: source.encode() for name, source in files.items()},
        verifier=verifier_for(cases + hidden),
        solution={path: right[path].encode()},
        limits=Limits(rng.randint(*size.turns), MAX_CONTEXT_TOKENS, MAX_SAMPLED_TOKENS),
        split=split,
        provenance={
            "family": "ladder", "rung": rung, "shape": good.shape, "bug": bug, "vague": True, "path": path,
            "function": good.name, "old": old, "new": new, "protected": [CHECK], "mends": [list(way) for way in ways],
            "chain": [f"{module}.py:{function}" for module, function in chain], "difficulty": {"level": 5},
        },
    )  # fmt: skip


def _target(
    rng: random.Random, rung: int, split: Split, name: str
) -> tuple[Function, Function, str, list[tuple[list[Any], int]]] | None:
    """A function, its broken form, the bug, and the calls of the check; None where they are no hunt."""
    by_bug = split == "heldout" and rng.random() < 0.3  # held out by its bug; otherwise by its structure
    shape = number_shape(rng, held_out=split == "heldout" and not by_bug)
    good = replace(from_shape(rng, shape, name), doc=UNTOLD)
    ways = [(bug, form) for bug, form in mends(good, "any") if is_held_out("bug", bug) == by_bug]
    if not ways or len(good.body) > HUNTS[rung].lines:
        return None
    bug = rng.choice(sorted({bug for bug, _ in ways}))
    broken = rng.choice([form for each, form in ways if each == bug])
    fewest, most = MENDS[rung]
    tried = [form for _, form in mends(broken)]
    if not fewest <= len(tried) <= most or (split != "heldout" and is_fresh(good, broken) != (split == "eval")):
        return None
    seen = _seen(rng, good, broken, tried)
    return None if seen is None else (good, broken, bug, seen)


def _seen(
    rng: random.Random, good: Function, broken: Function, tried: list[Function]
) -> list[tuple[list[Any], int]] | None:
    """Calls that tell the function from its broken form and from whatever else stands one slot from it; None where they
    do not, or do so of too few plausible mends: there it would be right whatever is tried."""
    right, wrong = define(good.render(), good.name), define(broken.render(), broken.name)
    drawn = [(arguments, right(*arguments)) for arguments in (draw_arguments(rng, good.types) for _ in range(DRAWN))]
    drawn = [(arguments, value) for arguments, value in drawn if max(abs(value), abs(wrong(*arguments))) <= LARGEST]
    alike = sum(not differs(define(form.render(), form.name), drawn) for form in tried)
    if not differs(wrong, drawn) or alike > len(tried) / 3:
        return None
    seen = told_apart([broken, *tried, *neighbours(broken), *neighbours(good)], drawn, [])
    return seen + [case for case in drawn if case not in seen][: max(0, LEAST - len(seen))]
