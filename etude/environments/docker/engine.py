"""The Docker Engine's HTTP API over its unix socket, as far as sandboxes need it.

Owns the connection, the version both sides speak, and what the engine's refusals become. An attached container's
streams are `attach`'s. Knows nothing of sandboxes; every request has a deadline.
"""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from etude.errors import DeadlineExceeded, MissingDependency, SandboxError
from etude.serving.trust import trust

NEWEST = (1, 44)
"""The newest version of the API whose fields we know. An older engine is spoken to in its own version."""
OLDEST = (1, 40)
ADVICE = (
    "start one (`systemctl start docker`, or `podman system service --time=0 unix:///run/podman/podman.sock`), name "
    "its socket with `socket` in the environment config, and be root or of the group that may use it"
)
_ENGINE = "http://engine"
_ARCHIVE_MAX = 256 << 20
_JUST_S = 30.0


@dataclass(frozen=True)
class Use:
    """What a container takes: the part of the memory it may have that cannot be had back, and processors."""

    memory: float
    processors: float


class EngineError(SandboxError):
    """The engine answered, and refused. `status` is the HTTP status."""

    def __init__(self, what: str, status: int, said: str) -> None:
        super().__init__(f"the container engine refuses to {what}: {said}")
        self.what = what
        self.status = status
        self.said = said

    def __reduce__(self) -> tuple[type, tuple[str, int, str]]:
        return type(self), (self.what, self.status, self.said)


class Engine:
    """One engine. Use on one event loop; the caller closes it."""

    def __init__(self, socket: Path, wait_s: float) -> None:
        """Raises MissingDependency where no engine answers."""
        self.socket = socket
        self._wait_s = wait_s
        self.about = _greet(socket, wait_s)
        self.version = _common_version(self.about)
        self._http = httpx2.AsyncClient(
            transport=httpx2.AsyncHTTPTransport(verify=trust(_ENGINE), uds=str(socket)),
            base_url=_ENGINE,
            timeout=wait_s,
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(
        self,
        method: str,
        path: str,
        what: str,
        body: Mapping[str, Any] | None = None,
        fine: tuple[int, ...] = (),
        **query: str,
    ) -> Any:
        """The engine's answer to one request. `what` completes "refuses to"; a status in `fine` gives None."""
        answer = await self._request(method, path, what, body, query)
        if answer.status_code in fine:
            return None
        _check(answer, what)
        try:
            return answer.json() if answer.content else None
        except ValueError:
            raise SandboxError(f"cannot {what}: {self.socket} answers something else than a container engine") from None

    async def archive(self, container: str, path: str, what: str) -> bytes | None:
        """A tar of a file or directory of a container; None where it has none there."""
        answer = await self._request("GET", f"/containers/{container}/archive", what, None, {"path": path})
        if answer.status_code == 404:
            return None
        _check(answer, what)
        if len(answer.content) > _ARCHIVE_MAX:
            raise SandboxError(f"{what}: more than {_ARCHIVE_MAX >> 20} MiB")
        return answer.content

    async def ends(self, container: str) -> set[str]:
        """What has just happened to a container that ended, as the engine's events name it; nothing before it knows."""
        now = time.time()
        query = {"since": f"{now - _JUST_S:.3f}", "until": f"{now:.3f}"}
        query["filters"] = json.dumps({"container": [container], "event": ["die", "died", "oom"]})
        answer = await self._request("GET", "/events", "say what became of a container", None, query)
        _check(answer, "say what became of a container")
        happened = {str(json.loads(line).get("Action")) for line in answer.text.splitlines() if line}
        return happened if happened & {"die", "died"} else set()

    async def use(self, container: str) -> Use:
        """What a container takes now; the engine looks for a second or two."""
        said = await self.ask("GET", f"/containers/{container}/stats", "say what a container uses", stream="false")
        try:
            now, before, memory = said["cpu_stats"], said["precpu_stats"], said["memory_stats"]
            took = now["cpu_usage"]["total_usage"] - before["cpu_usage"]["total_usage"]
            passed = now["system_cpu_usage"] - before["system_cpu_usage"]
            cache = {"total_inactive_file": 0, "inactive_file": 0, **memory.get("stats", {})}
            kept = memory["usage"] - (cache["total_inactive_file"] or cache["inactive_file"])
            return Use(kept / memory["limit"], took / max(passed, 1) * now["online_cpus"])
        except (KeyError, TypeError) as error:
            raise SandboxError(f"the container engine says of a container's use {said!r}: no {error}") from None

    async def _request(
        self, method: str, path: str, what: str, body: Mapping[str, Any] | None, query: Mapping[str, str]
    ) -> httpx2.Response:
        try:
            return await self._http.request(method, f"/v{self.version}{path}", json=body, params=query)
        except httpx2.TimeoutException:
            raise DeadlineExceeded(f"the container engine to {what}", self._wait_s) from None
        except httpx2.HTTPError as error:
            raise SandboxError(f"cannot {what}: the container engine at {self.socket} is gone ({error!r})") from None


def _greet(socket: Path, wait_s: float) -> dict[str, Any]:
    """What the engine says of itself. Blocks, for as long as it takes an engine to answer its simplest question."""
    try:
        if not stat.S_ISSOCK(socket.stat().st_mode):
            raise MissingDependency(f"{socket} is no socket of a container engine: {ADVICE}")
        through = httpx2.HTTPTransport(verify=trust(_ENGINE), uds=str(socket))
        with httpx2.Client(transport=through, base_url=_ENGINE, trust_env=False) as http:
            answer = http.get("/version", timeout=wait_s)
            answer.raise_for_status()
            return answer.json()
    except FileNotFoundError:
        raise MissingDependency(f"no container engine at {socket}: {ADVICE}") from None
    except (OSError, ValueError, httpx2.HTTPError) as error:
        raise MissingDependency(f"no container engine answers at {socket} ({error}): {ADVICE}") from None


def _common_version(about: Mapping[str, Any]) -> str:
    newest, oldest = (_numbers(about.get(key)) for key in ("ApiVersion", "MinAPIVersion"))
    common = min(NEWEST, newest)
    if common < max(OLDEST, oldest):
        raise MissingDependency(
            f"the container engine speaks versions {_dotted(oldest)} to {_dotted(newest)} of its API, and we "
            f"{_dotted(OLDEST)} to {_dotted(NEWEST)}: install a current engine"
        )
    return _dotted(common)


def _numbers(version: object) -> tuple[int, int]:
    major, _, minor = str(version or "0.0").partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _check(answer: httpx2.Response, what: str) -> None:
    if answer.is_success:
        return
    try:
        said = str(json.loads(answer.content)["message"])
    except (ValueError, KeyError, TypeError):
        said = answer.text
    raise EngineError(what, answer.status_code, said.strip()[:500] or f"status {answer.status_code}")
