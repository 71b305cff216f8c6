"""One thing a doctor looked at, and how an error becomes one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from etude.errors import EtudeError


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `remedy` is what to run or change when it is not `ok`."""

    subject: str
    ok: bool
    said: str
    remedy: str = ""

    def __str__(self) -> str:
        mark = "ok     " if self.ok else "MISSING"
        return f"{mark} {self.subject}: {self.said}" + (f"\n        do: {self.remedy}" if self.remedy else "")


def look(subject: str, see: Callable[[], str]) -> Finding:
    """What `see` says, or what its error says, up to the colon after which the remedy stands."""
    try:
        return Finding(subject, True, see())
    except EtudeError as error:
        said, _, remedy = str(error).partition(": ")
        return Finding(subject, False, said, remedy)
