"""What the studio answers about agents at work, and what it is asked to do with them.

Owns the dataclasses and bodies of `/api/work`. Times are Unix seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from etude.config import Config
from etude.harness.permissions.gate import Mode
from etude.studio.hunks import ChangedFile


@dataclass(frozen=True)
class AgentAnswer:
    """One agent. `session` is the id for `session/ID` and `/api/sessions/ID`; `ended` how its last prompt ended."""

    name: str
    task: str
    session: str
    state: str
    """starting, working, resting, or failed."""
    error: str | None
    ended: str | None
    turns: int
    doing: str
    """The last call that it made."""
    began_at: float
    files: int
    """That it has changed so far; lines `added` and `removed`."""
    added: int
    removed: int
    asks: int
    """Requests that wait for an answer."""


@dataclass(frozen=True)
class ConflictAnswer:
    """Two agents whose work does not merge, and where."""

    first: str
    second: str
    paths: list[str]


@dataclass(frozen=True)
class TeamAnswer:
    """Agents on one repository."""

    id: str
    directory: str
    ended: bool
    agents: list[AgentAnswer]
    conflicts: list[ConflictAnswer]


@dataclass(frozen=True)
class AskedAnswer:
    """A request that waits: answer it by POST /api/sessions/SESSION/permissions/REQUEST."""

    team: str
    agent: str
    session: str
    request: str
    questions: list[dict[str, Any]]
    """Each with tool, arguments, why, and the rules that a lasting yes would add."""


@dataclass(frozen=True)
class WorkAnswer:
    """All teams, and all that they ask, in one inbox."""

    teams: list[TeamAnswer]
    inbox: list[AskedAnswer]


@dataclass(frozen=True)
class WorkEvent:
    """Of the topic `work`, when it changes."""

    work: WorkAnswer


@dataclass(frozen=True)
class ChangesAnswer:
    """What an agent changed, as of `commit`; empty where there is nothing. `next` goes into `after` for more files."""

    commit: str
    total: int
    files: list[ChangedFile]
    next: int | None


@dataclass(frozen=True)
class Applied:
    """The paths that changed in the user's tree."""

    paths: list[str]


class TeamBody(Config):
    """A team to begin: an agent for each task."""

    directory: Path
    """The top of a git repository."""
    tasks: list[str] = Field(min_length=1, max_length=8)
    model: str | None = Field(None, min_length=1)
    """None: the one of the agent's config."""
    mode: Mode = "ask"
    """What is asked about."""


class ApplyBody(Config):
    """What to bring into the user's tree."""

    commit: str = Field(min_length=4, max_length=64)
    """Of the changes that were looked at: refused where the agent has gone on since."""
    files: dict[str, list[int] | None] | None = None
    """By path, the numbers of its hunks, from 0; null for all of the file. Left out: all files."""
    rest: bool = False
    """Whether files that are not named are brought too."""
