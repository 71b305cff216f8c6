"""Generated mini-repositories: one bug each, on a ladder of five rungs.

Owns `ladder_task(rung, split, seed)`. A task is a handful of small modules, a visible
`check.py` that fails (it says where, and not what would be right), and hidden cases. From rung to rung there is more to
search, fewer comments say what is right, and a mend may fail less often:

    1 function   one module, which the instruction names, with one function of one line
    2 file       distractor functions, and nothing says where to look
    3 files      several modules, and the broken function may have several lines
    4 depth      the check calls an entry function, the bug lies further down the call chain
    5 context    longer modules and a longer chain: reading everything does not fit the context

Training tasks use training shapes, bugs, words and compositions; `eval` uses fresh compositions of these; `heldout`
uses words, and shapes or bugs, that no training data contains (`tasks.holdout`). Runs its own code only, in this
process.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from etude.records import Limits, Task
from etude.tasks.check import CHECK, CheckCase, verifier_for, visible_check
from etude.tasks.grammar import (
    Fold,
    Function,
    break_it,
    bug_names,
    draw_arguments,
    draw_wide_arguments,
    make_function,
    neighbours,
)
from etude.tasks.holdout import is_held_out
from etude.tasks.words import draw_names

Split = Literal["train", "eval", "heldout"]
RUNGS = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Rung:
    """How large a repository is, and how much must be found out."""

    modules: int
    functions: tuple[int, int]  # fewest and most in a module
    chain: int  # calls between the checked function and the bug
    names_file: bool  # whether the instruction says which file
    lines: int  # most in the body that is broken: of several lines, the wrong one must be found and named
    vague: float  # share of tasks whose comment does not say the operator: only trying tells
    turns: tuple[int, int]  # fewest and most; finding the bug takes 1 where the file is named, else 3 and 2 more a call


LADDER = {
    1: Rung(modules=1, functions=(1, 1), chain=0, names_file=True, lines=1, vague=0.0, turns=(5, 5)),
    2: Rung(modules=1, functions=(2, 2), chain=0, names_file=False, lines=1, vague=0.2, turns=(7, 7)),
    3: Rung(modules=4, functions=(4, 6), chain=0, names_file=False, lines=4, vague=0.75, turns=(6, 6)),
    4: Rung(modules=4, functions=(4, 6), chain=1, names_file=False, lines=4, vague=0.85, turns=(7, 8)),
    5: Rung(modules=5, functions=(8, 10), chain=2, names_file=False, lines=4, vague=1.0, turns=(9, 10)),
}
MOST_DRAWN, WIDE = 120, 8
MAX_CONTEXT_TOKENS, MAX_SAMPLED_TOKENS = 1024, 512


@dataclass(frozen=True)
class Wrapper:
    """A function that only calls another module's: one step of a call chain."""

    name: str
    params: tuple[str, ...]
    types: tuple[str, ...]
    callee: str
    callee_module: str

    def render(self) -> str:
        params = ", ".join(self.params)
        comment = f"# the {self.callee} of {' and '.join(self.params)}"
        return f"def {self.name}({params}):\n    {comment}\n    return {self.callee}({params})\n"


Member = Function | Wrapper
Modules = dict[str, list[Member]]


def ladder_task(rung: int, split: Split, seed: int) -> Task:
    """The task of that rung, split and seed; the same on every machine."""
    rng = random.Random(f"etude ladder v2 {rung} {split} {seed}")
    while True:
        task = _attempt(rng, rung, split, f"{split}-r{rung}-{seed}")
        if task is not None:
            return task


def _attempt(rng: random.Random, rung: int, split: Split, task_id: str) -> Task | None:
    size = LADDER[rung]
    words = iter(draw_names(rng, 60, split == "heldout"))
    good, broken, bug = _draw_target(rng, split, next(words), size)
    modules, chain = _lay_out(rng, size, good, words)
    right = {f"{name}.py": _source(members) for name, members in modules.items()}
    old, new = _changed_line(good, broken)
    path = f"{chain[-1][0]}.py"
    wrong = {**right, path: right[path].replace(good.render(), broken.render())}
    if wrong[path].count(old) != 1:
        return None
    checked = _checked(modules, chain)
    cases = _cases(rng, right, checked, each=3)
    hidden = _cases(rng, right, checked, each=4) + _cases(
        rng, right, [(name, member) for name, member in checked if (name, member.name) == chain[0]], each=16
    )
    if not _fails(wrong, [case for case in cases if case.function == chain[0][1]]):
        return None
    told = distinguishing_cases(task_id, good, [broken, *neighbours(good)])
    hidden += [CheckCase(*chain[0], arguments, value) for arguments, value in told]
    return Task(
        id=task_id,
        instruction=_instruction(size, path),
        files={**{name: text.encode() for name, text in wrong.items()}, CHECK: visible_check(cases).encode()},
        verifier=verifier_for(cases + hidden),
        solution={path: right[path].encode()},
        limits=Limits(rng.randint(*size.turns), MAX_CONTEXT_TOKENS, MAX_SAMPLED_TOKENS),
        split=split,
        provenance={
            "family": "ladder", "rung": rung, "shape": good.shape, "bug": bug, "vague": bool(good.vague), "path": path,
            "function": good.name, "old": old, "new": new, "protected": [CHECK],
            "chain": [f"{module}.py:{function}" for module, function in chain],
        },
    )  # fmt: skip


def _draw_target(rng: random.Random, split: Split, name: str, size: Rung) -> tuple[Function, Function, str]:
    """A function and its broken form, from the split's side of every hold-out."""
    by_bug = split == "heldout" and rng.random() < 0.3  # held out by its bug; otherwise by its shape
    shape_fold: Fold = "heldout" if split == "heldout" and not by_bug else "train"
    vague = not by_bug and rng.random() < size.vague
    while True:
        bug = "operator" if vague else rng.choice(bug_names("heldout" if by_bug else "train"))
        good = make_function(rng, name, shape_fold, vague)
        broken = break_it(rng, good, bug)
        if (
            broken is not None
            and bool(good.vague) == vague
            and len(good.body) <= size.lines
            and (split == "heldout" or _fresh(good, broken) == (split == "eval"))
        ):
            return good, broken, bug


def _fresh(good: Function, broken: Function) -> bool:
    """Whether this composition (shape, filled slots, bug) is kept out of training."""
    names = {param: f"p{index}" for index, param in enumerate(good.params)}
    key = [names.get(slots[name], slots[name]) for slots in (good.slots, broken.slots) for name in sorted(slots)]
    return is_held_out("composition", f"{good.code} {broken.code} {' '.join(key)}")


def _lay_out(
    rng: random.Random, size: Rung, good: Function, words: Iterator[str]
) -> tuple[Modules, list[tuple[str, str]]]:
    """Modules with distractors, the target and its callers. Returns them and the chain, checked function first."""
    names = [next(words) for _ in range(size.modules)]
    modules: Modules = {name: [] for name in names}
    callee: Member = good
    chain = [(names[0], callee.name)]
    modules[names[0]].append(callee)
    for step in range(size.chain):
        callee = Wrapper(next(words), good.params, good.types, callee.name, chain[0][0])
        chain.insert(0, (names[step + 1], callee.name))
        modules[names[step + 1]].append(callee)
    for members in modules.values():
        for _ in range(rng.randint(*size.functions) - len(members)):
            members.insert(rng.randint(0, len(members)), make_function(rng, next(words), "train"))
    shuffled = rng.sample(names, len(names))
    return {name: modules[name] for name in shuffled}, chain


def _source(members: list[Member]) -> str:
    imports = [
        f"from {member.callee_module} import {member.callee}\n" for member in members if isinstance(member, Wrapper)
    ]
    head = "".join(imports) + ("\n" if imports else "")
    return head + "\n".join(member.render() for member in members)


def _changed_line(good: Function, broken: Function) -> tuple[str, str]:
    """The wrong line and the right one, without their indentation."""
    [(right, wrong)] = [(g, b) for g, b in zip(good.body, broken.body, strict=True) if g != b]
    return wrong.strip(), right.strip()


def _checked(modules: Modules, chain: list[tuple[str, str]]) -> list[tuple[str, Member]]:
    """What the check calls: every function but the ones that only others of the chain may call."""
    inner = set(chain[1:])
    return [
        (name, member) for name, members in modules.items() for member in members if (name, member.name) not in inner
    ]


def _cases(rng: random.Random, files: dict[str, str], checked: list[tuple[str, Member]], each: int) -> list[CheckCase]:
    loaded = _load(files)
    cases = []
    for module, member in checked:
        for _ in range(each):
            arguments = draw_arguments(rng, member.types)
            cases.append(CheckCase(module, member.name, arguments, loaded[module][member.name](*arguments)))
    return cases


def distinguishing_cases(seed: str, good: Function, others: Iterable[Function]) -> list[tuple[list[Any], Any]]:
    """Arguments and values by which a function differs from each of the others that any of MOST_DRAWN calls tells from
    it, and some more that are larger than those of any check, where a formula fitted to small ones goes wrong."""
    rng = random.Random(f"etude ladder unseen v1 {seed}")
    right = _define(good)
    drawn = []
    for number in range(MOST_DRAWN):
        arguments = (draw_wide_arguments if number % 2 else draw_arguments)(rng, good.types)
        with suppress(IndexError):  # of an empty list there are no ends
            drawn.append((arguments, right(*arguments)))
    kept = drawn[1 : 2 * WIDE : 2]
    for other in others:
        wrong = _define(other)
        if not _distinguishes(wrong, kept):
            kept += next(([case] for case in drawn if _distinguishes(wrong, [case])), [])
    return kept


def _distinguishes(wrong: Callable[..., Any], cases: Iterable[tuple[list[Any], Any]]) -> bool:
    for arguments, value in cases:
        try:
            if wrong(*arguments) != value:
                return True
        except (TypeError, IndexError):
            return True
    return False


def _define(function: Function) -> Callable[..., Any]:
    space: dict[str, Any] = {}
    exec(function.render(), space)
    return space[function.name]


def _fails(files: dict[str, str], cases: list[CheckCase]) -> bool:
    loaded = _load(files)
    return any(loaded[case.module][case.function](*case.arguments) != case.expected for case in cases)


def _load(files: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Execute the generated modules; imports between them are resolved by hand, in whatever order they come."""
    spaces: dict[str, dict[str, Any]] = {name.removesuffix(".py"): {} for name in files}
    imports = []
    for name, text in files.items():
        module = name.removesuffix(".py")
        lines = text.split("\n")
        imports += [(module, *line.split()[1::2]) for line in lines if line.startswith("from ")]
        exec("\n".join(line for line in lines if not line.startswith("from ")), spaces[module])
    for module, source, function in imports:
        spaces[module][function] = spaces[source][function]
    return spaces


def _instruction(size: Rung, path: str) -> str:
    if size.names_file:
        return f"python3 {CHECK} fails: there is a bug in {path}. Fix it."
    return f"python3 {CHECK} fails. Find the bug and fix it."
