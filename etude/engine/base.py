"""The engine seam as the rest of the system sees it: samples tokens, and takes new weights while it does.

Owns the `Engine` protocol. Two implementations: our own (`engine.torch_engine`) and one over HTTP to a vLLM or SGLang
server (`engine.foreign`); `engine.opening` makes the one that a recipe asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Protocol

import numpy as np

from etude.harness.sampler import Sampler
from etude.records import Version


class Engine(Sampler, Protocol):
    """Safe to call from any thread or event loop."""

    version: Version
    """The weights that the next token will be sampled with."""

    def swap(self, bits: Mapping[str, np.ndarray], version: Version) -> Future[float]:
        """Stage new weights; the future ends when they are served, with the seconds that sampling stood still for it.
        A swap staged before this one and not yet begun is superseded: 0. What runs meanwhile goes on, each token marked
        with the version that sampled it.
        """
        ...

    def cancel(self, session_id: str) -> None:
        """Drop a session's requests, if any; whoever waits for one is cancelled."""
        ...

    def raise_if_down(self) -> None:
        """Raises the error that stopped the engine for good, if it has stopped."""
        ...

    def stats(self) -> dict[str, float]:
        """Counters since the start, and gauges."""
        ...

    def close(self, timeout_s: float = 60.0) -> None:
        """Fail what is still running and end what was started."""
        ...
