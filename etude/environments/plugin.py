"""What makes a kind of sandbox known: one object, found by its name in the entry-point group `etude.backends`.

    [project.entry-points."etude.backends"]
    mine = "my_package.sandboxes:PLUGIN"

Owns `Plugin`, `BackendTable`, and `Finding`, what a plug-in says of a machine. `environments.backends` finds and opens
them; docs/extending.md adds one.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from etude.config import Config
from etude.environments.base import Backend
from etude.errors import EtudeError


class BackendTable(Config):
    """The `environment` table of a recipe."""

    kind: str = ""
    """The plug-in's name; every config of one has its own as the default."""


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `remedy` is what to run or change when it is not `ok`."""

    subject: str
    ok: bool
    detail: str
    remedy: str = ""

    def __str__(self) -> str:
        mark = "ok     " if self.ok else "MISSING"
        return f"{mark} {self.subject}: {self.detail}" + (f"\n        do: {self.remedy}" if self.remedy else "")


def run_check(subject: str, check: Callable[[], str]) -> Finding:
    """What `check` says, or what its error says, up to the colon after which the remedy stands."""
    try:
        return Finding(subject, True, check())
    except EtudeError as error:
        said, _, remedy = str(error).partition(": ")
        return Finding(subject, False, said, remedy)


@dataclass(frozen=True)
class Plugin:
    """One kind of sandbox backend. Must be quick to import: `open` and `probe` may be given as "module:name", as entry
    points are, and are imported when they are needed."""

    config: type[BackendTable]
    open: Callable[[Any], Backend] | str
    """Opens it by its config. Raises MissingDependency, or EtudeError saying what is missing."""
    probe: Callable[[Any], list[Finding]] | str | None = None
    """What this machine lacks for it; the last finding is a real sandbox. None for what another machine makes."""
    variants: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What `etude environments doctor` looks at, by name, with what is set in the config; empty: it, as it is."""
    sweep: Callable[[Any], None] | None = None
    """Removes what dead processes have left of such sandboxes; None where a server or an engine does."""
    meant_by: str = ""
    """The level of isolation that this is the backend for, where a config names nothing else."""
    extra: str = "environments"
    """The extra of `pip install` that has what `open` imports."""

    def create_backend(self, config: BackendTable) -> Backend:
        return _resolved(self.open)(config)

    def run_probe(self, config: BackendTable) -> list[Finding]:
        """What this machine lacks; nothing of a kind that is made elsewhere."""
        return [] if self.probe is None else _resolved(self.probe)(config)


def _resolved(named: Callable[[Any], Any] | str) -> Callable[[Any], Any]:
    return pkgutil.resolve_name(named) if isinstance(named, str) else named
