"""How an engine that a server of the product lends is reached: over HTTP, under a lease.

Owns one server's `Lender` (what it says of itself, and the asking for a loan) and the `LoanLink` to a lent engine. A
server that says that the loan is over makes the engine gone, whatever it was asked; one that cannot be reached may be
back. Decides nothing. Talks to: `etude serve` (`engine.server.loans`).
"""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from etude.deadlines import scaled
from etude.errors import ConfigError, ContextOverflow, DeadlineExceeded, EtudeError, InvalidRequest
from etude.harness.sampler import Completion, SampleRequest
from etude.records import Version
from etude.rollouts.links import Loaded
from etude.rollouts.worker import WorkerAway, WorkerGone
from etude.serving.trust import trust

_ASK_S = 10.0
_CONNECT_S = 5.0
_AGAIN_S = 0.5


class Refused(EtudeError):
    """A server would not do what it was asked; `code` is its own name for why."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (str(self), self.code)


class LendingServer:
    """One server, over one client. Use on one event loop, and close it; can be sent to another process unused."""

    def __init__(self, url: str, token_file: Path | None) -> None:
        self.url, self.token_file = url.rstrip("/"), token_file
        self._http: httpx2.AsyncClient | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_http": None}

    async def post(self, path: str, what: str, seconds: float, body: Mapping[str, Any]) -> Any:
        """The answer's JSON. Raises Refused, DeadlineExceeded, or WorkerAway where it cannot be reached."""
        return await self._ask("POST", path, what, seconds, body)

    async def get(self, path: str, what: str) -> Any:
        return await self._ask("GET", path, what, scaled(_ASK_S), None)

    async def close(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    async def _ask(self, method: str, path: str, what: str, seconds: float, body: Mapping[str, Any] | None) -> Any:
        try:
            async with asyncio.timeout(seconds):
                answer = await self._client().request(method, path, json=body)
        except TimeoutError:
            raise DeadlineExceeded(f"{self.url} to {what}", seconds) from None
        except httpx2.TransportError as error:
            raise WorkerAway(f"{self.url} was to {what} and cannot be reached: {error!r}") from None
        if answer.is_success:
            return answer.json()
        raise _refusal(answer, f"{self.url} was to {what}")

    def _client(self) -> httpx2.AsyncClient:
        if self._http is None:
            self._http = httpx2.AsyncClient(
                base_url=self.url,
                headers=_headers(self.token_file),
                timeout=httpx2.Timeout(None, connect=scaled(_CONNECT_S)),  # each call has its deadline
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=64),
                trust_env=False,
                verify=trust(self.url),
            )
        return self._http


class LoanLink:
    """To an engine that is lent under one lease. Implements `links.Link`."""

    def __init__(self, name: str, server: LendingServer, lease: str, lease_s: float, return_s: float) -> None:
        self.name, self.server, self.lease = name, server, lease
        self.lease_s, self.return_s = lease_s, return_s
        self._ending: set[asyncio.Task[None]] = set()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_ending": set()}

    async def sample(self, request: SampleRequest, deadline_s: float) -> Completion:
        if request.sampling_mask or request.top_logprobs or request.prompt_logprobs is not None:
            raise InvalidRequest(f"{request.session_id}: a lent engine tells nothing beside the tokens it samples")
        told = await self._asked(
            "/loan/sample", f"sample for {request.session_id}", deadline_s, session_id=request.session_id,
            prompt_ids=request.prompt_ids, max_tokens=request.max_tokens, stop_ids=sorted(request.stop_ids),
            temperature=request.temperature, seed=request.seed, top_k=request.top_k, top_p=request.top_p,
            min_p=request.min_p,
        )  # fmt: skip
        return Completion(
            token_ids=tuple(told["token_ids"]),
            logprobs=tuple(told["logprobs"]),
            versions=tuple(told["versions"]),
            finish=told["finish"],
            routed_experts=np.load(io.BytesIO(base64.b64decode(told["routed_experts"])), allow_pickle=False),
            cached_tokens=told["cached_tokens"],
        )

    async def load(self, version: Version, deadline_s: float) -> Loaded | None:
        told = await self._asked("/loan/load", f"load version {version}", deadline_s, version=int(version))
        return told["loaded"]

    async def drop(self, session: str) -> None:
        await self._asked("/loan/drop", "forget a session", scaled(_ASK_S), session_ids=[session])

    async def stats(self, deadline_s: float) -> dict[str, float]:
        return await self._asked("/loan/stats", "tell its figures", deadline_s)

    async def started(self, deadline_s: float) -> None:
        return  # a lease is given by a server that can be asked

    async def ended(self) -> None:
        """Waiting for it keeps the lease."""
        seconds, within_s = self.lease_s / 2, self.lease_s / 2 + scaled(_ASK_S)
        while True:
            try:
                told = await self._asked("/loan/wait", "say when the loan is over", within_s, seconds=seconds)
            except WorkerGone:
                raise
            except EtudeError:
                await asyncio.sleep(_AGAIN_S)  # whether it answers at all is asked elsewhere
            else:
                if told["over"]:
                    raise WorkerGone(f"{self.name} went back to its users")

    def computes(self) -> bool:
        return False  # nothing is known of a process of another's

    async def close(self) -> None:
        """Give it back; returns when its users are served again."""
        try:
            await self._asked("/loan/end", "take its engine back", self.return_s + scaled(_ASK_S))
        finally:
            await self.server.close()

    def kill(self) -> None:
        """Give it back without waiting; should the server not hear it, the lease runs out."""
        task = asyncio.ensure_future(self._end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self) -> None:
        try:
            await self.close()
        except EtudeError:
            return

    async def _asked(self, path: str, what: str, within_s: float, **body: Any) -> Any:
        try:
            return await self.server.post(path, what, within_s, {"lease": self.lease, **body})
        except Refused as error:
            if error.code == "loan_over":
                raise WorkerGone(f"{self.name}: the loan is over") from None
            raise


def _headers(token_file: Path | None) -> dict[str, str]:
    if token_file is None:
        return {}
    try:
        return {"Authorization": f"Bearer {token_file.read_text().strip()}"}
    except OSError as error:
        raise ConfigError(f"fleet.lending.token_file: {token_file} cannot be read: {error.strerror}") from None


def _refusal(answer: httpx2.Response, what: str) -> EtudeError:
    """Our own errors from their names; a request that could never be carried out must not be sent elsewhere."""
    try:
        error = answer.json()["error"]
        code, said = str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        code, said = "", answer.text[:300]
    told = f"{what} and answered {answer.status_code}: {said}"
    if code == "context_length_exceeded":
        return ContextOverflow(told)
    if code == "invalid_value":
        return InvalidRequest(told)
    return Refused(told, code)
