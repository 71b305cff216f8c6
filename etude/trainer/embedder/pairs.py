"""Functions, and what is said of each in words: what an embedder learns from.

Owns `Pair` and `pairs_of`: of every documented Python function of a corpus, its docstring's first paragraph and the
piece of code that a search would find, in a file without docstrings. The words of both are those of the search
(`search.content`). What is kept out goes by print, so a copy is told under any name, and by the name of a package.
"""

from __future__ import annotations

import ast
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

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


@dataclass(frozen=True)
class Pair:
    """A question and its answer, of one package."""

    package: str
    question: Counter[str]
    words: Counter[str]
    defined: Counter[str]


def pairs_of(config: EmbedderConfig, told: Callable[[Fate], None] = lambda _: None) -> Iterator[Pair]:
    """In an order that the seed and the files decide; `told` hears what became of each file."""
    out = prints_of(config.kept_out)
    names = frozenset(config.names_kept_out)
    found: dict[str, list[Pair]] = {}
    for fate in Filters(config.corpus).fates(find_repositories(config.corpus)):
        told(fate)
        package = fate.repository.name
        if fate.fate == "train" and fate.language == "python" and names.isdisjoint(_names(package, fate.file.path)):
            found.setdefault(package, []).extend(_of_file(package, fate.file.path, fate.text, out))
    for package, pairs in found.items():
        pairs = list(_without_repeats(pairs))
        random.Random(f"{config.seed} {package}").shuffle(pairs)
        yield from pairs[: config.most_pairs_a_package]


def prints_of(places: Sequence[Path]) -> frozenset[str]:
    """Of all functions below directories and in bundles of git: what tells a copy of one, less its name."""
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
            yield print_of(node)[0][1]


def _of_file(package: str, path: str, text: str, out: frozenset[str]) -> Iterator[Pair]:
    functions = [(node, said) for node in _functions(text) if (said := _said(node)) is not None]
    kept = [(node, said) for node, said in functions if print_of(node)[0][1] not in out]
    if not kept:
        return
    lines = text.split("\n")
    for node, _ in functions:
        doc = node.body[0]
        lines[doc.lineno - 1 : doc.end_lineno] = [""] * ((doc.end_lineno or doc.lineno) - doc.lineno + 1)
    pieces = read(path, "\n".join(lines).encode("utf-8", "replace"), grams=False).pieces
    for node, said in kept:
        piece = _holding(pieces, node.lineno - 1)
        question = Counter(words_of(said))
        if piece is not None and piece.words and len(question) >= _LEAST_WORDS:
            yield Pair(package, question, piece.words, piece.defined)


def _functions(text: str) -> list[Function]:
    try:
        return [node for node in ast.walk(ast.parse(text)) if isinstance(node, Function)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _said(node: Function) -> str | None:
    """The first paragraph of a docstring; None where there is none, or nothing else in the function."""
    said = ast.get_docstring(node)
    if said is None or len(node.body) < 2 or (node.end_lineno or 0) - node.lineno < _LEAST_LINES:
        return None
    return " ".join(said.split("\n\n")[0].split()[:_MOST_WORDS])


def _holding(pieces: Sequence[Piece], line: int) -> Piece | None:
    return next((piece for piece in pieces if piece.first <= line < piece.end), None)


def _without_repeats(pairs: Sequence[Pair]) -> Iterator[Pair]:
    had: Counter[frozenset[str]] = Counter()
    for pair in pairs:
        said = frozenset(pair.question)
        had[said] += 1
        if had[said] <= _SAME:
            yield pair


def _names(package: str, path: str) -> set[str]:
    """What a file's package may be called: by its own name, and by the folders that it lies in."""
    parts = PurePosixPath(path).parts
    return {package, *parts[:-1], PurePosixPath(path).stem}
