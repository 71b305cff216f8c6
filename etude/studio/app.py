"""The studio as a process: its application, and how it starts and stops.

Owns what stands in which order before the routes: headers on every answer, then the guard that all our servers share,
then the routes, and last the pages. At SIGTERM streams end, and tabs come back with their cursors to whoever serves
them next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp

from etude.deadlines import scaled
from etude.errors import ConfigError
from etude.harness.store import SessionStore
from etude.product.config import AgentConfig
from etude.product.sessions.config import SessionsConfig
from etude.product.sessions.errors import answer_of
from etude.product.sessions.hub import Hub
from etude.serving.http import handlers
from etude.serving.openapi import document, operations_of, routes_of, served
from etude.serving.process import Server, listening
from etude.serving.token import own_token
from etude.studio.archive_shapes import TrajectoriesEvent
from etude.studio.archived import ArchiveRoutes
from etude.studio.archives import Archives
from etude.studio.benches import BenchRoutes
from etude.studio.config import StudioConfig
from etude.studio.entry import Codes
from etude.studio.pages import Headed, Pages, is_page
from etude.studio.results import ResultRoutes
from etude.studio.routes import RunRoutes
from etude.studio.runs import Runs
from etude.studio.sessions import OPERATIONS as OF_SESSIONS
from etude.studio.sessions import SessionEvent, session_routes, session_topics
from etude.studio.shapes import EVENTS
from etude.studio.work import Work
from etude.studio.work_routes import WorkRoutes, work_topics
from etude.studio.work_shapes import WorkEvent

if TYPE_CHECKING:
    from etude.studio.mirror import Mirror

_log = structlog.get_logger("studio")
END_S = 60.0
"""At SIGTERM: how long it may take to keep what agents did, and to remove their places."""
MOST_OPEN = 16
"""Sessions that are open at once: agents of teams, and those that somebody has asked something."""

OPERATIONS = operations_of(RunRoutes, ResultRoutes, ArchiveRoutes, BenchRoutes, WorkRoutes)


def openapi() -> dict[str, object]:
    """The document, of which the pages' types are made."""
    events = (*EVENTS, TrajectoriesEvent, SessionEvent, WorkEvent)
    return document("Etude studio", (*OPERATIONS, *OF_SESSIONS), told=events)


def application(owners: Sequence[object], others: Iterable[Route], config: StudioConfig, token: str) -> ASGIApp:
    """The ASGI application over the objects whose methods answer, and other routes."""
    table = [route for owner in owners for route in routes_of(owner)]
    table += [*others, served(openapi()), Pages().route()]
    guard = config.guard(token, answer_of, is_page)
    return Headed(Starlette(routes=table, middleware=[guard], exception_handlers=handlers(answer_of, "studio")))


async def serve(
    config: StudioConfig,
    places: Sequence[str],
    agent: AgentConfig | None,
    ready: Callable[[str, Sequence[str]], None],
    again: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until SIGTERM or Ctrl-C. A place is a directory, or the URL of an object store. With an `agent`, who is in
    may have agents at work. `ready` is called with the address that lets one tab in, once requests are answered;
    `again` with the next address whenever one was used. Raises ConfigError for a place that is not there."""
    directories = [Path(place) for place in places if not is_store(place)]
    if absent := [place for place in directories if not place.is_dir()]:
        raise ConfigError(f"{absent[0]}: no such directory; name those of runs, or one that holds runs")
    url = ""

    def used(code: str) -> None:
        again(f"{url}/#code={code}")

    codes = Codes(used)
    token = own_token(config.token_path)
    with listening(config.host, config.port, config.hosts) as sock:
        mirrors = [_mirror_of(url, config) for url in places if is_store(url)]
        runs, archives = Runs(directories, mirrors), Archives()
        hub = Hub(SessionStore(), SessionsConfig(max_open=MOST_OPEN, drain_s=config.drain_s), agent)
        may, work = agent is not None, None if agent is None else Work(hub, agent)
        topics = session_topics(hub), work_topics(work)
        routes = RunRoutes(runs, archives, codes, token, may, config.max_streams, topics)
        of_runs = routes, ResultRoutes(runs, archives), ArchiveRoutes(runs, archives, may)
        owners = *of_runs, BenchRoutes(runs), WorkRoutes(work)
        app = application(owners, session_routes(hub, may), config, token)

        async def drain() -> None:
            routes.stopping.set()
            runs.stop()
            archives.stop()
            try:
                async with asyncio.timeout(config.drain_s + scaled(END_S)):
                    if work is not None:
                        await work.end()
                    await hub.drain()
            except TimeoutError:
                _log.warning("agents do not end; what they leave is found when agents are next at work here")

        def begun(at: str) -> None:
            nonlocal url
            url = _named(at, config)
            remarks = [] if Pages().are_built else ["the pages are not built; only the API answers: tools/web.sh"]
            ready(f"{url}/#code={codes.new()}", remarks)

        keeping = asyncio.create_task(hub.keep())
        try:
            await Server(app, drain, begun, config.http, config.tls).serve(sockets=[sock])
        finally:
            keeping.cancel()
            archives.close()
            for mirror in mirrors:
                mirror.close()


def _named(url: str, config: StudioConfig) -> str:
    """The address as a browser has to give it: elsewhere nobody knows this machine as 0.0.0.0, and such a Host is
    refused."""
    if config.host in config.hosts:
        return url
    scheme, port = url.partition(":")[0], url.rpartition(":")[2]
    return f"{scheme}://{config.hosts[0]}:{port}"


def is_store(place: str | Path) -> bool:
    """Whether it names an object store, and no directory."""
    return "://" in str(place)


def _mirror_of(url: str, config: StudioConfig) -> Mirror:
    from etude.studio.mirror import PATIENCE, Mirror  # here, as few look at stores
    from etude.weights.opening import open_store
    from etude.weights.store import StoreConfig

    store = open_store(url, StoreConfig(options=config.store_options), PATIENCE)
    return Mirror(store, int(config.store_cache_gb * 1e9))
