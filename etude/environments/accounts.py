"""What a server's sandboxes have been through: one event a step, and the figures an operator watches.

Owns the event log (one JSON line a step of a sandbox's life, in the order they happened) and the Prometheus registry of
one node, and puts a span around what it times. Measures and counts; decides nothing. A figure that is read from the
machine is read when it is asked for.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
from opentelemetry import trace
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from etude.durable import append_whole
from etude.environments.egress.policy import REASONS
from etude.environments.wire import ServerError

SANDBOX = "etude.sandbox"
BACKEND = "etude.backend"
IMAGE = "etude.image"
OUTCOME = "etude.outcome"
"""Attributes of spans."""
_TRACER = trace.get_tracer("etude.environments")
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)
_OPERATIONS = ("create", "fork", "exec", "snapshot", "destroy")
_PSI = ("cpu", "memory", "io")
_LEAKS_FRESH_S = 30.0


class Telemetry:
    """Of one node. `leaks` says how many things of sandboxes that are gone are still there; it may be slow.

    `egress` gives, for each backend that lets sandboxes out, what became of their requests.
    """

    def __init__(
        self, events: Path, leaks: Callable[[], int], egress: Callable[[], Mapping[str, Mapping[str, int]]]
    ) -> None:
        self._file = _Lines(events)
        self._log = structlog.wrap_logger(
            self._file,
            processors=[
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.JSONRenderer(serializer=_line),
            ],
        )
        self.registry = CollectorRegistry()
        self._warn = structlog.get_logger("environments")
        self._unwritten = Counter(
            "etude_environments_events_unwritten", "Steps the event log had no room for.", registry=self.registry
        )
        self._steps = Counter(
            "etude_environments_steps", "Steps of sandboxes' lives.", ["step"], registry=self.registry
        )
        self.waiting = Gauge(
            "etude_environments_starts_waiting", "Sandboxes asked for, not ready.", registry=self.registry
        )
        self.alive = Gauge("etude_environments_alive", "Sandboxes alive.", ["backend"], registry=self.registry)
        self._seconds = {
            name: Histogram(
                f"etude_environments_{name}_seconds",
                f"How long {name} took, where it succeeded.",
                ["backend"],
                buckets=_SECONDS,
                registry=self.registry,
            )
            for name in _OPERATIONS
        }
        self._leaks, self._egress = leaks, egress
        self._leaked: tuple[float, int] | None = None
        self.registry.register(self)

    def step(self, step: str, sandbox: str, **facts: Any) -> None:
        """Write down one step: created, exec, snapshot, forked, paused, resumed, expired, destroyed, failed."""
        self._steps.labels(step).inc()
        try:
            self._log.info(step, sandbox=sandbox, **facts)
        except OSError as error:  # an account that is kept with a gap is better than a sandbox that is not ended
            self._unwritten.inc()
            self._warn.warning(
                "event not written", step=step, sandbox=sandbox, file=str(self._file.path), why=str(error)
            )

    @contextmanager
    def timed(self, operation: str, backend: str, image: str, sandbox: str | None = None) -> Generator[trace.Span]:
        """Observe how long the block takes, not at all when it raises; and a span around it either way."""
        named = {} if sandbox is None else {SANDBOX: sandbox}
        began = time.perf_counter()
        with traced_operation(operation, {BACKEND: backend, IMAGE: image, **named}) as span:
            yield span
        self._seconds[operation].labels(backend).observe(time.perf_counter() - began)

    def exposition(self) -> bytes:
        """The registry in Prometheus' text form."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """For the registry, what is looked up when somebody asks: pressure now, leaks at most every half minute, and
        what proxies count, under every reason there is: a refusal that never was is a zero to be seen.
        """
        pressure = GaugeMetricFamily(
            "etude_environments_pressure", "Share of the last ten seconds in which some, or all, work waited.",
            labels=["resource", "kind"],
        )  # fmt: skip
        for resource in _PSI:
            for kind, percent in psi(resource).items():  # none on a kernel without
                pressure.add_metric([resource, kind], percent / 100)
        yield pressure
        now = time.monotonic()
        if self._leaked is None or now - self._leaked[0] > _LEAKS_FRESH_S:
            self._leaked = now, self._leaks()
        yield GaugeMetricFamily("etude_environments_leaks", "Left of sandboxes that are gone.", value=self._leaked[1])
        requests = CounterMetricFamily(
            "etude_environments_egress_requests", "What sandboxes asked of their proxies, by what became of it.",
            labels=["backend", "outcome"],
        )  # fmt: skip
        for backend, outcomes in self._egress().items():
            for outcome in ("allowed", *REASONS):
                requests.add_metric([backend, outcome], outcomes.get(outcome, 0))
        yield requests

    def close(self) -> None:
        self._file.close()


class _Lines:
    """A file of lines, each whole or not there: of one that the disk took in part nothing stays."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def info(self, event: bytes) -> None:
        append_whole(self._file, event + b"\n", self.path)

    def close(self) -> None:
        os.close(self._file)


@contextmanager
def traced_operation(operation: str, attributes: Mapping[str, str]) -> Generator[trace.Span]:
    """A span around the block. Its outcome is "ok", or in a word what ended it."""
    with _TRACER.start_as_current_span(f"sandbox.{operation}", attributes=dict(attributes)) as span:
        try:
            yield span
        except BaseException as error:
            span.set_attribute(OUTCOME, _outcome(error))
            raise
        span.set_attribute(OUTCOME, "ok")


def _outcome(error: BaseException) -> str:
    if isinstance(error, ServerError):
        return error.kind
    return "cancelled" if isinstance(error, asyncio.CancelledError) else type(error).__name__


def psi(resource: str, proc: Path = Path("/proc")) -> dict[str, float]:
    """avg10 of `resource` ("cpu", "memory", "io") by kind ("some", "full"), in percent; {} on a kernel without."""
    try:
        lines = (proc / "pressure" / resource).read_text().splitlines()
    except OSError:
        return {}
    kinds = (line.split() for line in lines)
    return {kind: float(average.removeprefix("avg10=")) for kind, average, *_ in kinds}


def _line(event: dict[str, Any], **_: Any) -> bytes:
    return json.dumps(event, sort_keys=True).encode()
