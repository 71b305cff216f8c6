"""Sessions of agents as labels: what was searched for, and what turned out to be the answer.

Owns `pairs_of_sessions`. Of a session whose patch passed, the answer is what the patch edited, then what was opened and
is named in what was written. What was opened and is neither was left: it looked right and was not, so it is the wrong
answer that a search has most to learn from. The question is each that was put to `codebase_search`, and one with
hindsight: of the instruction, what speaks of the answer. A session that failed, one of an evaluation and one on a task
that is not for training says nothing here. Files are known as far as the session read or changed them.
"""

from __future__ import annotations

import difflib
import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.archive.archived import Archived
from etude.archive.query import Filter
from etude.archive.reader import ArchiveReader
from etude.errors import ConfigError
from etude.search.content import Piece, lines_of, read
from etude.search.words import words_of
from etude.trainer.embedder.config import EmbedderConfig
from etude.trainer.embedder.pairs import Apart, Pair, question_of, span

_MOST_PIECES, _MOST_LEFT = 5, 4
"""Of what was edited or used for one question, and of what was left."""
_LEAST_WORDS = 2
"""Of a question: who searches says less than a docstring does."""
_NOTE = re.compile(r"\[(cut: line|lines) \d+")
"""With what `read_file` ends where there is more."""
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


@dataclass(frozen=True)
class _Session:
    package: str
    instruction: str
    calls: tuple[tuple[str, Mapping[str, Any], str], ...]
    """Tool, arguments and what it answered, of calls that did not fail."""
    files: Mapping[str, tuple[str, str]]
    """Of those that it changed: before and after."""


@dataclass(frozen=True)
class _Labels:
    edited: tuple[Piece, ...]
    used: tuple[Piece, ...]
    left: tuple[Piece, ...]


def pairs_of_sessions(config: EmbedderConfig, apart: Apart) -> Iterator[Pair]:
    """Of each place in turn; a question with one answer once, however many sessions put it."""
    for place in config.sessions.directories:
        known: set[tuple[frozenset[object], ...]] = set()
        for session in _sessions(place):
            for pair in _pairs(session, _labels(session, apart)):
                key = tuple(frozenset[object](bag.items()) for bag in (pair.question, pair.words, pair.left))
                if key not in known:
                    known.add(key)  # attempts at one task are much alike
                    yield pair


def _pairs(session: _Session, labels: _Labels) -> Iterator[Pair]:
    answers = [*labels.edited, *labels.used][:_MOST_PIECES]
    if not labels.edited or len(labels.edited) > _MOST_PIECES:
        return
    searched = [str(given.get("query", "")) for tool, given, _ in session.calls if tool == "codebase_search"]
    for text in dict.fromkeys([*searched, _with_hindsight(session.instruction, answers)]):
        if (question := question_of(text, _LEAST_WORDS)) is None:
            continue
        for at in range(max(len(answers), min(len(labels.left), _MOST_LEFT))):
            right = answers[at % len(answers)]
            wrong = [labels.left[at % len(labels.left)]] if labels.left else []
            more = [bag for piece in wrong for bag in (piece.words, piece.defined)]
            yield Pair(session.package, question, right.words, right.defined, "sessions", *more)


def _with_hindsight(instruction: str, answers: Iterable[Piece]) -> str:
    """The sentences that share a word with what turned out to be the answer: how to run the tests is none of them."""
    known = {word for piece in answers for word in piece.words}
    return " ".join(each for each in _SENTENCE.split(instruction) if not known.isdisjoint(words_of(each)))


def _labels(session: _Session, apart: Apart) -> _Labels:
    opened = _opened(session.calls)
    written = [
        frozenset(words_of(line))
        for before, after in session.files.values()
        for line in sorted({*after.split("\n")} - {*before.split("\n")})
    ]
    edited: list[Piece] = []
    rest: list[Piece] = []
    for path in sorted(opened.keys() | session.files.keys()):
        if apart.file(session.package, path):
            continue
        lines = opened.get(path, {})
        before, after = session.files.get(path, (_as_read(lines), None))
        touched = set() if after is None else _touched(before, after)
        for piece in _told_apart(path, before, apart):
            if not touched.isdisjoint(span(piece)):
                edited.append(piece)
            elif 2 * sum(at in lines for at in span(piece)) >= len(span(piece)):
                rest.append(piece)
    used = [piece for piece in rest if any(piece.defined.keys() <= line for line in written)]
    return _Labels(tuple(edited), tuple(used), tuple(piece for piece in rest if piece not in used))


def _told_apart(path: str, text: str, apart: Apart) -> list[Piece]:
    """The definitions of a file, less those that are kept out."""
    pieces = [piece for piece in read(path, text.encode("utf-8", "replace"), grams=False).pieces if piece.defined]
    return apart.rest(text, pieces) if pieces and path.endswith(".py") else pieces


def _opened(calls: Iterable[tuple[str, Mapping[str, Any], str]]) -> dict[str, dict[int, str]]:
    """Of each file the lines, from 0, that `read_file` showed."""
    found: dict[str, dict[int, str]] = {}
    for tool, given, text in calls:
        if tool == "read_file":
            first, rows = given.get("start", 1), lines_of(text)
            rows = rows[: -1 if _NOTE.match(rows[-1]) else None]
            own = found.setdefault(_path(str(given.get("path", ""))), {})
            own.update(enumerate(rows, max(first if isinstance(first, int) else 1, 1) - 1))
    return found


def _path(path: str) -> str:
    return posixpath.normpath(path.removeprefix("/workspace/"))


def _as_read(lines: Mapping[int, str]) -> str:
    """A file of which some lines are known, each in its place."""
    return "\n".join(lines.get(at, "") for at in range(max(lines, default=-1) + 1))


def _touched(before: str, after: str) -> set[int]:
    """The lines, from 0, that were changed or removed, or that a new one was put between."""
    found: set[int] = set()
    compared = difflib.SequenceMatcher(None, lines_of(before), lines_of(after), autojunk=False)
    for kind, first, end, _, _ in compared.get_opcodes():
        if kind != "equal":
            found.update(range(first, end) if kind != "insert" else (first - 1, first))
    return found


# --- where sessions lie -----------------------------------------------------------------------------------------------


def _sessions(place: Path) -> Iterator[_Session]:
    """Those that passed, of training. Raises ConfigError where there are none."""
    if place.is_dir():
        with ArchiveReader(place) as reader:
            reader.refresh(wait=True)
            found = (reader.trajectory(row.id) for row in reader.every(Filter(solved=True, phase="training")))
            yield from _some(place, (_archived(place, each) for each in found if each is not None))
    elif place.is_file():
        with place.open(encoding="utf-8") as rows:
            yield from _some(place, (_exported(place, number, row) for number, row in enumerate(rows, 1)))
    else:
        raise ConfigError(f"sessions.directories: {place} is not there; name runs, or files that runs export wrote")


def _some(place: Path, found: Iterable[_Session | None]) -> Iterator[_Session]:
    none = True
    for each in found:
        if each is not None:
            none = False
            yield each
    if none:
        raise ConfigError(f"sessions.directories: {place} has no session of training that passed")


def _archived(place: Path, found: Archived) -> _Session | None:
    if (task := found.task) is None or task.split != "train":
        return None
    files = [(each.path, _text(each.before), _text(each.after), each.cut) for each in found.files]
    return _session(place, task.instruction, task.provenance, [said.event.data for said in found.said], files)


def _exported(place: Path, number: int, row: str) -> _Session | None:
    """A line of `archive.export`."""
    try:
        told = json.loads(row)
        if not (told["solved"] and told["phase"] == "training" and told["task"]["split"] == "train"):
            return None
        files = [(each["path"], each["before"], each["after"], each["cut"]) for each in told["files"]]
        return _session(place, told["task"]["instruction"], told["task"]["provenance"], told["events"], files)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        said = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{place}: line {number} is not of `etude runs export --format jsonl` ({said})") from None


def _session(
    place: Path, instruction: str, provenance: Mapping[str, Any], events: Iterable[Mapping[str, Any]],
    files: Sequence[tuple[str, str | None, str | None, bool]],
) -> _Session:  # fmt: skip
    asked: dict[tuple[Any, Any], Mapping[str, Any]] = {}
    calls = []
    for event in events:
        where = event.get("turn"), event.get("index")
        if isinstance(event.get("arguments"), Mapping):
            asked[where] = event["arguments"]
        elif "error" in event and not event["error"] and where in asked:
            calls.append((str(event["name"]), asked[where], str(event["text"])))
    changed = {path: (before, after) for path, before, after, cut in files if before and after and not cut}
    return _Session(str(provenance.get("repository") or place.name), instruction, tuple(calls), changed)


def _text(side: bytes | None) -> str | None:
    return None if side is None or b"\0" in side else side.decode("utf-8", "replace")
