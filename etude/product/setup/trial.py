"""Tries an endpoint by the message that a session would ask for: with a tool, as the agent has them.

Owns `Trial` and `tried`. What goes wrong is the endpoint's own error, which says what to do.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from etude.errors import EtudeError
from etude.harness.endpoint import Endpoint, EndpointConfig
from etude.harness.endpoint.client import encode, silence
from etude.harness.endpoint.wire import Timeouts

_PATIENCE = Timeouts(connect_s=5.0, silence_s=60.0, message_s=90.0)
_TOKENS = 512
"""Some models think before they say a word."""
_TOOL = {
    "name": "read_file",
    "description": "Read a file.",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}


@dataclass(frozen=True)
class Trial:
    """How an endpoint did: `error` is empty where it answered, and says what to do where it did not."""

    config: EndpointConfig
    seconds: float
    error: str = ""
    calls: bool = False
    """Whether it called the tool, as a model can that is to be an agent."""

    @property
    def said(self) -> str:
        """In a line, for a person."""
        what = f"{self.config.model} at {self.config.url}"
        if self.error:
            return f"{what} does not answer: {self.error}"
        called = "and calls tools" if self.calls else "but called no tool when it was asked to"
        return f"{what} answers in {self.seconds:.1f} s, {called}"


async def tried(config: EndpointConfig) -> Trial:
    """One short message. Never raises what the endpoint is to blame for."""
    started = time.monotonic()
    try:
        endpoint = Endpoint(config.model_copy(update={"attempts": 1}), patience=_PATIENCE)
    except EtudeError as error:
        return Trial(config, 0.0, str(error))
    try:
        opening = endpoint.dialect.opening("You are a coding agent.", "Read the file README.md with your tool.")
        tools = [_TOOL] if config.calls == "native" else []
        said = await endpoint.ask(map(encode, opening), tools, _TOKENS, "", silence)
    except EtudeError as error:
        return Trial(config, time.monotonic() - started, str(error))
    finally:
        await endpoint.close()
    return Trial(config, time.monotonic() - started, calls=bool(said.calls) or config.calls == "text")
