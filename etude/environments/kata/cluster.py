"""The Kubernetes API, as far as sandboxes need it: through kubernetes_asyncio, which knows credentials and objects.

Owns the connection, the credentials that expire, and what refusals become. Knows nothing of sandboxes; every request
has a deadline. A request that the API puts off because it is too busy is made again, within that deadline.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from kubernetes_asyncio import client
from kubernetes_asyncio import config as credentials
from kubernetes_asyncio.client.exceptions import ApiException
from kubernetes_asyncio.stream import WsApiClient

from etude.environments.kata.config import KataConfig
from etude.errors import ConfigError, DeadlineExceeded, MissingDependency, SandboxError

ADVICE = (
    "name a kubeconfig that `kubectl get pods` works with, by `kubeconfig` in the environment config or $KUBECONFIG; "
    "or run in a pod whose account may make pods"
)
_HEARTBEAT_S = 40.0
"""Between pings of an attached stream: no load balancer on the way then thinks it idle. Unanswered for half as long, it
is lost."""
_REFRESH_S = 60.0
_PROTOCOLS = "v5.channel.k8s.io, v4.channel.k8s.io"
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


class ClusterError(SandboxError):
    """The API answered, and refused. `status` is the HTTP status."""

    def __init__(self, what: str, status: int, said: str) -> None:
        super().__init__(f"the Kubernetes API refuses to {what}: {said}")
        self.what = what
        self.status = status
        self.said = said

    def __reduce__(self) -> tuple[type, tuple[str, int, str]]:
        return type(self), (self.what, self.status, self.said)


class Cluster:
    """One cluster's API. Use on the event loop it was made on; the caller closes it."""

    def __init__(self, settings: client.Configuration, refresh: Callable[[], Awaitable[object]] | None, wait_s: float):
        self._wait_s = wait_s
        self._settings = settings
        self._api = client.ApiClient(settings)
        self._streams = WsApiClient(settings, heartbeat=_HEARTBEAT_S)
        self.core = client.CoreV1Api(self._api)
        self.network = client.NetworkingV1Api(self._api)
        self.node = client.NodeV1Api(self._api)
        self.authorization = client.AuthorizationV1Api(self._api)
        self.version = client.VersionApi(self._api)
        self._refreshing = asyncio.ensure_future(_keep_fresh(refresh)) if refresh is not None else None

    @property
    def host(self) -> str:
        return self._settings.host or ""

    async def close(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        await self._streams.close()
        await self._api.close()

    async def ask(
        self,
        what: str,
        call: Callable[..., Awaitable[Any]],
        *arguments: object,
        fine: tuple[int, ...] = (),
        **options: object,
    ) -> Any:
        """The API's answer to one call. `what` completes "refuses to"; a status in `fine` gives None."""
        end = time.monotonic() + self._wait_s
        try:
            async with asyncio.timeout(self._wait_s):
                while True:
                    try:
                        return await call(*arguments, **options)
                    except ApiException as error:
                        if error.status in fine:
                            return None
                        again_s = _retry_after(error)
                        if again_s is None or time.monotonic() + again_s > end:
                            raise ClusterError(what, error.status or 0, _said(error)) from None
                    await asyncio.sleep(again_s)
        except TimeoutError:
            raise DeadlineExceeded(f"the Kubernetes API to {what}", self._wait_s) from None
        except (aiohttp.ClientError, OSError) as error:
            raise SandboxError(f"cannot {what}: the Kubernetes API at {self.host} is gone ({error!r})") from None

    async def attach(self, namespace: str, pod: str, container: str) -> aiohttp.ClientWebSocketResponse:
        """The streams of a container, as the remote-command protocol frames them."""
        what = f"attach to pod {pod}"
        try:
            async with asyncio.timeout(self._wait_s):
                connect: Any = client.CoreV1Api(self._streams).connect_get_namespaced_pod_attach
                opening = await connect(  # which its annotations take for a request like any other
                    pod,
                    namespace,
                    container=container,
                    stdin=True,
                    stdout=True,
                    stderr=True,
                    tty=False,
                    _preload_content=False,
                    _headers={"sec-websocket-protocol": _PROTOCOLS},
                )
                return await opening
        except TimeoutError:
            raise DeadlineExceeded(f"the Kubernetes API to {what}", self._wait_s) from None
        except aiohttp.WSServerHandshakeError as error:
            raise ClusterError(what, error.status, f"status {error.status}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise SandboxError(f"cannot {what}: the Kubernetes API at {self.host} is gone ({error!r})") from None


async def connect(config: KataConfig) -> Cluster:
    """Read the credentials; asks the cluster nothing. Raises MissingDependency where there are none."""
    settings = client.Configuration()
    settings.client_side_validation = False  # the server has checked what it sends, newer fields included
    settings.connection_pool_maxsize = 0  # no limit: every sandbox holds one connection for as long as it lives
    files = str(config.kubeconfig or os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
    found = any(Path(path).expanduser().exists() for path in files.split(os.pathsep) if path)
    try:
        if config.kubeconfig is None and not found and _ACCOUNT.exists():
            credentials.load_incluster_config(client_configuration=settings)
            return Cluster(settings, None, config.api_timeout_s)
        if not found:
            raise MissingDependency(f"no kubeconfig at {files}: {ADVICE}")
        loader = await credentials.load_kube_config(
            config_file=files, context=config.context, client_configuration=settings, persist_config=False
        )
    except credentials.ConfigException as error:
        raise ConfigError(f"kubeconfig {files}: {error}") from None
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        raise MissingDependency(f"the kubeconfig {files} cannot be used ({error}): {ADVICE}") from None

    async def refresh() -> None:
        await loader.load_and_set(settings)

    return Cluster(settings, refresh, config.api_timeout_s)


async def _keep_fresh(refresh: Callable[[], Awaitable[object]]) -> None:
    """Tokens that a program hands out expire; it is asked again, and hands out the old one while that will do."""
    while True:
        await asyncio.sleep(_REFRESH_S)
        try:
            await refresh()
        except (credentials.ConfigException, OSError, ValueError):
            continue  # the next request says what is wrong, should it still be


def _retry_after(error: ApiException) -> float | None:
    """Seconds, where the API has not begun on the request and asks to be asked again."""
    if error.status != 429:
        return None
    try:
        return min(max(float((error.headers or {}).get("Retry-After", 1)), 0.05), 60.0)
    except ValueError:
        return 1.0


def _said(error: ApiException) -> str:
    try:
        return str(json.loads(error.body or "")["message"]).strip()[:500]
    except (ValueError, KeyError, TypeError):
        return f"{error.reason or ''} {error.body or ''}".strip()[:500] or f"status {error.status}"
