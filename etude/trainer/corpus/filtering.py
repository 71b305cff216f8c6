"""From all files that were found to the texts that are kept: each file has one fate, and every fate a name.

Owns the order of the filters, cheap ones first, and `Fate`. What is held out goes through them before all that is
trained on: so a file that copies one of those, in another repository or in an older form, is not trained on. Never
writes (`corpus.store`) and makes no tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from etude.harness.secrets import Redactor
from etude.trainer.corpus.config import CorpusConfig
from etude.trainer.corpus.copies import Copies
from etude.trainer.corpus.exam import Exam
from etude.trainer.corpus.finding import MOST_BYTES, File, Repository, Split
from etude.trainer.corpus.languages import language_of
from etude.trainer.corpus.licences import Licences, is_permissive
from etude.trainer.corpus.quality import fault_of, text_of

KEPT = get_args(Split)
DROPPED = {
    "language": "its name says no language, or one that was not asked for",
    "unreadable": "it could not be read",
    "too_large": f"more than {MOST_BYTES:,} bytes",
    "binary": "no text in UTF-8",
    "too_small": "hardly anything in it",
    "minified": "written for a machine to read",
    "generated": "it says that a program wrote it",
    "long_lines": "lines too long to be written by hand",
    "data": "mostly numbers or strings",
    "exam": "real-code tasks are made of it (etude/tasks/kept_out.py)",
    "secret": "it holds a key, a token or a password",
    "licence": "its licence is not permissive, not known, or not said",
    "copy": "word for word as an earlier file",
    "near_copy": "at least four fifths as an earlier file",
    "held_out_copy": "a copy, or nearly, of a file that is held out",
}
"""Why a file is not in a corpus, by the name that the manifest counts it under."""


@dataclass(frozen=True)
class Fate:
    """What became of one file: `fate` is its split, or a key of `DROPPED`. `text` is there where it is kept."""

    repository: Repository
    split: Split
    file: File
    fate: str
    language: str = ""
    licence: str = ""
    text: str = ""


class Filters:
    """Of one corpus."""

    def __init__(self, config: CorpusConfig) -> None:
        self.config = config
        self._copies = Copies()
        self._held_out = 0
        """How many of the texts that there are so far are held out: the first ones."""

    def fates(self, repositories: Sequence[Repository]) -> Iterator[Fate]:
        """Of every file, what is held out first."""
        for split in KEPT:
            for repository in repositories:
                if files := repository.files.get(split):
                    yield from self._of(repository, split, files)

    def _of(self, repository: Repository, split: Split, files: list[File]) -> Iterator[Fate]:
        by_path = repository.beside
        licences = Licences(by_path, lambda path: next(repository.read([by_path[path]]))[1])
        exam = Exam(repository.name, by_path)
        wanted = []
        for file in files:
            if fault := self._by_name(file):
                yield Fate(repository, split, file, fault)
            else:
                wanted.append(file)
        for file, data in repository.read(wanted):
            yield self._read(Fate(repository, split, file, "unreadable", language_of(file.path)), data, licences, exam)

    def _by_name(self, file: File) -> str | None:
        language = language_of(file.path)
        if not language or (self.config.languages and language not in self.config.languages):
            return "language"
        return "too_large" if file.bytes > MOST_BYTES else None

    def _read(self, found: Fate, data: bytes | None, licences: Licences, exam: Exam) -> Fate:
        if data is None:
            return found
        place, text = (found.repository, found.split, found.file), text_of(data)
        if text is None:
            return Fate(*place, "binary", found.language)
        path = found.file.path
        fault = fault_of(path, text, found.language) or ("exam" if exam.holds(path, text) else None)
        if fault is not None:
            return Fate(*place, fault, found.language)
        licence = licences.of(path, text)
        if self.config.licences == "permissive" and not is_permissive(licence):
            return Fate(*place, "licence", found.language, licence)
        fault = "secret" if holds_secret(text) else self._copied(found.split, text)
        kept = text if fault is None else ""
        return Fate(*place, fault or found.split, found.language, licence, kept)

    def _copied(self, split: Split, text: str) -> str | None:
        copy = self._copies.find(text)
        if copy is None:
            self._held_out += split == "held_out"
            return None
        if split == "train" and copy.of < self._held_out:
            return "held_out_copy"
        return "copy" if copy.exact else "near_copy"


def holds_secret(text: str) -> bool:
    """Whether the agent's redaction (`harness.secrets`) would take anything out of it."""
    redactor = Redactor()
    redactor.redact(text)
    return bool(redactor.counts)
