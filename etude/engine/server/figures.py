"""What an operator watches of the engine's server.

Owns the Prometheus registry of one server: requests by route and outcome, tokens, how long the first token and the
whole took, and what the engine counts itself, read when it is asked for. Measures and counts; decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120)
_GAUGES = ("running", "waiting", "version", "pages", "pages_held", "cache_tokens", "sessions_idle")
_RECENT = 0.1
"""Weight of one request in the mean duration that refusals are told to wait."""


class Figures:
    """Of one server. `engine` and `service` give present values by name."""

    def __init__(self, engine: Callable[[], Mapping[str, float]], service: Callable[[], Mapping[str, float]]) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "etude_engine_requests", "Requests by route and how they ended.", ["route", "outcome"],
            registry=self.registry,
        )  # fmt: skip
        self._tokens = Counter("etude_engine_tokens", "Tokens of requests.", ["kind"], registry=self.registry)
        self._first = self._histogram("first_token_seconds", "From a request's coming to its first token.")
        self._whole = self._histogram("request_seconds", "From a request's coming to its end.")
        self._engine, self._service = engine, service
        self.registry.register(self)
        self.mean_s = 1.0
        """How long requests take, of late."""

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"etude_engine_{name}", text, ["route"], buckets=_SECONDS, registry=self.registry)

    def first_token(self, route: str, seconds: float) -> None:
        """A request has its first token."""
        self._first.labels(route).observe(seconds)

    def ended(self, route: str, outcome: str, seconds: float) -> None:
        """A request is over: ok, refused, failed, cancelled or aborted."""
        self._requests.labels(route, outcome).inc()
        if outcome == "ok":
            self._whole.labels(route).observe(seconds)
            self.mean_s += _RECENT * (seconds - self.mean_s)

    def refused(self, route: str) -> None:
        """A request was not let in."""
        self._requests.labels(route, "refused").inc()

    def tokens(self, prompt: int, cached: int, sampled: int) -> None:
        """The tokens of a request that is over."""
        for kind, count in (("prompt", prompt), ("cached", cached), ("sampled", sampled)):
            self._tokens.labels(kind).inc(count)

    def exposition(self) -> bytes:
        """The registry in Prometheus' text form."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """For the registry: what the engine and the service say of themselves now."""
        for name, value in self._engine().items():
            if name in _GAUGES:
                yield GaugeMetricFamily(f"etude_engine_{name}", f"The engine's {name}, now.", value=value)
            else:
                yield CounterMetricFamily(f"etude_engine_{name}", f"The engine's {name}, since its start.", value=value)
        for name, value in self._service().items():
            yield GaugeMetricFamily(f"etude_engine_server_{name}", f"The server's {name}.", value=value)
