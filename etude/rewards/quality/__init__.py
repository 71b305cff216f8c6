"""What a change is worth beside being right: lints, style, work left undone, and how it is told.

    files before and after ──► style · unfinished ──┐
    a fresh sandbox ──► lints ──────────────────────┼──► Quality: what is wrong, a line each
    the log ──► unfinished · talk ──────────────────┘

Owns `Quality`, `QualityConfig` and `quality_of`. Each part is looked at only where it costs something; what it costs is
`rewards.reward`'s to say. Reads what a session left; never runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from etude.config import Config
from etude.environments.archive import Archive
from etude.environments.base import Backend
from etude.records import Event, InfraFailed, Task
from etude.rewards.audit.state import Workspace, given_workspace
from etude.rewards.quality.lints import introduced
from etude.rewards.quality.style import Style, style_of
from etude.rewards.quality.talk import talk_faults
from etude.rewards.quality.unfinished import unfinished

__all__ = ["Quality", "QualityConfig", "Style", "quality_of"]


MESSAGE_CHARS = 1500
"""A longer last message is a fault: a screen says what was done."""


class QualityConfig(Config):
    """What each fault costs a rollout that solved its task. 0 turns a part off: it is not looked at."""

    lint_penalty: float = Field(0.0, ge=0)
    """For each lint that the session brought in."""
    style_penalty: float = Field(0.0, ge=0)
    """Times the share of places where the change breaks a convention of its project."""
    todo_penalty: float = Field(0.0, ge=0)
    """For each thing left undone by its own account."""
    talk_penalty: float = Field(0.0, ge=0)
    """For each fault of its last message."""
    cap: float = Field(0.3, gt=0, lt=1)
    """Of each part. Together with the effort's it should stay below 1, so that a solved rollout is worth more than an
    unsolved one."""

    def idle(self) -> dict[str, str]:
        return {} if self.looked_at else {"cap": "where nothing has a penalty"}

    @property
    def looked_at(self) -> bool:
        return any((self.lint_penalty, self.style_penalty, self.todo_penalty, self.talk_penalty))


@dataclass(frozen=True)
class Quality:
    """None for a part that nobody asked for."""

    lints: tuple[str, ...] | None = None
    style: Style | None = None
    unfinished: tuple[str, ...] | None = None
    talk: tuple[str, ...] | None = None

    @property
    def faults(self) -> tuple[str, ...]:
        """Everything found, a line each, for logs and reports."""
        breaches = self.style.breaches if self.style else ()
        return (*(self.lints or ()), *map(str, breaches), *(self.unfinished or ()), *(self.talk or ()))


async def quality_of(
    task: Task, events: Sequence[Event], final: Archive, left: Workspace, backend: Backend, config: QualityConfig
) -> Quality | InfraFailed:
    """Of a session and what it left, as an archive and read; InfraFailed where lints could not be looked for, and
    SandboxSpoiled where what was left kept them from it."""
    given = given_workspace(task.files)
    lints = await introduced(task, final, left.files, backend) if config.lint_penalty else None
    if isinstance(lints, InfraFailed):
        return lints
    before, after = _texts(given), _texts(left)
    return Quality(
        lints=lints,
        style=style_of(before, after) if config.style_penalty else None,
        unfinished=unfinished(events, before, after) if config.todo_penalty else None,
        talk=talk_faults(events, before, after, MESSAGE_CHARS) if config.talk_penalty else None,
    )


def _texts(workspace: Workspace) -> dict[str, str]:
    """What is text."""
    return {path: data.decode("utf-8", "replace") for path, data in workspace.files.items() if b"\0" not in data}
