"""Limits in place of the tasks' own. Owns `LimitsConfig`, which is the same wherever tasks are played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic import Field

from etude.config import Config
from etude.records import Task


class LimitsConfig(Config):
    """In place of the tasks' own limits: what is given here is given to every task."""

    max_turns: int | None = Field(None, ge=1)
    """Messages of the model in one attempt."""
    max_context_tokens: int | None = Field(None, ge=64)
    """The longest context of one attempt."""
    max_sampled_tokens: int | None = Field(None, ge=1)
    """What the model may say in one attempt, in all."""
    wall_s: float | None = Field(None, gt=0)
    """How long the tools of one attempt may run, in all."""

    def given_to(self, tasks: Sequence[Task]) -> list[Task]:
        given = self.model_dump(exclude_none=True)
        return [replace(task, limits=replace(task.limits, **given)) for task in tasks] if given else list(tasks)
