"""The routes of agents at work: begin a team, see what each has done, bring what is wanted into the tree, end it.

Owns the routes, each a few lines over `Work`, and the topic `work`. What an agent asks is answered, and what it does
followed, as with any session. Where the studio only reads, every route says so.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response

from etude.errors import ConfigError
from etude.product.sessions.errors import Refused
from etude.serving.openapi import Operation, answers
from etude.serving.wire import dump, parse_body
from etude.studio.routes import count, number, reply
from etude.studio.topic import LOOK_S, MakeTopic, Told, Topic
from etude.studio.work import Team, Work
from etude.studio.work_shapes import Applied, ApplyBody, ChangesAnswer, TeamAnswer, TeamBody, WorkAnswer

_ALL = "/api/work"
_TEAM = f"{_ALL}/{{team}}"
_AGENT = f"{_TEAM}/agents/{{agent}}"
_MOST_FILES = 200


class WorkRoutes:
    """Over the teams of one server; None where it only reads."""

    def __init__(self, work: Work | None) -> None:
        self._all = work

    @property
    def _work(self) -> Work:
        if self._all is None:
            raise Refused("forbidden", "this studio only looks; start it with --work to have agents at work")
        return self._all

    @answers(Operation(_ALL, "get", "All teams of agents, and all that they ask", answer=WorkAnswer))
    async def listed(self, request: Request) -> Response:
        return reply(self._work.told())

    @answers(Operation(_ALL, "post", "Begin a team: an agent for each task, each in a worktree", (), TeamBody,
                       answer=TeamAnswer, status=201))  # fmt: skip
    async def begin(self, request: Request) -> Response:
        work, body = self._work, parse_body(await request.body(), TeamBody)
        if not body.directory.is_absolute() or not os.path.isdir(body.directory):
            raise ConfigError(f"directory: {str(body.directory)[:200]!r} is no directory's absolute path")
        if not all(task.strip() for task in body.tasks):
            raise ConfigError("tasks: one is empty; say what each agent is to do")
        team = await work.begin(body.directory, body.tasks, body.model, body.mode)
        return reply(team.told(), 201)

    @answers(Operation(_TEAM, "get", "A team", answer=TeamAnswer))
    async def show(self, request: Request) -> Response:
        return reply(self._team(request).told())

    @answers(Operation(_TEAM, "delete", "End a team: stop its agents, keep what they did, remove their worktrees",
                       answer=TeamAnswer))  # fmt: skip
    async def end(self, request: Request) -> Response:
        team = self._team(request)
        await team.end()
        return reply(team.told())

    @answers(
        Operation(
            f"{_AGENT}/changes", "get", "What an agent has changed by now, hunk by hunk",
            parameters=(count("after", 10**6), count("limit", _MOST_FILES, 1)), answer=ChangesAnswer,
        )
    )  # fmt: skip
    async def changes(self, request: Request) -> Response:
        first, most = number(request, "after", 0, 10**6), max(1, number(request, "limit", 50, _MOST_FILES))
        return reply(await self._team(request).changes(request.path_params["agent"], first, most))

    @answers(Operation(f"{_AGENT}/apply", "post", "Bring what was chosen into the user's tree", (), ApplyBody,
                       answer=Applied))  # fmt: skip
    async def apply(self, request: Request) -> Response:
        team, body = self._team(request), parse_body(await request.body(), ApplyBody)
        return reply(Applied(await team.apply(request.path_params["agent"], body.commit, body.files, body.rest)))

    def _team(self, request: Request) -> Team:
        return self._work.team(request.path_params["team"])


def work_topics(work: Work | None) -> MakeTopic:
    """`work`."""

    def made(parts: Sequence[str], cursor: str | None) -> Topic | None:
        if list(parts) != ["work"]:
            return None
        if work is None:
            raise Refused("forbidden", "this studio only looks; start it with --work to have agents at work")
        return WorkTopic(work)

    return made


class WorkTopic(Topic):
    """All teams and their inbox, told when they change. Its cursor says nothing: how they stood is gone."""

    every_s = 2 * LOOK_S

    def __init__(self, work: Work) -> None:
        super().__init__(None)
        self._work, self._last = work, b""

    async def open(self) -> Told:
        return [("", {"opened": True})]

    async def new(self) -> Told:
        told = asdict(self._work.told())
        await asyncio.sleep(0)
        if (seen := dump(told)) == self._last:
            return []
        self._last = seen
        return [("", {"work": told})]
