"""An instance of a data set of others, as it was read: what a task can be made of.

Owns `Instance`. `swe` and `r2e` read them, `rewards.mining.importing` makes tasks of them. Data only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Instance:
    """One line. `patch` is the solution, or with `is_bug` what has to be undone."""

    id: str
    repository: str
    """`owner/name`."""
    commit: str
    patch: str
    test_patch: str
    statement: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    created: str | None = None
    is_bug: bool = False
    fixed: str = ""
    """The commit that is the solution, where no patch is."""
    tests: Mapping[str, bytes] = field(default_factory=dict)
    """Test files that the line brings itself."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What else the line says and a task's provenance can hold: version, difficulty, image_name."""
    not_taken: tuple[str, ...] = ()
    """Fields that say something of which the task has nothing, each with why."""
    refused: str = ""
    """Why there can be no task of it."""
    where: str = field(default="", compare=False)
    """The file and line it was read from."""

    @property
    def task_id(self) -> str:
        """By which its task, and the directory of that, is named. Different ids may give the same."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.id)


def refusal(name: str, why: str) -> Instance:
    """A line that can be no task."""
    return Instance(name, "", "", "", "", "", (), (), refused=why)
