"""Proposes features to take away: a function, method or class that tests name, with all that only it needed.

    find ──► its private helpers ──► its name in `__all__` and imports ──► gone; asked for by its signature and words

Owns `deletions`. What other source still uses is left alone: a repository that merely breaks is no task. Tests and
documentation stay, as they say what is wanted. Text that is not taken away stays as its author wrote it. Runs nothing.
"""

from __future__ import annotations

import ast
import inspect
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from etude import syntax
from etude.tasks.difficulty import level_by_size
from etude.tasks.generate.proposal import Proposal, Source

Definition = ast.FunctionDef | ast.ClassDef
LEAST_LINES = 4
"""A feature has more than a line or two."""
DOCSTRING_CHARS = {1: 900, 2: 900, 3: 600, 4: 300, 5: 150}
"""How much of its documentation is told, by level."""


@dataclass(frozen=True)
class _Feature:
    path: str
    owner: ast.ClassDef | None
    node: Definition

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def full_name(self) -> str:
        return f"{self.owner.name}.{self.name}" if self.owner else self.name


def deletions(source: Source, level: int | None, rng: random.Random) -> Iterator[Proposal]:
    """Proposals of that level, or of any, until there are no more features, in the order that `rng` says."""
    trees = {path: syntax.parse(text) for path, text in source.modules.items()}
    features = list(_features(trees))
    rng.shuffle(features)
    for feature in features:
        modules = source.naming([feature.name] + ([feature.owner.name] if feature.owner else []))
        if not modules or (gone := _gone(feature, trees)) is None:
            continue
        broken = _without(feature, gone, source.modules, trees)
        if broken is not None:
            proposal = _proposal(source, feature, broken, modules)
            if level in (None, proposal.level):
                yield proposal


def _features(trees: dict[str, ast.Module]) -> Iterator[_Feature]:
    for path, tree in trees.items():
        for item in tree.body:
            if isinstance(item, Definition) and _wanted(item):
                yield _Feature(path, None, item)
            if isinstance(item, ast.ClassDef) and len(item.body) > 2:
                yield from (
                    _Feature(path, item, each) for each in item.body if isinstance(each, Definition) and _wanted(each)
                )


def _wanted(node: Definition) -> bool:
    """Public, documented, and long enough to be worth asking for."""
    if node.name.startswith("_") or not ast.get_docstring(node):
        return False
    return _last(node) - _first(node) - len((ast.get_docstring(node) or "").splitlines()) >= LEAST_LINES


def _gone(feature: _Feature, trees: dict[str, ast.Module]) -> list[Definition] | None:
    """The feature and its helpers; None where other source uses it or there are two of its name."""
    inside = trees[feature.path]
    siblings = feature.owner.body if feature.owner else inside.body
    if sum(isinstance(item, Definition) and item.name == feature.name for item in siblings) != 1:
        return None
    gone: list[Definition] = [feature.node]
    if _used(feature.name, gone, trees.values()):
        return None
    private = [item for item in inside.body if isinstance(item, ast.FunctionDef) and item.name.startswith("_")]
    while more := [
        helper
        for helper in private
        if helper not in gone
        and any(_names(node) & {helper.name} for node in gone)
        and not _used(helper.name, [*gone, helper], trees.values())
    ]:
        gone += more
    return gone


def _used(name: str, gone: Sequence[ast.AST], trees: Iterable[ast.Module]) -> bool:
    """Whether any code but `gone` names it; imports and lists of exports do not count."""
    return any(name in _names(tree, gone) for tree in trees)


def _names(root: ast.AST, but: Sequence[ast.AST] = ()) -> set[str]:
    found, left = set(), [root]
    while left:
        node = left.pop()
        if any(node is each for each in but):
            continue
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        left += ast.iter_child_nodes(node)
    return found


# --- taking away ------------------------------------------------------------------------------------------------------


def _without(
    feature: _Feature, gone: list[Definition], texts: dict[str, str], trees: dict[str, ast.Module]
) -> dict[str, str] | None:
    """The modules that change, without the feature; None where what is left is no Python."""
    cuts: dict[str, list[tuple[int, int, list[str]]]] = {
        feature.path: [(_first(node), _last(node), []) for node in gone]
    }
    if feature.owner is None:
        for path, tree in trees.items():
            for statement in tree.body:
                for cut in _mentions(statement, feature.name, texts[path].split("\n")):
                    cuts.setdefault(path, []).append(cut)
    broken = {}
    for path, places in cuts.items():
        lines = texts[path].split("\n")
        for first, last, instead in sorted(places, key=lambda place: place[0], reverse=True):
            while not instead and last < len(lines) and not lines[last].strip():
                last += 1
            lines[first - 1 : last] = instead
        broken[path] = "\n".join(lines).rstrip("\n") + "\n"
        try:
            syntax.parse(broken[path])
        except SyntaxError:
            return None
    return broken


def _mentions(statement: ast.stmt, name: str, lines: list[str]) -> Iterator[tuple[int, int, list[str]]]:
    """Where an import or `__all__` has the name: first line, last line, and what stands there without it."""
    first, last = statement.lineno, statement.end_lineno or statement.lineno
    old = lines[first - 1 : last]
    if isinstance(statement, ast.ImportFrom) and any(alias.name == name for alias in statement.names):
        kept = [alias for alias in statement.names if alias.name != name]
        entry = re.compile(rf"^\s*{re.escape(name)}( as \w+)?,?\s*(#.*)?$")
        fallback = [ast.unparse(ast.ImportFrom(statement.module, kept, statement.level))] if kept else []
    elif isinstance(statement, ast.Assign | ast.AugAssign) and _exports(statement):
        entry = re.compile(rf"^\s*(['\"]){re.escape(name)}\1,?\s*(#.*)?$")
        fallback = [re.sub(rf"(['\"]){re.escape(name)}\1\s*,?\s*", "", line) for line in old]
    else:
        return
    left = [line for line in old if not entry.match(line)]
    new = left if len(left) < len(old) else fallback
    if new != old:
        yield first, last, new


def _exports(statement: ast.Assign | ast.AugAssign) -> bool:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)


def _first(node: Definition) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _last(node: Definition) -> int:
    return node.end_lineno or node.lineno


# --- asking for it ----------------------------------------------------------------------------------------------------


def _proposal(source: Source, feature: _Feature, broken: dict[str, str], modules: tuple[str, ...]) -> Proposal:
    lines = sum(source.modules[path].count("\n") - text.count("\n") for path, text in broken.items())
    level = level_by_size(len(broken), lines)
    said = inspect.cleandoc(ast.get_docstring(feature.node) or "")
    what = "class" if isinstance(feature.node, ast.ClassDef) else "method" if feature.owner else "function"
    where = f"{feature.path}, in class `{feature.owner.name}`" if feature.owner else feature.path
    told = _abridged(said, DOCSTRING_CHARS[level])
    also = ", and export it as its neighbours are" if len(broken) > 1 else ""
    return Proposal(
        kind="deletion",
        name=feature.full_name.replace(".", "-"),
        instruction=f"Add the {what} `{_signature(feature.node)}` to {where}{also}.\n\n{told}",
        broken={path: text.encode() for path, text in broken.items()},
        answer={path: source.tree.files[path] for path in broken},
        modules=modules,
        level=level,
        about={"path": feature.path, "feature": feature.full_name, "lines": lines},
    )


def _signature(node: Definition) -> str:
    if isinstance(node, ast.FunctionDef):
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return f"{node.name}({ast.unparse(node.args)}){returns}"
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    return f"{node.name}({bases})" if bases else node.name


def _abridged(text: str, most: int) -> str:
    """Whole paragraphs from the start, one at least."""
    first, *rest = re.split(r"\n\s*\n", text.strip())
    told = first
    for paragraph in rest:
        if len(told) + len(paragraph) > most:
            break
        told += f"\n\n{paragraph}"
    return told
