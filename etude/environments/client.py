"""The `remote` backend: sandboxes of an environment server, of the same shape as those of this process.

Owns the line to one. Retries are `connection`'s; what is sent for a verb is in `verbs`, and the words are `wire`'s.
"""

from __future__ import annotations

import errno
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import httpx2

from etude.environments.base import (
    Capabilities,
    SandboxSpec,
    Snapshot,
    describe_offers,
    describe_requirement,
    find_offer,
)
from etude.environments.connection import Connection
from etude.environments.far import FarBackend, FarSandbox
from etude.environments.remote import RemoteConfig, default_state_dir
from etude.environments.verbs import VERBS
from etude.environments.wire import ServerError, create_body, error_of
from etude.errors import ConfigError, Unreachable
from etude.serving.token import read_token

_OPEN_DEADLINE_S = 10.0


class RemoteBackend(FarBackend):
    """Makes sandboxes on a server. Opening one asks the server what it offers, and fails where that is not enough."""

    def __init__(self, config: RemoteConfig) -> None:
        self.config = config
        token = read_token(config.token_file or default_state_dir() / "token")
        super().__init__(_offered(config, token))
        self.connection = Connection(config, token)

    async def create(self, spec: SandboxSpec) -> RemoteSandbox:
        self._check_open()
        body = create_body(spec, self.capabilities.name, self.config.isolation)
        said = await self.connection.ask("POST", "/sandboxes", "a sandbox to start", body)
        return self.adopt(json.loads(said)["id"])

    async def release(self, snapshot: Snapshot) -> None:
        self.snapshots.discard(snapshot.id)
        try:
            await self.connection.ask("DELETE", f"/snapshots/{quote(snapshot.id)}", "a snapshot to be released")
        except ServerError as error:
            if error.kind != "not_found":  # the server may have forgotten it first: its time ran out, or it restarted
                raise

    async def close(self) -> None:
        if not self._closed:
            try:
                await super().close()
            finally:
                await self.connection.close()

    def adopt(self, name: str) -> RemoteSandbox:
        """A sandbox of the server by its id, from now on this object's to destroy."""
        return self.live.setdefault(name, RemoteSandbox(self, name))


class HttpTransport:
    """To one sandbox of a server."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection, self._name = connection, name

    async def call(self, verb: str, **arguments: Any) -> Any:
        asked = VERBS[verb]
        at, body = asked.request(arguments)
        at, what = f"/sandboxes/{self._name}{at}", f"sandbox {self._name}: {asked.says(arguments)}"
        if not asked.changes:
            return asked.decoded(await self._connection.get(at, what))
        try:
            return asked.decoded(await self._connection.ask(asked.method, at, what, body))
        except ServerError as error:
            if error.kind == "too_large" and isinstance(asked.body, str):  # by its limit on what one request brings
                raise OSError(errno.EFBIG, str(error), arguments["path"]) from None
            raise

    def output(self, process: int) -> AsyncIterator[bytes]:
        at = f"/sandboxes/{self._name}/processes/{process}/output"
        return self._connection.events(at, f"the output of process {process}")


class RemoteSandbox(FarSandbox):
    """One sandbox of a server."""

    def __init__(self, backend: RemoteBackend, name: str) -> None:
        super().__init__(HttpTransport(backend.connection, name), name)
        self._backend = backend

    async def call(self, verb: str, **arguments: Any) -> Any:
        if verb == "destroy" and self.id not in self._backend.live:
            return None  # it is done, and the backend may be closed by now
        value = await super().call(verb, **arguments)
        match verb:
            case "destroy":
                self._backend.live.pop(self.id, None)
            case "snapshot":
                self._backend.snapshots.add(value.id)
            case "fork":
                return [self._backend.adopt(name) for name in value]
        return value

    async def set_ttl(self, ttl_s: float) -> None:
        """It ends `ttl_s` from now, unless this is said again."""
        await self.call("ttl", ttl_s=ttl_s)


def _offered(config: RemoteConfig, token: str) -> Capabilities:
    """What the backend that will be used can do. Raises where there is no server, or no such backend on it."""
    try:
        answer = httpx2.get(
            f"{config.url.rstrip('/')}/health",
            headers={"Authorization": f"Bearer {token}"},
            timeout=_OPEN_DEADLINE_S,
            trust_env=False,
        )
    except httpx2.TransportError as error:
        raise Unreachable(
            f"no environment server answers at {config.url} ({error}); start one with `etude environments serve`"
        ) from None
    if not answer.is_success:
        raise error_of(answer.content, config.url)
    offers = [Capabilities(**each) for each in answer.json()["backends"]]
    if (found := find_offer(offers, config.backend, config.isolation)) is not None:
        return replace(found, lasting=True)
    wanted = describe_requirement(config.backend, config.isolation)
    raise ConfigError(f"environment: {wanted} is not offered at {config.url}, only {describe_offers(offers)}")
