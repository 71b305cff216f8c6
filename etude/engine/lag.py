"""How far one replica is behind the trainer, for operators: as Prometheus metrics and as one JSON object.

Owns the figures of what came in and what failed. The lag of a version is the time from the writing of its manifest
until this replica can sample with it, by two clocks: keep them in step. A replica that was cut off takes the newest
version when it is back, with a small lag; `stale_seconds` says for how long it had served an old one. Decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from etude.weights.subscriber import FetchResult

_HELP = {
    "version": "The version that is served; -1 before the first has come from the store.",
    "lag_seconds": "From the served version's being visible in the store to its being served here.",
    "longest_lag_seconds": "The longest such lag since the start.",
    "stale_seconds": "How old the version was that the served one took the place of.",
    "longest_stale_seconds": "The longest such age since the start.",
    "age_seconds": "How long ago the served version became visible in the store.",
    "loads": "Versions that came in.",
    "load_bytes": "Bytes of payloads that came in.",
    "load_failures": "Loads that failed; each is tried again.",
}
_COUNTERS = ("loads", "load_bytes", "load_failures")


class Lag:
    """Of one replica, in a `region` that may be named."""

    def __init__(self, region: str = "") -> None:
        self.region = region
        self.trouble: str | None = None
        """Why the last load failed; None once one has gone well since."""
        self._version, self._published = -1, 0.0
        self._last_s = self._longest_s = self._stale_s = self._longest_stale_s = 0.0
        self._loads = self._bytes = self._failures = 0

    def version_applied(self, fetched: FetchResult) -> None:
        """A version is served now."""
        now = time.time()
        if self._version >= 0:
            self._stale_s = now - self._published
            self._longest_stale_s = max(self._longest_stale_s, self._stale_s)
        self._version, self._published, self.trouble = int(fetched.version), fetched.time, None
        self._last_s = now - fetched.time
        self._longest_s = max(self._longest_s, self._last_s)
        self._loads += 1
        self._bytes += fetched.payload_bytes

    def update_failed(self, error: Exception) -> None:
        self._failures += 1
        self.trouble = str(error)

    def figures(self) -> dict[str, Any]:
        """All of it, under the metrics' names; None for what no version has told yet."""
        served = self._version >= 0
        return {
            "region": self.region,
            "version": self._version,
            "lag_seconds": self._last_s if served else None,
            "longest_lag_seconds": self._longest_s if served else None,
            "stale_seconds": self._stale_s if served else None,
            "longest_stale_seconds": self._longest_stale_s if served else None,
            "age_seconds": time.time() - self._published if served else None,
            "loads": self._loads,
            "load_bytes": self._bytes,
            "load_failures": self._failures,
            "trouble": self.trouble,
        }

    def collect(self) -> Iterator[Metric]:
        for name, value in self.figures().items():
            if name in _HELP and value is not None:
                family = CounterMetricFamily if name in _COUNTERS else GaugeMetricFamily
                metric = family(f"etude_weights_{name}", _HELP[name], labels=["region"])
                metric.add_metric([self.region], value)
                yield metric
