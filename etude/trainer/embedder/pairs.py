"""Functions, and what is said of each in words: what an embedder learns from.

Owns `Pair`, `Apart` and `pairs_of`: of every documented Python function of a corpus, its docstring's first paragraph
and the piece of code that a search would find, in a file without docstrings. The words of both are those of the search
(`search.content`). `commits` and `sessions` make pairs of what people and agents did. What is kept out goes by print,
so a copy is told under any name, and by the name of a package.
"""

from __future__ import annotations

import ast
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from etude import syntax
from etude.errors import ConfigError
from etude.host.git import GitContext
from etude.search.content import Piece, read
from etude.search.words import words_of
from etude.tasks.git import run_git
from etude.tasks.kept_out import Function, print_of
from etude.trainer.corpus.filtering import Fate, Filters
from etude.trainer.corpus.finding import find_repositories
from etude.trainer.embedder.config import EmbedderConfig

_LEAST_WORDS, _MOST_WORDS = 4, 60
_LEAST_LINES = 2
_SAME = 3
"""So many functions of one package may have one docstring."""
Source = Literal["docstrings", "commits", "sessions"]


@dataclass(frozen=True)
class Pair:
    """A question and its answer, of one package."""

    package: str
    question: Counter[str]
    words: Counter[str]
    defined: Counter[str]
    source: Source = "docstrings"
    left: Counter[str] = field(default_factory=Counter)
    """The words of a piece that was opened for this question, and was not it; none: there is no such piece."""
    left_defined: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Apart:
    """What nothing is learned from."""

    prints: frozenset[str]
    names: frozenset[str]

    @classmethod
    def of(cls, config: EmbedderConfig) -> Apart:
        return cls(prints_of(config.kept_out), frozenset(config.names_kept_out))

    def file(self, package: str, path: str) -> bool:
        """By what its package may be called: its own name, and those of the folders that it lies in."""
        parts = PurePosixPath(path).parts
        named = {package, *parts[:-1], PurePosixPath(path).stem}
        return not self.names.isdisjoint(each.replace("-", "_") for each in named)

    def rest(self, text: str, pieces: Sequence[Piece]) -> list[Piece]:
        """The pieces of a Python file in which no function begins that is kept out."""
        within = {line: at for at, piece in enumerate(pieces) for line in span(piece)}
        begun = [(within[node.lineno - 1], node) for node in _functions(text) if node.lineno - 1 in within]
        out = {at for at, node in begun if print_of(node)[0] in self.prints}
        return [piece for at, piece in enumerate(pieces) if at not in out]


def span(piece: Piece) -> range:
    """Its lines, from 0."""
    return range(piece.first, piece.end)


def question_of(text: str, least: int = _LEAST_WORDS) -> Counter[str] | None:
    """The words of what was said or asked; None where they are too few to tell anything."""
    question = Counter(words_of(" ".join(text.split()[:_MOST_WORDS])))
    return question if len(question) >= least else None


def pairs_of(
    config: EmbedderConfig, told: Callable[[Fate], None] = lambda _: None, apart: Apart | None = None
) -> Iterator[Pair]:
    """In an order that the seed and the files decide; `told` hears what became of each file."""
    out = apart or Apart.of(config)
    found: dict[str, list[Pair]] = {}
    for fate in Filters(config.corpus).fates(find_repositories(config.corpus)):
        told(fate)
        package = fate.repository.name
        if fate.fate == "train" and fate.language == "python" and not out.file(package, fate.file.path):
            found.setdefault(package, []).extend(_of_file(package, fate.file.path, fate.text, out))
    for package, pairs in found.items():
        pairs = list(_without_repeats(pairs))
        random.Random(f"{config.seed} {package}").shuffle(pairs)
        yield from pairs[: config.most_pairs_a_package]


def prints_of(places: Sequence[Path]) -> frozenset[str]:
    """Of all functions below directories and in bundles of git: what tells a copy of one."""
    found: set[str] = set()
    for place in places:
        if place.is_dir():
            found.update(_prints_below(place))
        elif place.is_file():
            with tempfile.TemporaryDirectory() as directory:
                at, bundles = GitContext(cwd=Path(directory)), {"GIT_ALLOW_PROTOCOL": "file"}
                run_git("clone", "-q", "--", str(place.resolve()), "it", at=at, env=bundles)
                found.update(_prints_below(Path(directory)))
        else:
            raise ConfigError(f"kept_out: {place} is not there; name directories or bundles of git")
    return frozenset(found)


def _prints_below(directory: Path) -> Iterator[str]:
    texts = {path.read_bytes() for path in directory.rglob("*.py") if path.is_file()}  # tasks repeat most of a tree
    for text in texts:
        for node in _functions(text.decode("utf-8", "replace")):
            yield print_of(node)[0]


def _of_file(package: str, path: str, text: str, out: Apart) -> Iterator[Pair]:
    functions = [(node, said) for node in _functions(text) if (said := _said(node)) is not None]
    kept = [(node, said) for node, said in functions if print_of(node)[0] not in out.prints]
    if not kept:
        return
    lines = text.split("\n")
    for node, _ in functions:
        doc = node.body[0]
        lines[doc.lineno - 1 : doc.end_lineno] = [""] * ((doc.end_lineno or doc.lineno) - doc.lineno + 1)
    pieces = read(path, "\n".join(lines).encode("utf-8", "replace"), grams=False).pieces
    for node, said in kept:
        piece = _holding(pieces, node.lineno - 1)
        question = question_of(said)
        if piece is not None and piece.words and question is not None:
            yield Pair(package, question, piece.words, piece.defined)


def _functions(text: str) -> list[Function]:
    try:
        return [node for node in ast.walk(syntax.parse(text)) if isinstance(node, Function)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _said(node: Function) -> str | None:
    """The first paragraph of a docstring; None where there is none, or nothing else in the function."""
    said = ast.get_docstring(node)
    if said is None or len(node.body) < 2 or (node.end_lineno or 0) - node.lineno < _LEAST_LINES:
        return None
    return said.split("\n\n")[0]


def _holding(pieces: Sequence[Piece], line: int) -> Piece | None:
    return next((piece for piece in pieces if piece.first <= line < piece.end), None)


def _without_repeats(pairs: Sequence[Pair]) -> Iterator[Pair]:
    had: Counter[frozenset[str]] = Counter()
    for pair in pairs:
        said = frozenset(pair.question)
        had[said] += 1
        if had[said] <= _SAME:
            yield pair
