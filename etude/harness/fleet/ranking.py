"""Which of several answers to one task is best: by tests, then by lints, then by the size of the change.

Owns `best_of`, which gives the same task to several agents, and the marks by which their results are ranked. Tests and
lints are commands of the user's, run in the sandbox of each worktree. Lints count only where the change brought them.
Of two changes that do as well the smaller is better; one that changed nothing is last of those that ended. An agent
that failed is shown with its error: it does not take the others with it.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from pydantic import Field

from etude.config import Config
from etude.environments.base import Sandbox
from etude.errors import ConfigError, EtudeError
from etude.harness.fleet.worktrees import OpenSandbox, Result, Worktree, Worktrees

Play = Callable[[Worktree, Sandbox], Awaitable[None]]
"""Plays the task in a worktree, whose sandbox it is given."""


class RankingConfig(Config):
    """What results are measured by; empty commands measure nothing."""

    tests: str = ""
    """Passes with exit code 0."""
    lints: str = ""
    """Prints a line for each finding, `path:line: …`; its exit code says nothing."""
    timeout_s: float = Field(1800.0, gt=0)


@dataclass(frozen=True)
class Marks:
    """What was measured of one result; None is what was not."""

    tests_pass: bool | None = None
    lints: int | None = None
    """Findings that were not there before."""
    said: str = ""
    """The end of what failing tests printed."""


@dataclass(frozen=True)
class Ranked:
    """One agent's result, in its place. `error` instead of the rest where the agent itself failed."""

    name: str
    result: Result | None = None
    marks: Marks = Marks()
    error: str = ""

    def why(self) -> str:
        """What put it where it is, in a line."""
        if self.result is None:
            return f"failed: {self.error}"
        words = {True: ["tests pass"], False: ["tests fail"], None: []}[self.marks.tests_pass]
        if self.marks.lints is not None:
            words.append(f"{self.marks.lints} new lint{'s' * (self.marks.lints != 1)}")
        size = f"{self.result.files} file{'s' * (self.result.files != 1)}, +{self.result.added} -{self.result.removed}"
        return ", ".join([*words, "nothing changed" if self.result.empty else size])


def rank(entries: Sequence[Ranked]) -> list[Ranked]:
    """Best first; entries that cannot be told apart stay in their order."""
    return sorted(entries, key=_key)


def _key(entry: Ranked) -> tuple[bool, bool, bool, int, int, int]:
    if entry.result is None:
        return (True, True, True, 0, 0, 0)
    result, marks = entry.result, entry.marks
    return (
        False,
        result.empty,
        marks.tests_pass is False,
        marks.lints or 0,
        result.added + result.removed,
        result.files,
    )


async def measure(sandbox: Sandbox, config: RankingConfig, before: Counter[str]) -> Marks:
    """Run tests and lints on what a worktree holds. `before` are the lints of the tree it started from."""
    passed, said = None, ""
    if config.tests:
        done = await sandbox.exec(config.tests, timeout_s=config.timeout_s)
        passed = done.exit_code == 0
        said = "" if passed else done.output.decode(errors="replace")[-1000:]
    found = await lints(sandbox, config) if config.lints else None
    return Marks(passed, (found - before).total() if found is not None else None, said)


async def lints(sandbox: Sandbox, config: RankingConfig) -> Counter[str]:
    """The findings on a tree, without their line numbers: a line moved is no new finding."""
    done = await sandbox.exec(config.lints, timeout_s=config.timeout_s, max_output_bytes=1_000_000)
    lines = done.output.decode(errors="replace").splitlines()
    return Counter(re.sub(r":\d+", "", line) for line in lines if re.match(r"\S+?:\d+", line))


async def best_of(
    n: int, trees: Worktrees, open_sandbox: OpenSandbox, play: Play, config: RankingConfig | None = None
) -> list[Ranked]:
    """Let `n` agents do the same task side by side, and rank what they leave, best first."""
    config = config or RankingConfig()
    if not 1 <= n <= trees.config.max_agents:
        raise ConfigError(f"best of {n}: choose from 1 to {trees.config.max_agents}")
    before = await _lints_before(trees, open_sandbox, config)

    async def one(name: str) -> Ranked:
        try:
            tree = await trees.add(name, open_sandbox)
            sandbox = await open_sandbox(tree.path)
            try:
                await play(tree, sandbox)
                result = await trees.result(tree)  # before the tests, which may leave files of their own
                return Ranked(name, result, await measure(sandbox, config, before))
            finally:
                await sandbox.destroy()
        except (EtudeError, OSError) as error:
            return Ranked(name, error=str(error))

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(one(f"agent-{number}")) for number in range(1, n + 1)]
    return rank([task.result() for task in running])


async def _lints_before(trees: Worktrees, open_sandbox: OpenSandbox, config: RankingConfig) -> Counter[str]:
    if not config.lints:
        return Counter()
    tree = await trees.add("before", open_sandbox)
    try:
        sandbox = await open_sandbox(tree.path)
        try:
            return await lints(sandbox, config)
        finally:
            await sandbox.destroy()
    finally:
        await trees.remove("before")
