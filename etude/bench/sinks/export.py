"""Tells the figures of a training run to a sink: those that are there, and those to come.

    metrics.jsonl ──Tail──► figures_of ──► Sink.log          sinks/NAME.json: the run's id there, and what was told
    summary.json  ─────────────────────► Sink.finish

Owns `export`, what of a run is told, under which names, and that file. A figure's name is `KIND/KEY` of metrics.jsonl,
with a dot of another `/` where a key holds a table. Of steps and versions each is told once, by its number: what a
resumed run makes again keeps the figures that it had, and a process that is killed may take what it had told last with
it. Reads the files of a run alone, so it is the same for one that goes on and for one that is over.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from etude.bench.sinks.base import RunFacts, Sink
from etude.deadlines import scaled
from etude.durable import write_whole
from etude.errors import ConfigError, DeadlineExceeded, EtudeError
from etude.host.lock import wait_for
from etude.rollouts.lines import whole

NUMBERED = {"step": "step", "delivery": "version"}
"""The kinds of lines that are told, and the key that numbers them."""
FINISH_S = 60.0
"""How long a sink may take to send what it still has, once the run is over."""
FOLDER = "sinks"
"""In the run's directory: for each sink what it was told, and what its process said."""


def figures_of(table: Mapping[str, Any], above: str) -> dict[str, float]:
    """Every number in it by its name; what is no number is left out."""
    found: dict[str, float] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= figures_of(value, f"{above}/{key}")
        elif isinstance(value, int | float):
            found[f"{above}/{key}"] = float(value)
    return found


class Tail:
    """The lines that a file gets; where another has taken its place, as in a run that is resumed, all of that one's."""

    def __init__(self, path: Path) -> None:
        self.path, self._inode, self._at = path, -1, 0

    def rows(self) -> list[dict[str, Any]]:
        """Those since the last call."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return []
        with file:
            found = os.fstat(file.fileno())
            if found.st_ino != self._inode or found.st_size < self._at:
                self._inode, self._at = found.st_ino, 0
            file.seek(self._at)
            lines, ending, _ = file.read().rpartition(b"\n")
            self._at += len(lines) + len(ending)
        return whole(lines)


class Told:
    """What a sink knows of a run, over all its lives: `sent` has the highest number of each kind."""

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / FOLDER / f"{name}.json"
        found = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.id: str = found.get("id") or uuid.uuid4().hex[:8]
        self.sent: dict[str, int] = found.get("sent", {})
        self.save()

    def save(self) -> None:
        write_whole(self.path, (json.dumps({"id": self.id, "sent": self.sent}) + "\n").encode())

    def new(self, rows: list[dict[str, Any]]) -> Iterator[tuple[dict[str, float], int]]:
        """The figures that it does not know yet, each with its number."""
        for row in rows:
            kind = row.get("kind", "")
            if kind in NUMBERED and (number := int(row[NUMBERED[kind]])) > self.sent.get(kind, 0):
                yield figures_of({key: value for key, value in row.items() if key != NUMBERED[kind]}, kind), number
                self.sent[kind] = number


def export(directory: Path, name: str, sink: Sink, ended: Callable[[], bool]) -> dict[str, Any]:
    """Tell the sink of this name all that it does not know of the run, until the run has `ended`, which is asked before
    each look at the files and may wait. Returns what was told. Raises ConfigError for a directory without a run, and
    EtudeError for whatever the sink raises.
    """
    recipe = directory / "recipe.json"
    if not recipe.exists():
        raise ConfigError(f"{directory}: no run here; give the directory that `etude train` writes")
    with _alone(directory, name):
        told, tail = Told(directory, name), Tail(directory / "metrics.jsonl")
        try:
            sink.start(RunFacts(directory, told.id, json.loads(recipe.read_text())))
            over = False
            while not over:
                over = ended()
                for figures, number in told.new(tail.rows()):
                    sink.log(figures, number)
                told.save()
            see = sink.finish(_summary(directory))
        except (EtudeError, OSError):
            raise
        except Exception as error:  # somebody else's library, which may raise anything
            raise EtudeError(f"{name}: {type(error).__name__}: {error}") from error
    return {"sink": name, "id": told.id, "sent": told.sent, "see": see}


@contextlib.contextmanager
def _alone(directory: Path, name: str) -> Generator[None]:
    """One process at a time tells one sink; that of an earlier life of the run is about to end."""
    log = directory / FOLDER / f"{name}.log"
    log.parent.mkdir(exist_ok=True)
    with log.open("ab") as file:
        if not wait_for(file.fileno(), scaled(FINISH_S)):
            raise DeadlineExceeded(f"another process to end that tells {name} of this run", scaled(FINISH_S))
        yield


def _summary(directory: Path) -> dict[str, float]:
    path = directory / "summary.json"
    return figures_of(json.loads(path.read_text()), "summary") if path.exists() else {}
