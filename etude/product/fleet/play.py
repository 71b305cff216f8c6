"""Lets agents of the product work side by side on one repository, and keeps what each leaves.

Owns `play` and `take_over`. Each agent is the same as in the terminal or an editor, headless, in a worktree and an OS
sandbox of its own: nobody is asked, and the rules are those of the project. While they work, what they have so far is
merged on trial after every turn, so that two whose work does not go together are seen early. Prints nothing: `board` is
filled, and shown by whoever opened it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from etude.environments.base import Sandbox
from etude.environments.local import WorkspaceConfig, open_workspace
from etude.errors import ConfigError, EtudeError
from etude.harness.cost import SessionCost
from etude.harness.fleet import (
    Conflict,
    Ranked,
    Repository,
    Result,
    Worktree,
    Worktrees,
    apply_result,
    side_by_side,
    trial_merges,
)  # fmt: skip
from etude.harness.permissions.store import load_permissions
from etude.harness.store import SessionStore
from etude.product.agent import Agent, confined, open_agent
from etude.product.config import AgentConfig
from etude.product.fleet.board import Board
from etude.product.fleet.run_records import Done, Recorder, RunRecord, Runs, too_large
from etude.records import Event

_PAUSE_S = 1.0
"""Between two trial merges."""


@dataclass(frozen=True)
class Asked:
    """One run: the task of each agent, by name, and rules that hold for all of them."""

    tasks: Mapping[str, str]
    directory: Path
    allow: Sequence[str] = ()


@dataclass(frozen=True)
class Played:
    """A run that has ended. `orphans` are the refs of what runs that were killed before it had done."""

    run: RunRecord
    conflicts: tuple[Conflict, ...]
    orphans: tuple[str, ...] = ()


@dataclass
class _AtWork:
    """One agent, from the moment it has its worktree."""

    tree: Worktree
    began: float = field(default_factory=time.monotonic)
    agent: Agent | None = None
    stop: str = ""


async def play(config: AgentConfig, asked: Asked, store: SessionStore, board: Board) -> Played:
    """All agents to their ends. Raises ConfigError for what is wrong before any of them began; one that fails later is
    in the record with its error. Cancelled, it keeps what each had done, and removes the worktrees."""
    if not 1 <= len(asked.tasks) <= config.fleet.max_agents:
        raise ConfigError(f"{len(asked.tasks)} agents: choose from 1 to {config.fleet.max_agents} (fleet.max_agents)")
    repository = await find_repository(asked.directory)
    async with Worktrees.opened(repository.root, config.fleet) as trees:
        if trees.left_out:
            board.on_note(f"not taken along: {too_large(trees.left_out)}")
        runs = Runs(store.home, repository)
        recorder = await runs.begin(trees.start, asked.tasks, config.currency, trees.left_out)
        fleet = _Fleet(config, asked, store, board, trees, recorder)
        try:
            await fleet.play()
        finally:
            recorder.close()
        return Played(recorder.run, tuple(await conflicts_of(repository, recorder.run)), trees.orphans)


async def find_repository(directory: Path) -> Repository:
    """The repository whose top `directory` is. Raises ConfigError for any other."""
    repository = await Repository.find(directory)
    if repository.root.resolve() != directory.resolve():
        raise ConfigError(f"agents side by side work on a whole repository: start at its top, {repository.root}")
    return repository


async def conflicts_of(repository: Repository, run: RunRecord) -> list[Conflict]:
    """The results of a run that do not go together; of several answers to one task nobody would take two."""
    if run.one_task:
        return []
    return await trial_merges(repository, [done.entry.result for done in run.done if done.entry.result])


async def take_over(repository: Repository, run: RunRecord, which: str) -> AsyncGenerator[tuple[str, list[str]]]:
    """Bring results into the user's tree: "best", "all", or an agent by name or number. Tells of each as it has been
    brought: the agent's name, and the paths that changed. Raises ConfigError where there is no such result, or it
    conflicts with what the user, or one brought before it, has changed; that one is then not brought, nor any after."""
    for done in _chosen(run, which):
        if done.entry.result is None:
            raise ConfigError(f"{done.name} left no result: {done.entry.error}")
        yield done.name, await apply_result(repository, done.entry.result)


def _chosen(run: RunRecord, which: str) -> list[Done]:
    if which == "all":
        if run.one_task:
            raise ConfigError("these are answers to one task; bring the best, or one by its number")
        good = [done for done in run.done if done.good]
        return sorted(good, key=lambda done: int(done.name.rpartition("-")[2]))
    if which != "best":
        return [run.find(which)]
    if not run.one_task:
        raise ConfigError("the agents had different tasks, so none is the best; bring all, or one by its number")
    best = run.best()
    if best is None:
        raise ConfigError(f"no result of run {run.id} is good enough to be the best; bring one by its number")
    return [best]


class _Fleet:
    """The agents of one run."""

    def __init__(
        self, config: AgentConfig, asked: Asked, store: SessionStore, board: Board, trees: Worktrees, recorder: Recorder
    ) -> None:
        self._config, self._asked, self._store, self._board = config, asked, store, board
        self._trees, self._recorder = trees, recorder
        self._at_work: dict[str, _AtWork] = {}
        self._results: dict[str, Result] = {}
        self._turn_over = asyncio.Event()

    async def play(self) -> None:
        watching = asyncio.create_task(self._watch())
        try:
            await side_by_side(
                dict.fromkeys(self._asked.tasks, self._play),
                self._trees,
                self._open_sandbox,
                self._config.ranking,
                on_phase=self._board.phase,
                on_done=self._done,
            )
        finally:
            watching.cancel()
            await asyncio.wait([watching])

    async def _open_sandbox(self, path: Path) -> Sandbox:
        """For the user's own commands: to make a worktree ready, and to test what is in it."""
        permissions = await asyncio.to_thread(load_permissions, self._asked.directory)
        secrets = self._config.endpoint.secrets()
        view = await asyncio.to_thread(confined, self._workspace(), permissions, path, secrets)
        return await open_workspace(path, view)

    def _workspace(self) -> WorkspaceConfig:
        return self._config.workspace.model_copy(update={"history": "own"})

    async def _play(self, tree: Worktree) -> None:
        name = tree.name
        at = self._at_work[name] = _AtWork(tree)
        listen = self._board.listener(name)

        def on_event(event: Event) -> None:
            listen(event)
            if event.kind in ("observation", "end"):
                self._turn_over.set()

        opened = open_agent(
            self._in_worktree(tree),
            tree.path,
            self._store,
            on_event=on_event,
            allow=self._asked.allow,
            worktree_of=self._asked.directory,
        )
        async with opened as agent:
            at.agent = agent
            self._board.agents[name].tokens = lambda: _tokens(agent.ledger.spent)
            at.stop = await agent.play(self._asked.tasks[name])

    def _in_worktree(self, tree: Worktree) -> AgentConfig:
        """Findings of linters are compared with what all started from: a worktree has no snapshots."""
        harness = self._config.harness
        if not harness.tool.lint_base:
            harness = harness.model_copy(update={"tool": harness.tool.model_copy(update={"lint_base": tree.start})})
        return self._config.model_copy(update={"workspace": self._workspace(), "harness": harness})

    async def _done(self, entry: Ranked) -> None:
        at, task = self._at_work.pop(entry.name, None), self._asked.tasks[entry.name]
        if entry.result is not None:
            self._results[entry.name] = entry.result
        if at is None:
            done = Done(entry, task)
        else:
            seconds, agent = round(time.monotonic() - at.began, 1), at.agent
            turns = agent.session.state.usage["turns"] if agent else 0
            spent = agent.ledger.spent if agent else SessionCost()
            done = Done(entry, task, agent.id if agent else "", at.stop, seconds, turns, spent)
        await self._recorder.keep(done)
        self._board.ended(done)

    # --- early trial merges -------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """After each turn, of whomever: how much has changed, and what no longer goes together."""
        while True:
            await self._turn_over.wait()
            self._turn_over.clear()
            with contextlib.suppress(EtudeError, OSError):  # a file may go while it is read; the next turn tells
                await self._look()
            await asyncio.sleep(_PAUSE_S)

    async def _look(self) -> None:
        for name, at in list(self._at_work.items()):
            result = await self._trees.result(at.tree)
            if name in self._at_work:  # it has not ended meanwhile
                self._results[name] = result
                self._board.agents[name].size = f"+{result.added} -{result.removed}" if result.files else ""
        if len(set(self._asked.tasks.values())) > 1:
            self._board.conflicting(await trial_merges(self._trees.repository, list(self._results.values())))


def _tokens(spent: SessionCost) -> int:
    return spent.prompt + spent.completion
