"""Spans of what is done to sandboxes, linked across HTTP to whoever asked for it.

Owns the names of spans and attributes, the `traceparent` header in both directions, and the sending of spans to a
collector. Only OpenTelemetry's API is always there: without its SDK (the extra `otel`) spans are no-ops, and where a
program has set up an SDK of its own they are its. Decides nothing, and never fails what it describes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from etude.environments.wire import ServerError
from etude.errors import MissingDependency

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

SANDBOX = "etude.sandbox"
BACKEND = "etude.backend"
IMAGE = "etude.image"
OUTCOME = "etude.outcome"
_SERVICE = "etude-environments"
_EXPORT_DEADLINE_S = 5
_TRACER = trace.get_tracer("etude.environments")
_HEADERS = TraceContextTextMapPropagator()


@contextmanager
def spanned(operation: str, attributes: Mapping[str, str]) -> Generator[trace.Span]:
    """A span around the block. Its outcome is "ok", or in a word what ended it."""
    with _TRACER.start_as_current_span(f"sandbox.{operation}", attributes=dict(attributes)) as span:
        try:
            yield span
        except BaseException as error:
            span.set_attribute(OUTCOME, _outcome(error))
            raise
        span.set_attribute(OUTCOME, "ok")


@contextmanager
def continued(headers: Mapping[str, str]) -> Generator[None]:
    """In the block, spans are children of the one that a request's headers name, if they name one."""
    token = context.attach(_HEADERS.extract(headers))
    try:
        yield
    finally:
        context.detach(token)


def outgoing() -> dict[str, str]:
    """The headers by which another process continues the current span; none where there is no span."""
    headers: dict[str, str] = {}
    _HEADERS.inject(headers)
    return headers


def collected(endpoint: str | None, service: str) -> TracerProvider:
    """What makes spans that are sent to a collector, in OTLP over HTTP; None: to the one that OTEL_EXPORTER_OTLP_*
    name. Its `shutdown` sends those that still wait. Raises MissingDependency without the SDK."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MissingDependency(f"spans_to: {error.name} is not installed: pip install 'etude[otel]'") from None
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint, timeout=_EXPORT_DEADLINE_S)))
    return provider


@asynccontextmanager
async def exported(endpoint: str | None) -> AsyncGenerator[None]:
    """In the block, send this process's spans to a collector, in OTLP over HTTP; None sends them nowhere."""
    if endpoint is None:
        yield
        return
    provider = collected(endpoint, _SERVICE)
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        await asyncio.to_thread(provider.shutdown)  # sends what still waits


def _outcome(error: BaseException) -> str:
    if isinstance(error, ServerError):
        return error.kind
    return "cancelled" if isinstance(error, asyncio.CancelledError) else type(error).__name__
