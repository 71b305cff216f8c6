"""Says whether a container engine here can run sandboxes, by running one.

Owns the checks of the `docker` backend. The last starts a container on an image that the engine has, under a deadline,
and looks at it from inside.
"""

from __future__ import annotations

import asyncio
import time

from etude.environments.base import SandboxSpec
from etude.environments.docker.backend import DockerBackend
from etude.environments.docker.config import DockerConfig
from etude.environments.docker.engine import Engine
from etude.environments.plugin import Finding, run_check
from etude.errors import ConfigError, DeadlineExceeded, EtudeError

_DEADLINE_S = 120.0
_LOOK = "grep -E 'CapEff|Seccomp:|NoNewPrivs' /proc/self/status | tr -d '\\n'; ls /sys/class/net | tr '\\n' ' '"
_EXPECTED = ["CapEff:0000000000000000NoNewPrivs:1Seccomp:2", "lo"]


def probe(config: DockerConfig) -> list[Finding]:
    """Look at each part, then start a container. All `ok` means containers run here."""
    findings = [run_check("container engine", lambda: asyncio.run(_greet(config)))]
    if findings[0].ok:
        findings.append(run_check("a real container", lambda: asyncio.run(_boot(config))))
    return findings


async def _greet(config: DockerConfig) -> str:
    engine = Engine(config.socket, config.engine_timeout_s)
    await engine.close()
    return f"{engine.about.get('Version')} at {config.socket}, spoken to in version {engine.version} of its API"


async def _boot(config: DockerConfig) -> str:
    if config.image is None:
        raise ConfigError("no image to start one on: set `image` in the environment config to one that the engine has")
    backend = DockerBackend(config)
    try:
        async with asyncio.timeout(_DEADLINE_S):
            began = time.perf_counter()
            sandbox = await backend.create(SandboxSpec(files={"a": b"x"}))
            took_s = time.perf_counter() - began
            seen = (await sandbox.exec(_LOOK, timeout_s=20)).output.decode(errors="replace").replace("\t", "").split()
    except TimeoutError:
        raise DeadlineExceeded("a container to start and be looked at", _DEADLINE_S) from None
    finally:
        await backend.close()
    if "".join(seen) != "".join(_EXPECTED):
        raise EtudeError(f"it starts, but from inside it looks wrong ({' '.join(seen)[:200]}): report this as a bug")
    return f"started in {took_s:.1f} s, had no capability, no network and filtered system calls"
