"""Commits as labels: what a message asked for, and the functions that the commit changed, in the tree before it.

Owns `pairs_of_commits`. The message is read as the miner reads it (`tasks.mined.instruction`): what is of the commit
and not of what was wanted is taken out. Nothing is checked out and nothing is run. A commit that changes much is passed
over: its message is about none of its functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from etude.search.content import Piece, most_bytes, read
from etude.tasks.mined.history import Commit, Edited, History
from etude.tasks.mined.instruction import wanted_of
from etude.tasks.mined.split import Rejected, is_source
from etude.trainer.corpus.exam import Exam
from etude.trainer.corpus.licences import Licences, is_permissive
from etude.trainer.embedder.config import EmbedderConfig
from etude.trainer.embedder.pairs import Apart, Pair, question_of, span

_MOST_FILES, _MOST_SOURCES, _MOST_PIECES = 12, 4, 5
"""Of Python files that a commit changes, of those that are source, and of pieces in them."""
_LOOKED_AT = 20
"""Commits that are looked at for one that is asked for."""
_AT_ONCE = 64
"""Commits whose files are held."""


def pairs_of_commits(config: EmbedderConfig, apart: Apart) -> Iterator[Pair]:
    """Of each repository the newest commits first."""
    for directory in config.commits.directories:
        yield from _Repository(directory, config, apart).pairs()


@dataclass(frozen=True)
class _Asked:
    """A commit that may be learned from."""

    question: Counter[str]
    files: tuple[Edited, ...]


class _Repository:
    def __init__(self, directory: Path, config: EmbedderConfig, apart: Apart) -> None:
        self.history = History(directory)
        self.name = directory.name.removesuffix(".git")
        self._config, self._apart = config, apart
        self._head = self.history.head("HEAD")
        paths = self.history.paths(self._head)
        self._exam = Exam(self.name, paths)
        self._licences = Licences(paths, lambda path: self.history.file(self._head, path))

    def pairs(self) -> Iterator[Pair]:
        used, most = 0, self._config.commits.most
        commits = self.history.commits(self._head, most * _LOOKED_AT)
        for at in range(0, len(commits), _AT_ONCE):
            for found in self._of(commits[at : at + _AT_ONCE]):
                yield from found
                used += 1
                if used == most:
                    return

    def _of(self, commits: Sequence[Commit]) -> Iterator[list[Pair]]:
        """The pairs of each commit that has some."""
        edited = self.history.edited(commits, "*.py")
        asked = [each for commit, files in edited if (each := self._asked(commit, files)) is not None]
        texts = iter(self.history.blobs([file.object_id for each in asked for file in each.files]))
        for each in asked:
            pieces = [piece for file in each.files for piece in self._changed(file, next(texts))]
            if 0 < len(pieces) <= _MOST_PIECES:
                yield [Pair(self.name, each.question, piece.words, piece.defined, "commits") for piece in pieces]

    def _asked(self, commit: Commit, files: Sequence[Edited]) -> _Asked | None:
        sources = [file for file in files if is_source(file.path) and not self._apart.file(self.name, file.path)]
        if len(files) > _MOST_FILES or not 0 < len(sources) <= _MOST_SOURCES:
            return None
        wanted = wanted_of(commit.message)
        question = None if isinstance(wanted, Rejected) else question_of(" ".join(wanted))
        return None if question is None else _Asked(question, tuple(sources))

    def _changed(self, file: Edited, data: bytes) -> list[Piece]:
        """The definitions of a file that a commit touched; none of a file that nothing may be learned from."""
        text = data.decode("utf-8", "replace")
        if len(data) > most_bytes(file.path) or self._exam.holds(file.path, text):
            return []
        licence = self._licences.of(file.path, text)
        if self._config.corpus.licences == "permissive" and not is_permissive(licence):
            return []
        pieces = read(file.path, data, grams=False).pieces
        touched = [each for each in pieces if each.defined and any(at - 1 in span(each) for at in file.lines)]
        return self._apart.rest(text, touched) if touched else []
