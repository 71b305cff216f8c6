"""Which model judges, and how much it is asked.

Owns `JudgeConfig` and `JudgeEndpointConfig`. Opens no connection.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from etude.config import Config
from etude.harness.endpoint.config import EndpointConfig, ServerConfig

MAX_CHARS = 60_000
"""A longer change is not judged: half of one would be judged wrongly, and whole it would crowd the criterion out."""


class JudgeEndpointConfig(ServerConfig):
    """The model that judges: each question is a conversation of one message, without tools."""

    def with_body(self, body: dict[str, Any]) -> EndpointConfig:
        """The endpoint that answers, with more keys in each request."""
        return EndpointConfig.model_validate(dict(self) | {"body": {**self.body, **body}})


class JudgeConfig(Config):
    """One judge. What it may cost is `votes` requests a criterion, as many a change for the control, and one more for
    each yes to a change that brings words: comments, docstrings, pages of text, or a last message. The control is a
    question whose answer is known to be no: a judge that says yes to it has been talked into something, and nothing it
    says of that change counts. And a yes must stand when it is asked again without those words."""

    endpoint: JudgeEndpointConfig
    """Where the judge is, and how it is asked."""
    votes: int = Field(1, ge=1)
    """Odd: the majority counts, and a criterion that has none within these votes is not judged."""
    max_tokens: int = Field(2048, ge=64)
    """Longest answer, with the thinking before it. A verdict itself is a few lines: a small model that does not think
    has gone astray long before, and 256 cut it sooner."""
    structured: Literal["schema", "asked"] = "schema"
    """Have the server hold the model to the answer's JSON schema (`response_format`), or only ask for it, where a
    server does not know that key."""

    @model_validator(mode="after")
    def _checked(self) -> JudgeConfig:
        if self.votes % 2 == 0:
            raise ValueError("votes must be odd, so that a majority exists")
        if "response_format" in self.endpoint.body:
            raise ValueError("endpoint.body.response_format is the judge's; set judge.structured")
        return self
