"""Measures and ranks the results of several agents: by tests, then by lints, then by the size of the change.

Owns `side_by_side`, which lets agents work at the same time, each in a worktree of its own, and the marks by which
their results are ranked. Tests and lints are commands of the user's, run in each worktree, in a sandbox that is opened
when the agent's is gone. Lints count only where the change brought them. Of two changes that do as well the smaller is
better; one that changed nothing is last of those that ended. An agent that failed is shown with its error and what it
had done: it does not take the others with it. What a result is kept by is the caller's business, which is told of each
as soon as it is there.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic import Field

from etude.config import Config
from etude.environments.base import Sandbox
from etude.errors import ConfigError, EtudeError
from etude.harness.fleet.worktrees import OpenSandbox, Result, Worktree, Worktrees

Play = Callable[[Worktree], Awaitable[None]]
"""Does an agent's work in its worktree, in a sandbox of its own that is gone when it returns."""
Phase: TypeAlias = Literal["working", "measured"]
INTERRUPTED = "interrupted"
"""The error of an agent that was stopped from outside."""


class RankingConfig(Config):
    """What results are measured by; empty commands measure nothing."""

    tests: str = ""
    """Passes with exit code 0."""
    lints: str = ""
    """Prints a line for each finding, `path:line: …`; its exit code says nothing."""
    timeout_s: float = Field(1800.0, gt=0)
    """How long tests, and lints, may take in a worktree."""


@dataclass(frozen=True)
class Measurements:
    """What was measured of one result; None is what was not."""

    tests_pass: bool | None = None
    lints: int | None = None
    """Findings that were not there before."""
    output: str = ""
    """The end of what failing tests printed."""


@dataclass(frozen=True)
class Ranked:
    """One agent's result, in its place. With an `error` the agent itself failed, and the result, if there is one, is
    what it had done until then."""

    name: str
    result: Result | None = None
    marks: Measurements = Measurements()
    error: str = ""

    def why(self) -> str:
        """What put it where it is, in a line."""
        if self.result is None or self.error:
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
    if entry.result is None or entry.error:
        return (True, entry.result is None or entry.result.empty, True, 0, 0, 0)
    result, marks = entry.result, entry.marks
    return (
        False,
        result.empty,
        marks.tests_pass is False,
        marks.lints or 0,
        result.added + result.removed,
        result.files,
    )


async def measure(sandbox: Sandbox, config: RankingConfig, before: Counter[str]) -> Measurements:
    """Run tests and lints on what a worktree holds. `before` are the lints of the tree it started from."""
    passed, said = None, ""
    if config.tests:
        done = await sandbox.exec(config.tests, timeout_s=config.timeout_s)
        passed = done.exit_code == 0
        said = "" if passed else done.output.decode(errors="replace")[-1000:]
    found = await lints(sandbox, config) if config.lints else None
    return Measurements(passed, (found - before).total() if found is not None else None, said)


async def lints(sandbox: Sandbox, config: RankingConfig) -> Counter[str]:
    """The findings on a tree, without their line numbers: a line moved is no new finding."""
    done = await sandbox.exec(config.lints, timeout_s=config.timeout_s, max_output_bytes=1_000_000)
    lines = done.output.decode(errors="replace").splitlines()
    return Counter(re.sub(r":\d+", "", line) for line in lines if re.match(r"\S+?:\d+", line))


async def side_by_side(
    plays: Mapping[str, Play],
    trees: Worktrees,
    open_sandbox: OpenSandbox,
    config: RankingConfig | None = None,
    *,
    on_phase: Callable[[str, Phase], None] = lambda name, phase: None,
    on_done: Callable[[Ranked], Awaitable[None]] | None = None,
) -> list[Ranked]:
    """Let agents work at the same time, by name; what each left, in the order of `plays`.

    `on_phase` is told when an agent begins to work and when it is measured; `on_done` is awaited with each as it ends,
    in whatever way: where all of them are cancelled it is given what those that worked had done, as interrupted. A
    worktree is removed when its agent has ended, and the result is what is left of it.
    """
    config = config or RankingConfig()
    if not 1 <= len(plays) <= trees.config.max_agents:
        raise ConfigError(f"{len(plays)} agents side by side: choose from 1 to {trees.config.max_agents}")
    before = await _lints_before(trees, open_sandbox, config)

    async def one(name: str, play: Play) -> Ranked:
        tree = result = None
        try:
            tree = await trees.add(name, open_sandbox)
            on_phase(name, "working")
            await play(tree)
            result = await trees.result(tree)  # before the tests, which may leave files of their own
            on_phase(name, "measured")
            entry = Ranked(name, result, await _measured(tree, open_sandbox, config, before))
        except (EtudeError, OSError) as failure:
            entry = Ranked(name, result or await _left(trees, tree), error=str(failure) or type(failure).__name__)
        except asyncio.CancelledError:
            if tree is not None and on_done is not None:
                await on_done(Ranked(name, result or await _left(trees, tree), error=INTERRUPTED))
            raise
        if on_done is not None:
            await on_done(entry)
        if tree is not None:
            await trees.remove(name)
        return entry

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(one(name, play)) for name, play in plays.items()]
    return [task.result() for task in running]


async def _left(trees: Worktrees, tree: Worktree | None) -> Result | None:
    """What an agent that did not come to its end had done, if that can be read."""
    try:
        return None if tree is None else await trees.result(tree)
    except EtudeError:
        return None


async def _measured(
    tree: Worktree, open_sandbox: OpenSandbox, config: RankingConfig, before: Counter[str]
) -> Measurements:
    if not config.tests and not config.lints:
        return Measurements()
    sandbox = await open_sandbox(tree.path)
    try:
        return await measure(sandbox, config, before)
    finally:
        await sandbox.destroy()


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
