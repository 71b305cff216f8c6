"""Many sandboxes at once through a server: how long each step takes, and what fails.

Owns the measurement alone; the sandboxes are asked for as any client asks for them, and are gone afterwards.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from typing import Any

from etude.environments.backends import open_backend
from etude.environments.base import Backend, SandboxSpec
from etude.environments.remote import RemoteConfig
from etude.errors import ConfigError, EtudeError, SandboxError

_STEPS = ("create", "exec", "destroy")


async def burst(config: RemoteConfig, count: int, command: str) -> dict[str, Any]:
    """Figures of `count` sandboxes: p50, p90, p99 and max of every step in milliseconds, and failures by name."""
    if count < 1:
        raise ConfigError(f"burst: {count} sandboxes cannot be made; ask for one or more")
    backend = open_backend(config)
    took: dict[str, list[float]] = {step: [] for step in _STEPS}
    failures: Counter[str] = Counter()
    began = time.perf_counter()
    try:
        await asyncio.gather(*(_one(backend, command, took, failures) for _ in range(count)))
    finally:
        await backend.close()
    if not took["create"]:
        raise SandboxError(f"none of {count} sandboxes lived to its end: {failures.most_common(1)[0][0]}")
    figures: dict[str, Any] = {"count": count, "seconds": round(time.perf_counter() - began, 3)}
    for step, seconds in took.items():
        figures |= {f"{step}_ms_{name}": round(value, 3) for name, value in _shares(seconds).items()}
    return {**figures, "failed": failures.total(), "failures": dict(failures), "backend": backend.capabilities.name}


async def _one(backend: Backend, command: str, took: dict[str, list[float]], failures: Counter[str]) -> None:
    try:
        began = time.perf_counter()
        box = await backend.create(SandboxSpec())
        created = time.perf_counter()
        result = await box.exec(command)
        ran = time.perf_counter()
        await box.destroy()
        ended = time.perf_counter()
        if result.exit_code:
            raise SandboxError(f"the command ended with {result.exit_code}: {result.output[:200]!r}")
    except (EtudeError, OSError) as error:
        failures[f"{type(error).__name__}: {error}"] += 1
        return
    for step, seconds in zip(_STEPS, (created - began, ran - created, ended - ran), strict=True):
        took[step].append(seconds)


def _shares(seconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=100, method="inclusive") if len(seconds) > 1 else seconds * 99
    return {"p50": cuts[49] * 1e3, "p90": cuts[89] * 1e3, "p99": cuts[98] * 1e3, "max": max(seconds) * 1e3}
