"""Questions with known answers, from histories that are pinned: what search.py asks.

`locate`: a commit's message, the tree before it, and the files and functions that it changed. From the tasks in
`benchmarks/mined`, whose bundles hold both trees. `of_clone`: the same of a clone that is at hand, by the miner's own
rules and without running a test. `doc`: a docstring, and the function it was taken from, in a tree
without docstrings.
"""

from __future__ import annotations

import ast
import random
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from etude.tasks.mined.history import History
from etude.tasks.mined.instruction import instruction_of
from etude.tasks.mined.split import MineLimits, Rejected, split_commit

MINED = Path(__file__).parents[1] / "mined"
PARTS = {
    "development": ("boltons", "toolz"),
    "sealed": ("cachetools", "more-itertools", "sqlparse"),
}
"""By repository. Nothing is chosen on the sealed ones. docs/search.md lists each time that they were asked."""
_DOCS = 120
_LEAST_WORDS = 5
_LOOKED_AT = 2000
Span = tuple[str, int, int]
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Question:
    """A tree, what is asked of it, and the answer: files, and spans of lines from 1 in them."""

    repository: str
    tree: dict[str, bytes]
    text: str
    files: frozenset[str]
    functions: tuple[Span, ...]


def names_its_answer(question: Question) -> bool:
    """Whether a right function's own name is a word of the question: then finding it is looking it up."""
    for path, first, _ in question.functions:
        line = question.tree[path].decode("utf-8", "replace").split("\n")[first - 1]
        if (defined := re.search(r"def\s+(\w+)", line)) and re.search(rf"\b{defined[1]}\b", question.text):
            return True
    return False


def unpacked(repository: str, at: Path) -> Path:
    """The tasks of a bundle, as directories."""
    target = at / repository
    words = ["git", "-c", "advice.detachedHead=false", "clone", "-q", str(MINED / f"{repository}.bundle"), str(target)]
    subprocess.run(words, check=True, timeout=300)
    return target


def locate(repository: str, tasks: Path) -> Iterator[Question]:
    """One for each task: what stands in its solution and stood otherwise before. Files that are new are no answer."""
    for task in sorted(path.parent for path in tasks.glob("*/instruction.md")):
        tree = files_below(task / "environment" / "workspace")
        after = files_below(task / "solution" / "files")
        changed = {path for path, data in after.items() if path in tree and tree[path] != data}
        message = (task / "instruction.md").read_text().split("\n\nTests run with ")[0].strip()
        if changed and message:
            spans = tuple(span for path in sorted(changed) for span in _changed(path, tree[path], after[path]))
            yield Question(repository, tree, message, frozenset(changed), spans)


def of_clone(clone: Path, revision: str, most: int) -> Iterator[Question]:
    """Of the newest commits that change source and tests, and whose message says what is wanted and not how."""
    return (question for question, _ in answered(clone, revision, most))


def answered(clone: Path, revision: str, most: int) -> Iterator[tuple[Question, dict[str, bytes]]]:
    """The same, each with the commit's source after it."""
    history = History(clone)
    limits, found = MineLimits(workspace_mb=48), 0
    for commit in history.commits(revision, _LOOKED_AT):
        candidate = split_commit(history, commit, limits)
        if isinstance(candidate, Rejected):
            continue
        message = instruction_of(candidate)
        tree, after = candidate.before.files, candidate.answer
        changed = {path for path in after if path in tree}
        if isinstance(message, Rejected) or not changed:
            continue
        spans = tuple(span for path in sorted(changed) for span in _changed(path, tree[path], after[path]))
        yield Question(str(clone), tree, message.strip(), frozenset(changed), spans), after
        if (found := found + 1) == most:
            return


def doc(repository: str, tasks: Path) -> Iterator[Question]:
    """Of the newest tree that a task has."""
    newest = max(tasks.glob("*/task.toml"), key=lambda path: _committed(path.read_text()))
    tree = files_below(newest.parent / "environment" / "workspace")
    asked: list[tuple[str, Span]] = []
    for path, data in sorted(tree.items()):
        if path.endswith(".py") and (bare := _without_docs(path, data)) is not None:
            tree[path], found = bare
            asked += found
    for text, span in random.Random(repository).sample(asked, min(_DOCS, len(asked))):
        yield Question(repository, tree, text, frozenset({span[0]}), (span,))


def files_below(root: Path) -> dict[str, bytes]:
    """All plain files, by their paths."""
    paths = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(paths)}


def _committed(task: str) -> str:
    return next(line for line in task.splitlines() if line.startswith("committed = "))


def _functions(data: bytes) -> list[_Function]:
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, _FUNCTION)]


def _changed(path: str, before: bytes, after: bytes) -> Iterator[Span]:
    """The functions of a file that are not in it afterwards with the same text. What stands beside one that came or
    went is no answer, and of one within another the inner alone is, where nothing else of the outer changed."""
    later = {text for _, text in _texts(after)}
    for node, text in _texts(before):
        if text not in later:
            yield path, node.lineno, node.end_lineno or node.lineno


def _texts(data: bytes) -> Iterator[tuple[_Function, str]]:
    """Functions with their lines, decorators among them and without those of functions within."""
    lines = data.decode("utf-8", "replace").split("\n")
    for node in _functions(data):
        inside = {line for each in ast.walk(node) if isinstance(each, _FUNCTION) and each is not node
                  for line in _lines(each)}  # fmt: skip
        yield node, "\n".join(lines[number - 1] for number in _lines(node) if number not in inside)


def _lines(node: _Function) -> range:
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    return range(first, (node.end_lineno or node.lineno) + 1)


def _without_docs(path: str, data: bytes) -> tuple[bytes, list[tuple[str, Span]]] | None:
    """The file with its functions' docstrings blank, line for line, and what they said."""
    lines = data.splitlines()
    found: list[tuple[str, Span]] = []
    for node in _functions(data):
        text = ast.get_docstring(node)
        if text is None or len(node.body) < 2 or _of_tests(path):
            continue
        doc = node.body[0]
        for number in range(doc.lineno - 1, doc.end_lineno or doc.lineno):
            lines[number] = b""
        first = " ".join(text.split("\n\n")[0].split())
        if len(first.split()) >= _LEAST_WORDS:
            found.append((first, (path, node.lineno, node.end_lineno or node.lineno)))
    return (b"\n".join(lines) + b"\n", found) if found else None


def _of_tests(path: str) -> bool:
    return "test" in path
