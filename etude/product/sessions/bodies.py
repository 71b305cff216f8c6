"""What the bodies of requests hold.

Owns their models: unknown keys are refused with their path, and the OpenAPI document is made from the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from etude.config import Config
from etude.harness.permissions.gate import Mode


class CreateBody(Config):
    """A new session."""

    directory: Path
    """Where it works: an absolute path of a directory that is there."""
    model: str | None = Field(None, min_length=1)
    """None: the one of the server's agent config."""
    prompt: str | None = Field(None, min_length=1)
    """What to begin with."""
    mode: Mode = "ask"


class PromptBody(Config):
    """What the user says."""

    text: str = Field(min_length=1)
    model: str | None = Field(None, min_length=1)
    """Who answers from now on; None changes nothing."""
    mode: Mode | None = None
    """What is asked about from now on; None changes nothing."""
    after: int | None = Field(None, ge=1)
    """The id of the last event that the sender has seen: refused where the log has gone on since, so that sending a
    request again never says anything twice."""


class UndoBody(Config):
    """How far back."""

    turns: int | None = Field(None, ge=1)
    """None: to before the last prompt."""


class ForkBody(Config):
    """Which past the new session has."""

    line: int | None = Field(None, ge=1)
    """Up to the event with this id; None: all of it."""


class OneAnswer(Config):
    """To one question."""

    allowed: bool
    remember: Literal["once", "session", "project"] = "once"
    """How long the question's rules hold, with a yes."""
    words: str = ""
    """For the model, with a no."""


class AnswersBody(Config):
    """To the questions of one request, in their order."""

    answers: list[OneAnswer] = Field(min_length=1, fail_fast=True)
