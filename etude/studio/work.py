"""Several agents at work on one repository, watched and asked by a person in a browser.

Owns `Work` and its teams. A team is up to eight agents, each in a worktree of its own (`harness.fleet`) and a session
of the server's hub, so that what they ask waits in one inbox, and what they do is followed as any session is. What
each has done can be looked at hunk by hunk and brought into the user's tree at any time; at the end of a team it is
kept as the record of a run, where `etude agent --results` finds it too. All on one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from etude.environments.base import Sandbox
from etude.environments.local import open_workspace
from etude.errors import EtudeError
from etude.harness.fleet import Conflict, Ranked, Result, Worktree, Worktrees, apply_result, trial_merges
from etude.harness.permissions.gate import Mode
from etude.harness.permissions.store import load_permissions
from etude.product.agent import confined
from etude.product.config import AgentConfig
from etude.product.fleet.board import Board, Status
from etude.product.fleet.play import find_repository
from etude.product.fleet.run_records import Done, Recorder, Runs
from etude.product.sessions.errors import Refused, error_sentence
from etude.product.sessions.hub import Hub
from etude.product.sessions.stream import Tail
from etude.records import Event
from etude.studio.files import shallow
from etude.studio.hunks import ChangedFile, changes_of, chosen_of
from etude.studio.work_shapes import AgentAnswer, AskedAnswer, ChangesAnswer, ConflictAnswer, TeamAnswer, WorkAnswer

_log = structlog.get_logger("studio")
LOOK_S = 1.0
MOST_AGENTS = 8


@dataclass
class AgentAtWork:
    """One agent of a team."""

    name: str
    task: str
    status: Status
    began: float = field(default_factory=time.time)
    tree: Worktree | None = None
    session: str = ""
    tail: Tail | None = None
    result: Result | None = None
    error: str = ""
    turn_over: bool = False


class Team:
    """Agents on one repository. `begin` makes their places and lets them work; `end` keeps what they did."""

    def __init__(self, id: str, hub: Hub, config: AgentConfig, directory: Path, tasks: Sequence[str]) -> None:
        self.id, self._hub, self._config, self.directory = id, hub, config, directory
        names = [f"agent-{number}" for number in range(1, len(tasks) + 1)]
        self._board = Board(dict(zip(names, tasks, strict=True)))
        self.agents = {name: AgentAtWork(name, task, self._board.agents[name]) for name, task in self._tasks().items()}
        self.conflicts: list[Conflict] = []
        self.ended = False
        self._stack = contextlib.AsyncExitStack()
        self._looking: asyncio.Task[None] | None = None

    def _tasks(self) -> dict[str, str]:
        return {name: status.task for name, status in self._board.agents.items()}

    async def begin(self, model: str | None, mode: Mode) -> None:
        """Raises ConfigError for what is no repository, or cannot be worked on. Returns once all have begun."""
        self.repository = await find_repository(self.directory)
        async with contextlib.AsyncExitStack() as stack:
            self._trees = await stack.enter_async_context(Worktrees.opened(self.directory, self._config.fleet))
            runs = Runs(self._hub.store.home, self.repository)
            self._recorder: Recorder = await runs.begin(self._trees.start, self._tasks(), self._config.currency)
            stack.callback(self._recorder.close)
            self._stack = stack.pop_all()
        try:
            async with asyncio.TaskGroup() as group:
                for agent in self.agents.values():
                    group.create_task(self._started(agent, model, mode))
        except BaseException:  # of all others each agent has its own error
            await self._stack.aclose()
            raise
        self._looking = asyncio.create_task(self._look())

    async def _started(self, agent: AgentAtWork, model: str | None, mode: Mode) -> None:
        try:
            tree = agent.tree = await self._trees.add(agent.name, self._open_sandbox)
            self._hub.worktrees[tree.path.resolve()] = self.directory, self._in_worktree(tree)
            live = await self._hub.begin(tree.path, model)
            agent.session, agent.status.state = live.agent.id, "working"
            agent.tail = Tail(self._hub.log(agent.session), 0)
            live.agent.gate.mode = mode
            live.start(lambda each: each.play(agent.task))
        except (EtudeError, OSError) as error:  # the others go on
            agent.error, agent.status.state = error_sentence(error), "failed"

    async def _open_sandbox(self, path: Path) -> Sandbox:
        """For the user's own command that makes a worktree ready."""
        permissions = await asyncio.to_thread(load_permissions, self.directory)
        secrets = self._config.endpoint.secrets()
        view = await asyncio.to_thread(confined, self._config.workspace, permissions, path, secrets)
        return await open_workspace(path, view.model_copy(update={"history": "own"}))

    def _in_worktree(self, tree: Worktree) -> AgentConfig:
        harness = self._config.harness
        if not harness.tool.lint_base:
            harness = harness.model_copy(update={"tool": harness.tool.model_copy(update={"lint_base": tree.start})})
        workspace = self._config.workspace.model_copy(update={"history": "own"})
        return self._config.model_copy(update={"workspace": workspace, "harness": harness})

    # --- what goes on -------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """What each has logged; and after a turn, how much it has changed and what no longer goes together."""
        while True:
            self._read_all()
            try:
                await self._measure()
            except (EtudeError, OSError):  # a file may go while it is read; the next turn tells
                pass
            except Exception:
                _log.exception("bug", team=self.id)
            await asyncio.sleep(LOOK_S)

    async def _measure(self) -> None:
        over = [agent for agent in self.agents.values() if agent.turn_over]
        for agent in over:
            agent.turn_over = False
            await self._measured(agent)
        if over and len(set(self._tasks().values())) > 1:
            results = [agent.result for agent in self.agents.values() if agent.result]
            self.conflicts = await trial_merges(self.repository, results)

    def _read_all(self) -> None:
        for agent in self.agents.values():
            with contextlib.suppress(OSError):
                self._read(agent)

    def _read(self, agent: AgentAtWork) -> None:
        listen = self._board.listener(agent.name)
        for sent in agent.tail or ():
            said = json.loads(sent.partition(b"\ndata: ")[2])
            kind, at = said.pop("kind"), said.pop("at", 0.0)
            with contextlib.suppress(KeyError, TypeError):  # a log of another version
                listen(Event(kind, at, said))
            agent.turn_over |= kind in ("observation", "end", "undo", "redo")

    async def _measured(self, agent: AgentAtWork) -> Result | None:
        """What its worktree holds now; the same result as before where that is the same, whenever it is asked."""
        if agent.tree is not None:
            found, before = await self._trees.result(agent.tree), agent.result
            if before is None or await self._tree_of(before) != await self._tree_of(found):
                agent.result = found
        return agent.result

    async def _tree_of(self, result: Result) -> str:
        return await self.repository.line("rev-parse", f"{result.commit}^{{tree}}")

    def told(self) -> TeamAnswer:
        """How it stands, by what each has logged."""
        self._read_all()
        return TeamAnswer(
            id=self.id,
            directory=str(self.directory),
            ended=self.ended,
            agents=[self._told(agent) for agent in self.agents.values()],
            conflicts=[ConflictAnswer(each.first, each.second, list(each.paths)) for each in self.conflicts],
        )

    def _told(self, agent: AgentAtWork) -> AgentAnswer:
        now = self._hub.channel(agent.session).snapshot() if agent.session else {}
        result = agent.result
        state = agent.status.state if agent.error or not agent.session else now.get("state", "resting")
        return AgentAnswer(
            name=agent.name, task=agent.task, session=agent.session, state=state, error=agent.error or now.get("error"),
            ended=now.get("ended"), turns=agent.status.turns, doing=agent.status.doing, began_at=agent.began,
            files=result.files if result else 0, added=result.added if result else 0,
            removed=result.removed if result else 0, asks=len(now.get("questions", ())),
        )  # fmt: skip

    def asked(self) -> list[AskedAnswer]:
        """What its agents wait to be answered."""
        return [
            AskedAnswer(self.id, agent.name, agent.session, each["request"], shallow(each["questions"]))
            for agent in self.agents.values() if agent.session and not self.ended
            for each in self._hub.channel(agent.session).snapshot()["questions"]
        ]  # fmt: skip

    # --- what they did ------------------------------------------------------------------------------------------------

    def _agent(self, name: str) -> AgentAtWork:
        if name not in self.agents:
            raise Refused("not_found", f"agent {name[:100]}: team {self.id} has {', '.join(self.agents)}")
        return self.agents[name]

    async def changes(self, name: str, first: int, most: int) -> ChangesAnswer:
        """Of one agent, as its worktree stands now."""
        agent = self._agent(name)
        known = agent.result if self.ended or first else None  # later pages are of what the first one was of
        result = known or (None if self.ended else await self._measured(agent))
        if result is None:
            return ChangesAnswer("", 0, [], None)
        files: list[ChangedFile] = await changes_of(self.repository, result.start, result.commit, first, most)
        ends = first + len(files)
        return ChangesAnswer(result.commit, result.files, files, ends if files and ends < result.files else None)

    async def apply(
        self, name: str, commit: str, chosen: Mapping[str, Sequence[int] | None] | None, rest: bool = False
    ) -> list[str]:
        """Bring what was chosen, or all of it, into the user's tree; the paths that changed there. With `rest`, the
        files that `chosen` does not name come too. Raises Refused where the agent has gone on since `commit`,
        ConfigError where it conflicts with what the user has done."""
        agent = self._agent(name)
        result = agent.result if self.ended else await self._measured(agent)
        if result is None or result.commit != commit:
            raise Refused("conflict", f"{name} has gone on since {commit[:12]}; look at its changes again")
        if chosen is not None:
            made = await chosen_of(self.repository, result.start, commit, chosen, rest, f"Chosen of what {name} did")
            result = Result(result.name, result.start, made)
        return await apply_result(self.repository, result)

    async def end(self) -> None:
        """Stop them, keep what each did, and remove their worktrees. Safe to call twice."""
        if self.ended:
            return
        self.ended = True
        while self._looking is not None and not self._looking.done():
            self._looking.cancel()  # again where it was lost: asyncio drops one that comes as a wait ends
            await asyncio.wait([self._looking], timeout=LOOK_S)
        try:
            await asyncio.gather(*map(self._kept, self.agents.values()))
        finally:
            for agent in self.agents.values():
                if agent.tree is not None:
                    self._hub.worktrees.pop(agent.tree.path.resolve(), None)
            await self._stack.aclose()

    async def _kept(self, agent: AgentAtWork) -> None:
        now = self._hub.channel(agent.session).snapshot() if agent.session else {}
        if agent.session:
            with contextlib.suppress(EtudeError):
                await self._hub.close(agent.session)
        error = agent.error or now.get("error") or ""
        with contextlib.suppress(EtudeError, OSError):
            await self._measured(agent)
        done = Done(
            Ranked(agent.name, agent.result, error=error), agent.task, agent.session, now.get("ended") or "",
            round(time.time() - agent.began, 1), agent.status.turns,
        )  # fmt: skip
        await self._recorder.keep(done)


class Work:
    """All teams of one studio."""

    def __init__(self, hub: Hub, config: AgentConfig) -> None:
        self._hub, self._config = hub, config
        self.teams: dict[str, Team] = {}
        self._beginning, self._ending = asyncio.Lock(), False

    async def begin(self, directory: Path, tasks: Sequence[str], model: str | None, mode: Mode) -> Team:
        """A new team. Raises Refused where there would be more agents than may be at once."""
        async with self._beginning:
            if self._ending:
                raise Refused("draining", "this server is stopping; ask again when it is back", retry_after_s=5)
            at_work = sum(len(team.agents) for team in self.teams.values() if not team.ended)
            if at_work + len(tasks) > MOST_AGENTS:
                said = f"{at_work} agents are there, of {MOST_AGENTS} at most; end a team, or start fewer"
                raise Refused("busy", said, retry_after_s=5)
            team = Team(f"team-{len(self.teams) + 1}", self._hub, self._config, directory, tasks)
            await team.begin(model, mode)
            self.teams[team.id] = team
        return team

    def team(self, id: str) -> Team:
        """Raises Refused for one that is not there."""
        if id not in self.teams:
            raise Refused("not_found", f"team {id[:100]}: there is none; the list of teams has those there are")
        return self.teams[id]

    def told(self) -> WorkAnswer:
        """Everything, as a page shows it."""
        teams = list(self.teams.values())
        return WorkAnswer([team.told() for team in teams], [each for team in teams for each in team.asked()])

    async def end(self) -> None:
        """End all teams, one that is just beginning too, and begin no more."""
        self._ending = True
        async with self._beginning:
            await asyncio.gather(*(team.end() for team in self.teams.values()))
