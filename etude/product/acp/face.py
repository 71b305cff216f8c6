"""The protocol's methods, and the process that answers them.

Owns `Face`, which implements the agent's side of the protocol's package, and `serve`, which runs it until the client
leaves or the process is told to end: then every prompt is cancelled, every command stopped and every session closed.
A fault of ours, of the user's set-up or of the model's endpoint is an error whose message says what to do; none ends
the process. Knows nothing of what happens inside a session.
"""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Awaitable, Callable
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import structlog
from acp import PROTOCOL_VERSION, AgentSideConnection, RequestError
from acp.schema import (
    AgentCapabilities,
    AuthenticateResponse,
    ClientCapabilities,
    CloseSessionResponse,
    ForkSessionResponse,
    Implementation,
    InitializeResponse,
    ListSessionsResponse,
    LoadSessionResponse,
    McpCapabilities,
    NewSessionResponse,
    PromptCapabilities,
    PromptResponse,
    ResumeSessionResponse,
    SessionCapabilities,
    SessionCloseCapabilities,
    SessionForkCapabilities,
    SessionInfo,
    SessionListCapabilities,
    SessionResumeCapabilities,
    SetSessionConfigOptionResponse,
    SetSessionModeResponse,
)

from etude import __version__
from etude.errors import CheckpointError, ConfigError, EtudeError
from etude.harness.store import SessionStore
from etude.product.acp import requests
from etude.product.acp.calls import shortened
from etude.product.acp.edges import KEY
from etude.product.acp.session import AcpSession
from etude.product.acp.stdio import Stdio
from etude.product.config import AgentConfig

if TYPE_CHECKING:
    from acp.interfaces import Client

_log = structlog.get_logger()
_PAGE = 50
_NOT_FOUND, _INVALID_PARAMS, _INTERNAL = -32002, -32602, -32603
_P = ParamSpec("_P")
_R = TypeVar("_R")


def _told(method: Callable[_P, Awaitable[_R]]) -> Callable[_P, Awaitable[_R]]:
    """Errors as the protocol tells them."""

    @functools.wraps(method)
    async def telling(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return await method(*args, **kwargs)
        except ConfigError as error:
            raise RequestError(_INVALID_PARAMS, str(error)) from None
        except EtudeError as error:
            raise RequestError(_INTERNAL, str(error)) from None

    return telling


class Face:
    """The agent's side of one connection. `load` reads the user's config, anew for each session."""

    def __init__(self, load: Callable[[], AgentConfig], store: SessionStore) -> None:
        self._load, self._store = load, store
        self._sessions: dict[str, AcpSession] = {}
        self._opening: set[str] = set()
        self._terminals = False
        self._client: Client | None = None

    def on_connect(self, conn: Client) -> None:
        self._client = conn

    async def initialize(
        self,
        protocol_version: int,
        client_capabilities: ClientCapabilities | None = None,
        client_info: Implementation | None = None,
        **_: Any,
    ) -> InitializeResponse:
        """One version of the protocol is spoken, whichever the client asks for: it leaves if it does not know it."""
        meta = (client_capabilities.field_meta if client_capabilities else None) or {}
        self._terminals = meta.get("terminal_output") is True
        _log.info("acp_client", client=client_info and client_info.name, version=client_info and client_info.version)
        return InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_info=Implementation(name="etude", title="Etude", version=__version__),
            auth_methods=[],
            agent_capabilities=AgentCapabilities(
                load_session=True,
                prompt_capabilities=PromptCapabilities(embedded_context=True),
                mcp_capabilities=McpCapabilities(http=True),
                session_capabilities=SessionCapabilities(
                    list=SessionListCapabilities(),
                    resume=SessionResumeCapabilities(),
                    fork=SessionForkCapabilities(),
                    close=SessionCloseCapabilities(),
                ),
            ),
        )

    async def authenticate(self, method_id: str, **_: Any) -> AuthenticateResponse:
        raise RequestError(_INVALID_PARAMS, f"there is no way {method_id!r} to log in: keys are named in agent.toml")

    # --- sessions -----------------------------------------------------------------------------------------------------

    @_told
    async def new_session(
        self, cwd: str, mcp_servers: Any = None, additional_directories: list[str] | None = None, **_: Any
    ) -> NewSessionResponse:
        session = await self._open(cwd, mcp_servers, additional_directories, None)
        return NewSessionResponse(session_id=session.id, modes=session.modes(), config_options=session.options())

    @_told
    async def load_session(
        self,
        cwd: str,
        session_id: str,
        mcp_servers: Any = None,
        additional_directories: list[str] | None = None,
        **_: Any,
    ) -> LoadSessionResponse:
        session = await self._open(cwd, mcp_servers, additional_directories, session_id)
        await session.replay()
        return LoadSessionResponse(modes=session.modes(), config_options=session.options())

    @_told
    async def resume_session(
        self,
        session_id: str,
        cwd: str,
        mcp_servers: Any = None,
        additional_directories: list[str] | None = None,
        **_: Any,
    ) -> ResumeSessionResponse:
        session = await self._open(cwd, mcp_servers, additional_directories, session_id)
        return ResumeSessionResponse(modes=session.modes(), config_options=session.options())

    @_told
    async def fork_session(
        self,
        session_id: str,
        cwd: str,
        mcp_servers: Any = None,
        additional_directories: list[str] | None = None,
        **_: Any,
    ) -> ForkSessionResponse:
        self._must_be_known(session_id)
        forked = await self._store.fork(session_id)
        session = await self._open(cwd, mcp_servers, additional_directories, forked)
        return ForkSessionResponse(session_id=session.id, modes=session.modes(), config_options=session.options())

    @_told
    async def list_sessions(self, cwd: str | None = None, cursor: str | None = None, **_: Any) -> ListSessionsResponse:
        """The newest first, a page at a time; a cursor is how many were listed before. Sessions that nothing has been
        said in are left out."""
        if cursor is not None and not cursor.isdecimal():
            raise RequestError(_INVALID_PARAMS, f"{cursor!r} is no cursor that session/list has given")
        first = int(cursor or 0)
        listed = await asyncio.to_thread(self._store.sessions, Path(cwd) if cwd else None)
        listed = [each for each in listed if each.task]
        page = [
            SessionInfo(
                session_id=each.id,
                cwd=each.workspace,
                title=shortened(each.task, 80),
                updated_at=each.last_active.astimezone(UTC).isoformat(timespec="seconds"),
            )
            for each in listed[first : first + _PAGE]
        ]
        after = first + _PAGE
        return ListSessionsResponse(sessions=page, next_cursor=str(after) if after < len(listed) else None)

    @_told
    async def close_session(self, session_id: str, **_: Any) -> CloseSessionResponse:
        session = self._session(session_id)
        del self._sessions[session_id]
        edges = await asyncio.to_thread(session.edges)
        await session.close()
        return CloseSessionResponse(field_meta={KEY: {"edges": edges}})

    async def _open(self, cwd: str, mcp_servers: Any, more: list[str] | None, session_id: str | None) -> AcpSession:
        directory = Path(cwd)
        if not directory.is_absolute():
            raise RequestError(_INVALID_PARAMS, f"cwd: {cwd!r} is not an absolute path")
        if more:
            raise RequestError(_INVALID_PARAMS, "additionalDirectories: a session works in one directory, its cwd")
        if session_id is not None:
            self._must_be_known(session_id)
            if session_id in self._opening:
                raise RequestError(-32600, f"session {session_id} is being opened already")
            if (known := self._sessions.pop(session_id, None)) is not None:
                await known.close()  # the client begins with it anew, with the MCP servers it names now
            self._opening.add(session_id)
        assert self._client is not None, "a request came before the connection"
        try:
            config = self._load()
            config = config.model_copy(update={"mcp": requests.servers_of(mcp_servers or [], config.mcp)})
            session = await AcpSession.open(
                config, directory.resolve(), self._store, self._client, session_id, terminals=self._terminals
            )
        finally:
            self._opening.discard(session_id or "")
        self._sessions[session.id] = session
        session.announce()
        return session

    def _must_be_known(self, session_id: str) -> None:
        try:
            self._store.workspace(session_id)
        except (CheckpointError, ConfigError) as error:
            raise RequestError(_NOT_FOUND, str(error)) from None

    def _session(self, session_id: str) -> AcpSession:
        if session_id not in self._sessions:
            raise RequestError(_NOT_FOUND, f"session {session_id} is not open; session/load opens it")
        return self._sessions[session_id]

    # --- at work ------------------------------------------------------------------------------------------------------

    @_told
    async def prompt(self, prompt: Any, session_id: str, **_: Any) -> PromptResponse:
        session = self._session(session_id)
        return await session.prompt(requests.text_of(prompt, session.directory))

    async def cancel(self, session_id: str, **_: Any) -> None:
        if session_id in self._sessions:
            self._sessions[session_id].cancel()

    @_told
    async def set_session_mode(self, session_id: str, mode_id: str, **_: Any) -> SetSessionModeResponse:
        self._session(session_id).set_mode(mode_id)
        return SetSessionModeResponse()

    @_told
    async def set_config_option(
        self, config_id: str, session_id: str, value: str | bool, **_: Any
    ) -> SetSessionConfigOptionResponse:
        session = self._session(session_id)
        match config_id:
            case "mode":
                session.set_mode(str(value))
            case "model":
                session.set_model(str(value))
            case _:
                raise RequestError(_INVALID_PARAMS, f"there is no option {config_id!r}; there are mode and model")
        return SetSessionConfigOptionResponse(config_options=session.options())

    async def close(self) -> None:
        """End every session; what runs in them is stopped."""
        sessions, self._sessions = list(self._sessions.values()), {}
        for ended in await asyncio.gather(*(session.close() for session in sessions), return_exceptions=True):
            if isinstance(ended, BaseException):
                _log.warning("a session did not end well", why=str(ended))


async def serve(load: Callable[[], AgentConfig], store: SessionStore) -> None:
    """Speak with the client on stdin and stdout until it leaves, or SIGTERM or SIGINT says so."""
    face = Face(load, store)
    connection = AgentSideConnection(face, await Stdio.take_over(), listening=False, use_unstable_protocol=True)
    listening = asyncio.ensure_future(connection.listen())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, listening.cancel)
    try:
        await asyncio.wait([listening])
    finally:
        await face.close()
        await connection.close()
    if not listening.cancelled():
        listening.result()
