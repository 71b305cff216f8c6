"""The studio as a process: its application, and how it starts and stops.

Owns what stands in which order before the routes: headers on every answer, then the guard that all our servers share,
then the routes, and last the pages. At SIGTERM streams end, and tabs come back with their cursors to whoever serves
them next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.types import ASGIApp

from etude.errors import ConfigError
from etude.product.sessions.errors import answer_of
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
from etude.studio.routes import RunRoutes
from etude.studio.runs import Runs
from etude.studio.shapes import EVENTS

OPERATIONS = operations_of(RunRoutes, ArchiveRoutes, BenchRoutes)


def openapi() -> dict[str, object]:
    """The document, of which the pages' types are made."""
    return document("Etude studio", OPERATIONS, told=(*EVENTS, TrajectoriesEvent))


def application(owners: Sequence[object], config: StudioConfig, token: str) -> ASGIApp:
    """The ASGI application over the objects whose methods answer."""
    table = [*(route for owner in owners for route in routes_of(owner)), served(openapi()), Pages().route()]
    guard = config.guard(token, answer_of, is_page)
    return Headed(Starlette(routes=table, middleware=[guard], exception_handlers=handlers(answer_of, "studio")))


async def serve(
    config: StudioConfig,
    places: Sequence[Path],
    work: bool,
    ready: Callable[[str, Sequence[str]], None],
    again: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until SIGTERM or Ctrl-C. `ready` is called with the address that lets one tab in, once requests are
    answered; `again` with the next address whenever one was used. Raises ConfigError for a place that is not there."""
    if absent := [place for place in places if not place.is_dir()]:
        raise ConfigError(f"{absent[0]}: no such directory; name those of runs, or one that holds runs")
    url = ""

    def used(code: str) -> None:
        again(f"{url}/#code={code}")

    codes = Codes(used)
    token = own_token(config.token_path)
    with listening(config.host, config.port, config.hosts) as sock:
        runs, archives = Runs(places), Archives()
        routes = RunRoutes(runs, archives, codes, token, work, config.max_streams)
        app = application((routes, ArchiveRoutes(runs, archives, work), BenchRoutes(runs)), config, token)

        async def drain() -> None:
            routes.stopping.set()

        def begun(at: str) -> None:
            nonlocal url
            url = at
            remarks = [] if Pages().are_built else ["the pages are not built; only the API answers: tools/web.sh"]
            ready(f"{at}/#code={codes.new()}", remarks)

        try:
            await Server(app, drain, begun, config.http, config.tls).serve(sockets=[sock])
        finally:
            archives.close()
