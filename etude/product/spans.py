"""A session as spans, by OpenTelemetry's conventions for generative AI.

    invoke_agent etude ── chat MODEL
                       ├─ execute_tool read_file
                       └─ execute_tool run_terminal_cmd

Owns `Spans` and all names of spans and attributes, which those conventions still change. One more projection of a
session's events, made while they happen: a prompt is a span, whatever ends it; each message of the model is one, from
the request on, with what the endpoint says it cost; and each call. What was said stands in them only where that was
asked for. Decides nothing, and never fails what it describes.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from etude import __version__
from etude.harness.endpoint import Delta, Retry
from etude.harness.endpoint.completion import Usage
from etude.records import Event

AGENT = "etude"
OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
AGENT_NAME, AGENT_VERSION = "gen_ai.agent.name", "gen_ai.agent.version"
CONVERSATION = "gen_ai.conversation.id"
REQUEST_MODEL = "gen_ai.request.model"
FINISH = "gen_ai.response.finish_reasons"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT, CACHED, OUTPUT = (
    "gen_ai.usage.input_tokens", "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.output_tokens",
)  # fmt: skip
TOOL_NAME, TOOL_TYPE, TOOL_CALL = "gen_ai.tool.name", "gen_ai.tool.type", "gen_ai.tool.call.id"
TOOL_ARGUMENTS, TOOL_RESULT = "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"
INPUT_MESSAGES, OUTPUT_MESSAGES = "gen_ai.input.messages", "gen_ai.output.messages"
SERVER, PORT, ERROR = "server.address", "server.port", "error.type"
TURN, STOP = "etude.turn", "etude.stop"
_ASKS = {"prompt", "observation", "opening", "summary_asked", "resumed"}
"""After these the model is asked for a message."""


class Spans:
    """Of one session. `heard` is told its events, `wrote` what the model writes, `used` what a message cost."""

    def __init__(self, tracer: Tracer, session_id: str, url: str, *, content: bool = False) -> None:
        self._tracer, self._content = tracer, content
        self._about = {CONVERSATION: session_id, AGENT_NAME: AGENT}
        where = urlsplit(url)
        port = where.port or (443 if where.scheme == "https" else 80)
        self._server: dict[str, str | int] = {PROVIDER: "openai", SERVER: where.hostname or "", PORT: port}
        self._model = ""
        self._invocation: Span | None = None
        self._asked: int | None = None
        """When the model was asked for the message that it owes; in nanoseconds."""
        self._first: int | None = None
        self._cost: Usage | None = None
        self._arguments: dict[str, str] = {}
        self._running: dict[str, Span] = {}
        self._stop = ""
        self._totals: Counter[str] = Counter()
        """Tokens of this invocation, by attribute."""
        self.ended: Counter[str] = Counter()
        """Spans that were made, by operation."""

    @contextmanager
    def invoked(self) -> Generator[None]:
        """The block plays a prompt, or does another piece of work that the user asked for."""
        span = self._tracer.start_span(f"invoke_agent {AGENT}", kind=SpanKind.INTERNAL, attributes=self._about)
        span.set_attributes({OPERATION: "invoke_agent", AGENT_VERSION: __version__})
        self._invocation, self._stop = span, ""
        self._totals.clear()
        try:
            yield
        except BaseException as error:
            self._broken_off("cancelled" if isinstance(error, asyncio.CancelledError) else _kind(error))
            self._failed(span, self._stop)
            raise
        finally:
            for id in list(self._running):
                self._result(id, {"error": True, "text": ""}, "interrupted")
            span.set_attributes({REQUEST_MODEL: self._model, STOP: self._stop or "finished", **self._totals})
            self._invocation = self._asked = None
            self._end(span, "invoke_agent")

    def cancelled(self) -> None:
        """The user stopped what the block does."""
        self._broken_off("cancelled")

    def _broken_off(self, why: str) -> None:
        """The message that the model owes does not come."""
        self._stop = why
        if self._asked is not None:
            self._chat({}, error=why)

    def used(self, model: str, usage: Usage) -> None:
        """What the message that comes next in the log cost."""
        self._model, self._cost = model, usage

    def wrote(self, delta: Delta) -> None:
        """The model writes."""
        if isinstance(delta, Retry):
            self._first = None
        elif self._first is None:
            self._first = time.time_ns()

    def heard(self, event: Event) -> None:
        """One more event in the log."""
        data = event.data
        if event.kind in _ASKS:
            self._asked, self._first, self._cost = time.time_ns(), None, None
        match event.kind:
            case "session" | "model":
                self._model = data.get("model", self._model)
            case "prompt" if self._content and self._invocation is not None:
                self._invocation.set_attribute(INPUT_MESSAGES, _message("user", data["user"]))
            case "completion":
                self._chat({TURN: data["turn"], FINISH: [data["finish"]]}, data["text"])
            case "summary":
                self._chat({FINISH: ["stop"]}, data["text"])
            case "tool_call":
                self._arguments[_id(data)] = json.dumps(data.get("arguments", {"malformed": data.get("raw")}))
            case "tool_started":
                self._running[_id(data)] = self._call(data)
            case "tool_result":
                self._result(_id(data), data, "tool_error")
            case "end":
                self._stop = data["stop"]

    # --- one span each ------------------------------------------------------------------------------------------------

    def _chat(self, known: Mapping[str, Any], text: str = "", error: str = "") -> None:
        """From the request to now."""
        asked, self._asked = self._asked or time.time_ns(), None
        span = self._tracer.start_span(
            f"chat {self._model}", self._parent(), SpanKind.CLIENT, self._about | self._server, start_time=asked
        )
        span.set_attributes({OPERATION: "chat", REQUEST_MODEL: self._model, **known})
        if self._first is not None:
            span.set_attribute(FIRST_CHUNK, (self._first - asked) / 1e9)
        if self._cost is not None:
            cost = {INPUT: self._cost.prompt, CACHED: self._cost.cached, OUTPUT: self._cost.completion}
            span.set_attributes(cost)
            if self._invocation is not None:
                self._totals.update(cost)
        if self._content and text:
            span.set_attribute(OUTPUT_MESSAGES, _message("assistant", text))
        if error:
            self._failed(span, error)
        self._cost = None
        self._end(span, "chat")

    def _call(self, data: Mapping[str, Any]) -> Span:
        span = self._tracer.start_span(f"execute_tool {data['name']}", self._parent(), attributes=self._about)
        span.set_attributes({OPERATION: "execute_tool", TOOL_NAME: data["name"], TOOL_TYPE: "function"})
        span.set_attributes({TOOL_CALL: _id(data), TURN: data["turn"]})
        return span

    def _result(self, id: str, data: Mapping[str, Any], error: str) -> None:
        """Ends the call's span; one that was never begun has none."""
        arguments, span = self._arguments.pop(id, ""), self._running.pop(id, None)
        if span is None:
            return
        if self._content:
            span.set_attributes({TOOL_ARGUMENTS: arguments, TOOL_RESULT: data["text"]})
        if data["error"]:
            self._failed(span, error)
        self._end(span, "execute_tool")

    def _parent(self) -> Any:
        return None if self._invocation is None else trace.set_span_in_context(self._invocation)

    def _failed(self, span: Span, error: str) -> None:
        span.set_attribute(ERROR, error)
        span.set_status(Status(StatusCode.ERROR, error))

    def _end(self, span: Span, operation: str) -> None:
        self.ended[operation] += 1
        span.end()


def _id(data: Mapping[str, Any]) -> str:
    return f"{data['turn']}.{data['index']}"


def _message(role: str, text: str) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])


def _kind(error: BaseException) -> str:
    """An error by the name that others know it by: few names, for those who count them."""
    return next(each.__name__ for each in type(error).__mro__ if each.__module__ in ("etude.errors", "builtins"))
