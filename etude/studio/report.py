"""One run as one file that is opened from disk: the studio's pages, and the answers that they would have got.

Owns `write_report`: which answers a report holds, and how the file is put together, so that nothing in it is anything
but text to a browser: a policy in its head lets no script run but the pages' own. Asks the same routes as a tab does,
in this process, and opens no port. The names of answers are those of web/src/api/kept.ts.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import httpx2
from starlette.applications import Starlette

from etude.durable import write_whole
from etude.errors import ConfigError
from etude.product.sessions.errors import answer_of
from etude.serving.http import handlers
from etude.serving.openapi import routes_of
from etude.studio.archived import ArchiveRoutes
from etude.studio.archives import Archives
from etude.studio.entry import Codes
from etude.studio.results import ResultRoutes
from etude.studio.routes import MOST_CURVES, RunRoutes
from etude.studio.runs import Runs

BUILT = Path(__file__).parent / "report"
MOST_BYTES = 24 << 20
"""Of answers: trajectories are added until there would be more."""
_STEPS, _ROWS, _FILES, _PIECE, _CURVES = 100, 64, 20, 2000, 512
_WHOLE = ("curves", "versions", "trajectories")
Answers = dict[str, Any]


def name_of(path: str) -> str:
    """Of the answer to an address."""
    place, _, query = path.partition("?")
    if place.endswith(tuple(f"/{each}" for each in _WHOLE)):
        return place
    given = sorted((name, value) for name, value in parse_qsl(query) if name != "turns")
    return " ".join([place, *(f"{name}={value}" for name, value in given)])


async def write_report(run: Path, out: Path) -> Path:
    """Raises ConfigError where there is no run, or the pages are not built."""
    script, style = (BUILT / name for name in ("report.js", "report.css"))
    if not script.exists():
        raise ConfigError("the pages of a report are not built: tools/web.sh builds them in a clone; a wheel has them")
    answers = {name: answer async for name, answer in _answers(run)}
    write_whole(out, _page(script.read_text(), style.read_text(), answers).encode("utf-8", "backslashreplace"))
    return out


def _page(script: str, style: str, answers: Answers) -> str:
    script = script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
    data = json.dumps(answers).replace("<", "\\u003c")
    policy = (
        f"default-src 'none'; script-src 'sha256-{_mark(script)}'; style-src 'sha256-{_mark(style)}'; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>Etude studio</title>'
        f'<style>{style}</style></head><body><div id="app"></div>'
        f'<script type="application/json" id="answers">{data}</script>'
        f'<script type="module">{script}</script></body></html>\n'
    )


def _mark(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


class _Asking:
    """The studio's routes over one run, asked in this process."""

    def __init__(self, run: Path, archives: Archives) -> None:
        runs = Runs([run])
        of_runs = RunRoutes(runs, archives, Codes(), "", False, 0)
        owners = of_runs, ResultRoutes(runs, archives), ArchiveRoutes(runs, archives, False)
        routes = [route for owner in owners for route in routes_of(owner)]
        app = Starlette(routes=routes, exception_handlers=handlers(answer_of, "studio"))
        self._client = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://studio")

    async def __call__(self, path: str) -> Any:
        """None where the server refuses: a run without an archive, say."""
        answer = await self._client.get(f"/api/{path}")
        return answer.json() if answer.status_code == 200 else None

    async def close(self) -> None:
        await self._client.aclose()


async def _answers(run: Path) -> AsyncIterator[tuple[str, Any]]:
    archives = Archives(most_waited_for=math.inf)
    ask = _Asking(run, archives)
    try:
        listed = await ask("runs")
        if len(listed["runs"]) != 1:
            raise ConfigError(f"{run}: a report is of one run; give its directory")
        yield name_of("runs"), listed
        async for name, answer in _of_run(ask, f"runs/{listed['runs'][0]['id']}"):
            if answer is not None:
                yield name, answer
    finally:
        await ask.close()
        archives.close()


async def _of_run(ask: _Asking, at: str) -> AsyncIterator[tuple[str, Any]]:
    detail = await ask(at)
    yield name_of(at), detail
    yield name_of(f"{at}/curves"), await _curves(ask, at)
    for part in ("versions?limit=1000", "trajectories/count", "trajectories/values"):
        yield name_of(f"{at}/{part}"), await ask(f"{at}/{part}")
    histogram = f"{at}/trajectories/histogram?field=reward&bins=40"
    yield name_of(histogram), await ask(histogram)
    steps = range(1, detail["steps"] + 1)
    for step in {*steps[: _STEPS // 2], *steps[-_STEPS // 2 :]}:
        yield name_of(f"{at}/steps/{step}"), await ask(f"{at}/steps/{step}")
    results = await ask(f"{at}/results")
    yield name_of(f"{at}/results"), results
    async for name, answer in _of_archive(ask, at, detail["steps"], _named_in(results)):
        yield name, answer


async def _curves(ask: _Asking, at: str) -> Any:
    """All that there are, as far as there is room."""
    found = await ask(f"{at}/curves")
    names = found["names"][:_CURVES]
    for begins in range(0, len(names), MOST_CURVES):
        some = ",".join(names[begins : begins + MOST_CURVES])
        found["series"] |= (await ask(f"{at}/curves?names={some}&buckets=400"))["series"]
    return found


def _named_in(results: Any) -> list[Any]:
    """The rows of sessions that the first page leads to."""
    played = (results["pair"] or {}).get("played") or {"members": []}
    return [each["row"] for each in (*played["members"], *results["examples"])]


async def _of_archive(ask: _Asking, at: str, steps: int, first: list[Any]) -> AsyncIterator[tuple[str, Any]]:
    """The `first` rows, those of the first and the last step, the newest, and each of these in full while there is
    room."""
    rows: dict[str, Any] = {row["id"]: row for row in first}
    for chosen in ("step=1&", f"step={steps}&", ""):
        page = await ask(f"{at}/trajectories?{chosen}limit={_ROWS}")
        rows |= {row["id"]: row for row in (page or {"rows": []})["rows"]}
    size, whole = 0, []
    for row in rows.values():
        if size > MOST_BYTES:
            break
        whole.append(row)
        async for name, answer in _of_one(ask, f"{at}/trajectories/{row['id'].replace('/', '~')}"):
            size += len(json.dumps(answer))
            yield name, answer
    yield name_of(f"{at}/trajectories"), {"rows": whole, "next": None}
    for group in {row["group_id"]: None for row in whole}:
        path = f"{at}/groups/{group.replace('/', '~')}"
        yield name_of(path), await ask(path)


async def _of_one(ask: _Asking, at: str) -> AsyncIterator[tuple[str, Any]]:
    found = await ask(f"{at}?turns=0,500")
    if found is None:  # its chunk was removed meanwhile
        return
    yield name_of(at), found
    for number, segment in enumerate(found["segments"]):
        for begins in range(0, segment["tokens"], _PIECE):
            path = f"{at}/tokens?segment={number}&from={begins}&count={_PIECE}"
            yield name_of(path), await ask(path)
    for file in found["files"][:_FILES]:
        path = f"{at}/diff?{httpx2.QueryParams({'path': file['path']})}"
        yield name_of(path), await ask(path)
