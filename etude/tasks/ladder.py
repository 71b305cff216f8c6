"""Generated mini-repositories: one bug each, on a ladder of eight rungs.

Owns `ladder_task(rung, split, seed)` and the five lower rungs. A task is a handful of small modules, a visible
`check.py` that fails (it says where, and not what would be right), and hidden cases. From rung to rung there is more to
search, fewer comments say what is right, and a mend may fail less often:

    1 function   one module, which the instruction names, with one function of one line
    2 file       distractor functions, and nothing says where to look
    3 files      several modules, and the broken function may have several lines
    4 depth      the check calls an entry function, the bug lies further down the call chain
    5 context    longer modules and a longer chain: reading everything does not fit the context
    6, 7, 8      no comment says what is right: `tasks.hunt`

Training tasks use training shapes, bugs, words and compositions; `eval` uses fresh compositions of these; `heldout`
uses words, and shapes or bugs, that no training data contains (`tasks.holdout`).
"""

from __future__ import annotations

import random

from etude.records import Limits, Task
from etude.tasks.check import CHECK, CheckCase, verifier_for, visible_check
from etude.tasks.generated import (
    MAX_CONTEXT_TOKENS,
    MAX_SAMPLED_TOKENS,
    Size,
    Split,
    changed_line,
    distinguishing_cases,
    draw_cases,
    fails,
    instruction,
    is_fresh,
    lay_out,
)
from etude.tasks.grammar import CHOICES, Fold, Function, break_it, bug_names, make_function, neighbours, with_slot
from etude.tasks.hunt import HUNTS, hunt_task
from etude.tasks.words import draw_names

LOWER = {
    1: Size(modules=1, functions=(1, 1), chain=0, names_file=True, lines=1, turns=(5, 5)),
    2: Size(modules=1, functions=(2, 2), chain=0, names_file=False, lines=1, turns=(7, 7)),
    3: Size(modules=4, functions=(4, 6), chain=0, names_file=False, lines=4, turns=(6, 6)),
    4: Size(modules=4, functions=(4, 6), chain=1, names_file=False, lines=4, turns=(7, 8)),
    5: Size(modules=5, functions=(8, 10), chain=2, names_file=False, lines=4, turns=(9, 10)),
}
VAGUE = {1: 0.0, 2: 0.2, 3: 0.75, 4: 0.85, 5: 1.0}
"""Share of a rung's tasks whose comment does not say the operator: only trying tells."""
RUNGS = (*LOWER, *HUNTS)


def ladder_task(rung: int, split: Split, seed: int) -> Task:
    """The task of that rung, split and seed; the same on every machine."""
    if rung in HUNTS:
        return hunt_task(rung, split, seed)
    rng = random.Random(f"etude ladder v2 {rung} {split} {seed}")
    while True:
        task = _attempt(rng, rung, split, f"{split}-r{rung}-{seed}")
        if task is not None:
            return task


def _attempt(rng: random.Random, rung: int, split: Split, task_id: str) -> Task | None:
    size = LOWER[rung]
    words = iter(draw_names(rng, 60, split == "heldout"))
    good, broken, bug = _draw_target(rng, split, next(words), rung)
    layout = lay_out(rng, size, good, words)
    right, chain = layout.sources(), layout.chain
    old, new = changed_line(broken, good)
    path = f"{chain[-1][0]}.py"
    wrong = {**right, path: right[path].replace(good.render(), broken.render())}
    if wrong[path].count(old) != 1:
        return None
    cases = draw_cases(rng, right, layout.checked, each=3)
    hidden = draw_cases(rng, right, layout.checked, each=4) + draw_cases(
        rng, right, [(name, member) for name, member in layout.checked if (name, member.name) == chain[0]], each=16
    )
    if not fails(wrong, [case for case in cases if case.function == chain[0][1]]):
        return None
    told = distinguishing_cases(task_id, good, [broken, *neighbours(good)])
    hidden += [CheckCase(*chain[0], arguments, value) for arguments, value in told]
    return Task(
        id=task_id,
        instruction=instruction(size, path),
        files={**{name: text.encode() for name, text in wrong.items()}, CHECK: visible_check(cases).encode()},
        verifier=verifier_for(cases + hidden),
        solution={path: right[path].encode()},
        limits=Limits(rng.randint(*size.turns), MAX_CONTEXT_TOKENS, MAX_SAMPLED_TOKENS),
        split=split,
        provenance={
            "family": "ladder", "rung": rung, "shape": good.shape, "bug": bug, "vague": bool(good.vague), "path": path,
            "function": good.name, "old": old, "new": new, "protected": [CHECK], "mends": plausible(broken, old, new),
            "chain": [f"{module}.py:{function}" for module, function in chain],
        },
    )  # fmt: skip


def plausible(broken: Function, old: str, new: str) -> list[list[str]]:
    """The lines and what could stand there, for somebody who has read the function and what the check prints: what its
    comment tells, or every other operator where it tells none."""
    if not broken.vague:
        return [[old, new]]
    others = [value for value in CHOICES["o"] if value != broken.slots[broken.vague]]
    return [[*changed_line(broken, with_slot(broken, broken.vague, value))] for value in others]


def _draw_target(rng: random.Random, split: Split, name: str, rung: int) -> tuple[Function, Function, str]:
    """A function and its broken form, from the split's side of every hold-out."""
    by_bug = split == "heldout" and rng.random() < 0.3  # held out by its bug; otherwise by its shape
    shape_fold: Fold = "heldout" if split == "heldout" and not by_bug else "train"
    vague = not by_bug and rng.random() < VAGUE[rung]
    while True:
        bug = "operator" if vague else rng.choice(bug_names("heldout" if by_bug else "train"))
        good = make_function(rng, name, shape_fold, vague)
        broken = break_it(rng, good, bug)
        if (
            broken is not None
            and bool(good.vague) == vague
            and len(good.body) <= LOWER[rung].lines
            and (split == "heldout" or is_fresh(good, broken) == (split == "eval"))
        ):
            return good, broken, bug
