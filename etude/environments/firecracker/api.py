"""Firecracker's HTTP API over its unix socket, as far as machines need it.

Owns the framing, and what its refusals become: it answers 204 to what it did, and anything else with a `fault_message`.
Knows nothing of what is asked, and waits as long as the caller does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import httpx2

from etude.errors import SandboxError
from etude.serving.trust import trust

_DONE = 204
_HEADERS = {"Accept": "application/json"}
_LOCAL = "http://localhost"


class Api:
    """One Firecracker process, listening at `socket`. `name` appears in errors. The caller closes it."""

    def __init__(self, socket: str, name: str) -> None:
        self._name = name
        self._http = httpx2.AsyncClient(
            transport=httpx2.AsyncHTTPTransport(verify=trust(_LOCAL), uds=socket),
            base_url=_LOCAL,
            headers=_HEADERS,
            timeout=None,
            trust_env=False,
        )

    async def ask(self, method: str, path: str, body: Mapping[str, object]) -> None:
        """Raises SandboxError quoting the refusal, or saying that the process has ended."""
        try:
            answer = await self._http.request(method, path, json=body)
        except httpx2.HTTPError as error:
            raise SandboxError(f"machine {self._name} has ended before {method} {path} ({error!r})") from None
        if answer.status_code != _DONE:
            raise SandboxError(f"machine {self._name} refuses {method} {path}: {_fault(answer)}")

    async def close(self) -> None:
        await self._http.aclose()


def _fault(answer: httpx2.Response) -> str:
    try:
        return str(json.loads(answer.content)["fault_message"]).strip()[:500]
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code} {answer.text[:200]!r}"
