"""Spans that are linked across HTTP to whoever asked for what they tell of.

Owns the `traceparent` header in both directions, and the sending of spans to a collector. Only OpenTelemetry's API is
always there: without its SDK (the extra `otel`) spans are no-ops, and where a program has set up an SDK of its own they
are its. Decides nothing, and never fails what it describes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from etude.errors import MissingDependency
from etude.extras import install_command

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_EXPORT_DEADLINE_S = 5
_HEADERS = TraceContextTextMapPropagator()


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
        raise MissingDependency(f"spans_to: {error.name} is not installed: {install_command('otel')}") from None
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint, timeout=_EXPORT_DEADLINE_S)))
    return provider


@asynccontextmanager
async def exported(endpoint: str | None, service: str) -> AsyncGenerator[None]:
    """In the block, send this process's spans to a collector, in OTLP over HTTP; None sends them nowhere."""
    if endpoint is None:
        yield
        return
    provider = collected(endpoint, service)
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        await asyncio.to_thread(provider.shutdown)  # sends what still waits
