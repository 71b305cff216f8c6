"""What a generated mini-repository is made of: modules, call chains, and the calls that tell right code from wrong.

Owns `Size`, how modules are laid out around a target, and running what was generated. `ladder` and `hunt` make tasks of
it. Runs nothing but generated code, in this process.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from etude.tasks.check import CHECK, CheckCase
from etude.tasks.grammar import Function, draw_arguments, draw_wide_arguments, make_function
from etude.tasks.holdout import is_held_out

Split = Literal["train", "eval", "heldout"]
MOST_DRAWN, WIDE = 120, 8
MAX_CONTEXT_TOKENS, MAX_SAMPLED_TOKENS = 1024, 512


@dataclass(frozen=True)
class Size:
    """How large a repository is, and how much must be found out."""

    modules: int
    functions: tuple[int, int]  # fewest and most in a module
    chain: int  # calls between the checked function and the bug
    names_file: bool  # whether the instruction says which file
    lines: int  # most in the body that is broken: of several lines, the wrong one must be found and named
    turns: tuple[int, int]  # fewest and most; finding the bug takes 1 where the file is named, else 3 and 2 more a call


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
Link = tuple[str, str]
"""Of a call chain: a module and the function in it."""


@dataclass(frozen=True)
class Layout:
    """Modules by name, and the chain from the function that the check calls to the one that is wrong."""

    modules: dict[str, list[Member]]
    chain: list[Link]

    @property
    def checked(self) -> list[tuple[str, Member]]:
        """What the check calls: every function but the ones that only others of the chain may call."""
        inner = set(self.chain[1:])
        return [
            (name, member)
            for name, members in self.modules.items()
            for member in members
            if (name, member.name) not in inner
        ]

    def sources(self) -> dict[str, str]:
        return {f"{name}.py": _source(members) for name, members in self.modules.items()}


def lay_out(rng: random.Random, size: Size, good: Function, words: Iterator[str]) -> Layout:
    """Modules with distractors, the target and its callers."""
    names = [next(words) for _ in range(size.modules)]
    modules: dict[str, list[Member]] = {name: [] for name in names}
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
    return Layout({name: modules[name] for name in shuffled}, chain)


def _source(members: list[Member]) -> str:
    imports = [
        f"from {member.callee_module} import {member.callee}\n" for member in members if isinstance(member, Wrapper)
    ]
    head = "".join(imports) + ("\n" if imports else "")
    return head + "\n".join(member.render() for member in members)


def instruction(size: Size, path: str) -> str:
    if size.names_file:
        return f"python3 {CHECK} fails: there is a bug in {path}. Fix it."
    return f"python3 {CHECK} fails. Find the bug and fix it."


def is_fresh(good: Function, broken: Function) -> bool:
    """Whether this composition (shape, filled slots, bug) is kept out of training."""
    names = {param: f"p{index}" for index, param in enumerate(good.params)}
    key = [names.get(slots[name], slots[name]) for slots in (good.slots, broken.slots) for name in sorted(slots)]
    return is_held_out("composition", f"{good.code} {broken.code} {' '.join(key)}")


def changed_line(function: Function, other: Function) -> tuple[str, str]:
    """The one line of `function` that is another in `other`, and what it is there; without their indentation."""
    [(here, there)] = [(a, b) for a, b in zip(function.body, other.body, strict=True) if a != b]
    return here.strip(), there.strip()


# --- running what was generated ---------------------------------------------------------------------------------------


@lru_cache(1024)
def define(source: str, name: str) -> Callable[..., Any]:
    """The function of that name, of source that imports nothing."""
    space: dict[str, Any] = {}
    exec(source, space)
    return space[name]


def load(files: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Execute generated modules; imports between them are resolved by hand, in whatever order they come."""
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


def draw_cases(
    rng: random.Random, files: dict[str, str], checked: Iterable[tuple[str, Member]], each: int
) -> list[CheckCase]:
    """So many calls of each function, with the values that it returns in these files."""
    loaded = load(files)
    cases = []
    for module, member in checked:
        for _ in range(each):
            arguments = draw_arguments(rng, member.types)
            cases.append(CheckCase(module, member.name, arguments, loaded[module][member.name](*arguments)))
    return cases


def fails(files: dict[str, str], cases: Iterable[CheckCase]) -> bool:
    """Whether any of the calls returns another value in these files."""
    loaded = load(files)
    return any(loaded[case.module][case.function](*case.arguments) != case.expected for case in cases)


def distinguishing_cases(seed: str, good: Function, others: Iterable[Function]) -> list[tuple[list[Any], Any]]:
    """Arguments and values by which a function differs from each of the others that any of MOST_DRAWN calls tells from
    it, and some more that are larger than those of any check, where a formula fitted to small ones goes wrong."""
    rng = random.Random(f"etude ladder unseen v1 {seed}")
    right = define(good.render(), good.name)
    drawn = []
    for number in range(MOST_DRAWN):
        arguments = (draw_wide_arguments if number % 2 else draw_arguments)(rng, good.types)
        with suppress(IndexError):  # of an empty list there are no ends
            drawn.append((arguments, right(*arguments)))
    return told_apart(others, drawn, drawn[1 : 2 * WIDE : 2])


def told_apart(
    others: Iterable[Function], drawn: Sequence[tuple[list[Any], Any]], kept: list[tuple[list[Any], Any]]
) -> list[tuple[list[Any], Any]]:
    """`kept`, and of the calls `drawn` as many more as it takes to tell each of the others from what gave the values;
    one that no call tells apart is left aside."""
    for other in others:
        wrong = define(other.render(), other.name)
        if not differs(wrong, kept):
            kept = kept + next(([case] for case in drawn if differs(wrong, [case])), [])
    return kept


def differs(wrong: Callable[..., Any], cases: Iterable[tuple[list[Any], Any]]) -> bool:
    """Whether any of the calls tells it apart: it returns another value or raises."""
    for arguments, value in cases:
        try:
            if wrong(*arguments) != value:
                return True
        except (TypeError, IndexError):
            return True
    return False
