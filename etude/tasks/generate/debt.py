"""Proposes debts: what a linter finds in a repository and can mend itself, and annotations that stopped being true.

Owns `Linter` with the two that Etude knows, `lint_debts` and `type_debts`. Lint debt is real: the linter's own count
says which rule a file breaks, and its own mend is the reference. Type debt is made: an annotation is changed so that
the type checker, which was content, finds more. The tests say nothing of either; the linter's count does, and tests
guard what worked. Runs nothing.
"""

from __future__ import annotations

import ast
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from etude import syntax
from etude.tasks.difficulty import level_by_size
from etude.tasks.generate.proposal import Proposal, Source
from etude.tasks.verifiers import Lint

RULES = "F,E7,E9,B,C4,SIM,RET,PIE,PERF,UP,RUF,W6"
"""Of ruff's rules those that are about code, and not about its layout."""
_FALSE = {"int": "str", "str": "int", "bool": "str", "float": "str", "bytes": "str", "None": "int"}
"""What an annotation of one of these becomes."""


@dataclass(frozen=True)
class Linter:
    """A program that environments can hold: how its findings are asked for, and what comments silence it."""

    package: str
    command: tuple[str, ...]
    rule: str
    suppressed: str

    def lint(self, environment: str, paths: tuple[str, ...], most: Mapping[str, int]) -> Lint:
        """As a verifier asks it; `environment` is where the sandbox has the packages."""
        return Lint((f"{environment}/bin/{self.package}", *self.command), self.rule, paths, self.suppressed, most)


RUFF = Linter(
    "ruff", ("check", "--isolated", "--no-cache", "--ignore-noqa", "--output-format=json", f"--select={RULES}", "--"),
    "code", r"#\s*(flake8|ruff):\s*noqa",
)  # fmt: skip
TY = Linter("ty", ("check", "--output-format=gitlab", "--"), "check_name", r"#\s*(ty|type):\s*ignore|\bno_type_check\b")


def lint_debts(
    source: Source, found: Mapping[str, Mapping[str, int]], level: int | None, rng: random.Random
) -> Iterator[Proposal]:
    """For every file and rule in `found` (path → rule → how often), a proposal without an answer: the linter's own mend
    makes it, and `mended` puts it in.
    """
    places = [(path, rule, times) for path, rules in sorted(found.items()) for rule, times in sorted(rules.items())]
    rng.shuffle(places)
    for path, rule, times in places:
        modules = source.of(path) if path in source.modules else ()
        told = (
            f"ruff's rule {rule} is broken {times} times in {path}. Mend the code rather than silence the rule, and "
            "break no other."
        )
        if rule not in ("suppressed", "invalid-syntax") and modules:
            yield Proposal(
                "lint", f"{level or 'any'}-{rule}-{path.replace('/', '-')}", told.replace("1 times", "once"), {}, {},
                modules, level or 0, about={"path": path, "rule": rule, "times": times},
            )  # fmt: skip


def mended(proposal: Proposal, source: Source, text: str) -> Proposal | None:
    """The proposal with the linter's own mend of its file as the answer; None where it is none, or of another level."""
    path = proposal.about["path"]
    lines = sum(_differing(source.modules[path], text).values())
    level = level_by_size(1, lines)
    if not lines or proposal.level not in (0, level):
        return None
    return replace(proposal, broken={path: source.tree.files[path]}, answer={path: text.encode()}, level=level)


def type_debts(source: Source, level: int | None, rng: random.Random) -> Iterator[Proposal]:
    """One annotation that is not true for level 1 and 2 (whose instruction names the function, or its file), two for
    level 3, three for 4, five for 5; in the order that `rng` says.
    """
    places = [
        (path, function, edit)
        for path, text in source.modules.items()
        for function, edit in _annotations(text)
        if source.of(path)
    ]
    rng.shuffle(places)
    while places:
        wanted = level or rng.choice((1, 2, 3, 4, 5))
        count = {1: 1, 2: 1, 3: 2, 4: 3, 5: 5}[wanted]
        chosen = [place for place in places if place[0] == places[0][0]][:count]
        places = [place for place in places if place not in chosen]
        if len({edit[0] for _, _, edit in chosen}) == count:
            yield _false(source, wanted, [(path, function, edit) for path, function, edit in chosen])


_Edit = tuple[int, int, int, str]
"""Line (from 1), first column, end column, and what stands there instead."""


def _annotations(text: str) -> Iterator[tuple[str, _Edit]]:
    """(function, the change of one annotation) for plain types, and for those that may be None and then may not."""
    lines = text.split("\n")
    for node in ast.walk(syntax.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for annotation in (node.returns, *(argument.annotation for argument in arguments)):
            if annotation is None or annotation.lineno != annotation.end_lineno:
                continue
            if not lines[annotation.lineno - 1].isascii():  # columns count bytes
                continue
            written, false = ast.unparse(annotation), ""
            if written in _FALSE:
                false = _FALSE[written]
            elif written.endswith(" | None"):
                false = written.removesuffix(" | None")
            elif written.startswith("Optional["):
                false = written.removeprefix("Optional[").removesuffix("]")
            if false and annotation.end_col_offset is not None:
                yield node.name, (annotation.lineno, annotation.col_offset, annotation.end_col_offset, false)


def _false(source: Source, level: int, places: list[tuple[str, str, _Edit]]) -> Proposal:
    path = places[0][0]
    lines = source.modules[path].split("\n")
    for _, _, (line, start, end, false) in places:
        lines[line - 1] = lines[line - 1][:start] + false + lines[line - 1][end:]
    where = f"in `{places[0][1]}` in {path}" if level == 1 else f"in {path}" if level < 5 else "somewhere in the source"
    return Proposal(
        kind="types",
        name=f"{path.replace('/', '-').removesuffix('.py')}-" + "-".join(str(edit[0]) for _, _, edit in places),
        instruction=f"ty finds wrong types {where} that it did not find before. Mend them, and do not silence it.",
        broken={path: "\n".join(lines).encode()},
        answer={path: source.tree.files[path]},
        modules=source.of(path),
        level=level,
        about={"path": path, "functions": [function for _, function, _ in places]},
    )


def _differing(old: str, new: str) -> Counter[str]:
    before, after = Counter(old.split("\n")), Counter(new.split("\n"))
    return (before - after) + (after - before)
