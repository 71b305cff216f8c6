"""What a sink is: a place outside Etude that the figures of a training run are told to, as the run goes on.

Owns `Sink`, which a library of experiments is reached through, `RunFacts`, and `open_sink`, which finds one by its name
in the group `etude.sinks`. Knows no library: each has a file beside this one. `export.py` says what is told, and when.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol

from etude.errors import MissingDependency
from etude.extras import extra_of, install_command
from etude.plugins import find

PROJECT = "etude"
"""The project that runs are shown in, where the library's own variable names none."""


@dataclass(frozen=True)
class RunFacts:
    """What a sink is told of a run before its figures."""

    directory: Path
    id: str
    """The same in every life of the run, and no other run's."""
    recipe: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.directory.resolve().name


class Sink(Protocol):
    """One run at one place, in a process of its own. What a method raises ends the telling, and never the run."""

    library: ClassVar[str] = ""
    """The module that it needs, if any; whether it is installed is asked before a run begins."""

    def start(self, run: RunFacts) -> None:
        """Called once in every life of the run: what an earlier one told under the same id is gone on with."""

    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Figures by name, such as `step/reward`, of a step or of the version that a step has made."""

    def finish(self, figures: Mapping[str, float]) -> str:
        """The run's summary, or nothing where it has not come to its end. Returns where a person can look at it."""
        ...


def open_sink(name: str) -> Sink:
    """Raises ConfigError saying which names there are, and MissingDependency naming the extra that is not here."""
    sink = find("sinks", name, type)
    library: str = getattr(sink, "library", "")
    spec = find_spec(library) if library else None
    if library and (spec is None or spec.origin is None):  # a mere folder of that name is a package too
        extra = extra_of(library)
        command = install_command(extra) if extra else f"pip install {library}"
        raise MissingDependency(f"{library} is not installed: {command}")
    return sink()
