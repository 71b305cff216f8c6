"""The sessions of one server: those that are open, and those that anybody listens to.

Owns `Hub`: a session is opened when something is asked of it, and closed when it has rested for long, when another
needs its place, or when the server stops. Never more are open than `max_open`; one that is at work is never closed for
another. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from etude.errors import ConfigError, EtudeError
from etude.harness.store import SessionStore
from etude.product.config import AgentConfig
from etude.product.sessions.about import model_of
from etude.product.sessions.channel import Channel
from etude.product.sessions.config import SessionsConfig
from etude.product.sessions.errors import Refused
from etude.product.sessions.live import Live

_LOOK_S = 5.0
_log = structlog.get_logger("sessions")


class Hub:
    """Use on one event loop; `drain` closes it."""

    def __init__(self, store: SessionStore, config: SessionsConfig, agent: AgentConfig | None) -> None:
        """Without an `agent` sessions can be listened to, and none is opened."""
        self.store, self.config, self._agent = store, config, agent
        self.open: dict[str, Live] = {}
        """By their ids; one that is just beginning has a name of its own, with a space in it."""
        self.worktrees: dict[Path, tuple[Path, AgentConfig]] = {}
        """Directories that are there for a session alone: the project each is a worktree of, and the config there."""
        self.draining = False
        self.streams = 0
        self._channels: dict[str, Channel] = {}
        self._numbers = itertools.count(1)
        self._room = asyncio.Lock()

    # --- sessions -----------------------------------------------------------------------------------------------------

    async def begin(self, directory: Path, model: str | None) -> Live:
        """A new session. Raises Refused, and what opening one raises."""
        directory, name, channel = self._allowed(directory), f"new {next(self._numbers)}", Channel()
        live = await self._opened(name, channel, directory, None, model)
        id = live.agent.id
        self.open[id], self._channels[id] = self.open.pop(name), channel
        return live

    async def live(self, session_id: str) -> Live:
        """The session, opened if it is not. Raises Refused, and what opening one raises."""
        log = self.log(session_id)
        if session_id in self.open:
            await self.open[session_id].opened()
            return self.open[session_id]
        directory = self._allowed(self.store.workspace(session_id))
        return await self._opened(session_id, self.channel(session_id), directory, session_id, model_of(log))

    def log(self, session_id: str) -> Path:
        """The file of a session's log. Raises Refused where there is none."""
        try:
            return self.store.log(session_id)
        except EtudeError as error:
            raise Refused("not_found", f"{error}; GET /sessions lists those there are") from None

    async def close(self, session_id: str) -> bool:
        """Let another process have it; False where it is not open. What it was doing is stopped."""
        live = self.open.pop(session_id, None)
        if live is not None:
            await live.close()
        return live is not None

    async def _opened(
        self, name: str, channel: Channel, directory: Path, session_id: str | None, model: str | None
    ) -> Live:
        async with self._room:
            self._let_in()
            if name not in self.open:
                await self._make_room()
                of, config = self.worktrees.get(directory, (None, self._agent))
                if config is None:
                    raise Refused("forbidden", "no session is opened here; start this server with an agent's config")
                config = _with_model(config, model)
                self.open[name] = Live(channel, config, directory, self.store, session_id, of)
            live = self.open[name]
        try:
            await live.opened()
        except BaseException:
            if self.open.get(name) is live:
                del self.open[name]
            raise
        return live

    # --- who listens --------------------------------------------------------------------------------------------------

    def channel(self, session_id: str) -> Channel:
        """What goes on in it, whether it is open or not."""
        return self._channels.setdefault(session_id, Channel())

    @contextmanager
    def listening(self) -> Generator[None]:
        """Room for one listener. Raises Refused where there is none."""
        self._let_in()
        if self.streams >= self.config.max_streams:
            said = f"{self.streams} listeners are connected, and there is room for no more; raise max_streams"
            raise Refused("busy", said, retry_after_s=5)
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1

    # --- rest and end -------------------------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Close sessions that have rested for long, until cancelled."""
        while True:
            await asyncio.sleep(min(_LOOK_S, self.config.rest_s))
            since = time.monotonic() - self.config.rest_s
            rested = [name for name, live in self.open.items() if live.last_asked < since and not live.working]
            for name in rested:
                await self._put_away(name)
            self._forget_channels()

    async def drain(self) -> None:
        """Let nobody in any more; what is at work has `drain_s`, then it is stopped where it can be gone on with."""
        self.draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(self.config.drain_s):
                await asyncio.gather(*(live.rested() for live in self.open.values()))
        await asyncio.gather(*(self._put_away(name) for name in list(self.open)))
        for channel in self._channels.values():
            for listener in channel.listeners:
                listener.end()

    async def _make_room(self) -> None:
        if len(self.open) < self.config.max_open:
            return
        resting = [(live.last_asked, name) for name, live in self.open.items() if not live.working]
        if not resting:
            said = f"{len(self.open)} sessions are at work, and there is room for no more; cancel one or raise max_open"
            raise Refused("busy", said, retry_after_s=5)
        await self._put_away(min(resting)[1])

    async def _put_away(self, name: str) -> None:
        try:
            await self.close(name)
        except Exception:
            _log.exception("a session did not close", session=name)

    def _forget_channels(self) -> None:
        idle = [name for name, each in self._channels.items() if name not in self.open and not each.listeners]
        for name in idle:
            del self._channels[name]

    def _let_in(self) -> None:
        if self.draining:
            raise Refused("draining", "this server is stopping; ask again when it is back", retry_after_s=5)

    def _allowed(self, directory: Path) -> Path:
        if not directory.is_absolute() or not os.path.isdir(directory):  # False also for what no path can be
            raise ConfigError(f"directory: {str(directory)[:200]!r} is no directory's absolute path")
        directory, roots = directory.resolve(), [root.resolve() for root in self.config.directories]
        if roots and not any(directory.is_relative_to(root) for root in roots):
            named = ", ".join(map(str, roots))
            raise ConfigError(f"directory: {directory} is not below {named}; `directories` says where agents may work")
        return directory


def _with_model(config: AgentConfig, model: str | None) -> AgentConfig:
    if not model:
        return config
    return config.model_copy(update={"endpoint": config.endpoint.model_copy(update={"model": model})})
