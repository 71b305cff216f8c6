"""Whether a session's spans are sent to a collector, and how.

Owns `spans_of`. Off unless the config names a collector, or OpenTelemetry's own variables do; nothing of OpenTelemetry
is imported until then. Each session has a way of its own to the collector, which ends with it, so that a program that
opens sessions keeps whatever it has set up for itself. If a collector cannot be reached, OpenTelemetry's logger reports
it, and the session goes on.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ParamSpec

from etude.errors import MissingDependency
from etude.extras import install_command
from etude.harness.endpoint import Delta
from etude.harness.endpoint.completion import Usage
from etude.product.config import AgentConfig
from etude.records import Event

if TYPE_CHECKING:
    from etude.product.spans import Spans

_NAMED = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_SERVICE = "etude-agent"
_P = ParamSpec("_P")


@asynccontextmanager
async def spans_of(config: AgentConfig, session_id: str) -> AsyncGenerator[Spans | None]:
    """What makes a session's spans, which are all sent when the block ends; None where nobody collects them."""
    if not wanted(config.spans_to, os.environ):
        yield None
        return
    try:
        from etude.product.spans import Spans
        from etude.serving.tracing import collected
    except ModuleNotFoundError as error:
        raise MissingDependency(f"spans_to: {error.name} is not installed: {install_command('otel')}") from None
    provider = collected(config.spans_to, _SERVICE)
    content = config.spans_content or os.environ.get(_CONTENT, "").lower() in ("1", "true")
    try:
        yield Spans(provider.get_tracer("etude.product"), session_id, config.endpoint.url, content=content)
    finally:
        await asyncio.to_thread(provider.shutdown)  # sends what still waits


def watched(
    spans: Spans | None,
    on_event: Callable[[Event], None],
    on_delta: Callable[[Delta], None],
    on_usage: Callable[[str, Usage], None],
) -> tuple[Callable[[Event], None], Callable[[Delta], None], Callable[[str, Usage], None]]:
    """The same listeners, behind those of the spans, if there are any."""
    if spans is None:
        return on_event, on_delta, on_usage
    return _both(spans.heard, on_event), _both(spans.wrote, on_delta), _both(spans.used, on_usage)


def wanted(to: str | None, env: Mapping[str, str]) -> bool:
    """Whether the config, or the environment as OpenTelemetry reads it, says where spans go."""
    if to is not None:
        return True
    off = env.get("OTEL_SDK_DISABLED", "").lower() == "true" or env.get("OTEL_TRACES_EXPORTER") == "none"
    return not off and any(env.get(name) for name in _NAMED)


def _both(first: Callable[_P, None], second: Callable[_P, None]) -> Callable[_P, None]:
    def both(*args: _P.args, **named: _P.kwargs) -> None:
        first(*args, **named)
        second(*args, **named)

    return both
