"""`etude agent` with several agents: what is read from the command line, and what is printed.

Owns `run` and `tell`, and the form of a file of tasks. The result goes to stdout, as a table or as one JSON object;
what is seen meanwhile goes to stderr. Exit codes: 0 where there is a best result or, of several tasks, every agent came
to its end and no test fails; 1 where not.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from etude.errors import ConfigError, Terminated
from etude.harness.fleet import Conflict, Repository
from etude.harness.store import SessionStore
from etude.plain import plain_line, say
from etude.product.config import AgentConfig
from etude.product.fleet.board import Board, shown
from etude.product.fleet.play import Asked, conflicts_of, find_repository, play, take_over
from etude.product.fleet.run_records import RunRecord, Runs
from etude.product.fleet.table import as_json, table

_BETWEEN = "---"


def best_of(n: int, task: str) -> dict[str, str]:
    """The same task for each of `n` agents."""
    return {f"agent-{number}": task for number in range(1, n + 1)}


def tasks_in(text: str) -> dict[str, str]:
    """Tasks by agent: one a line; or, where a line is only `---`, what stands between such lines. Blank ones and lines
    that begin with # are left out."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    blocks = "\n".join(["", *lines, ""]).split(f"\n{_BETWEEN}\n") if _BETWEEN in lines else lines
    tasks = [task for task in (block.strip() for block in blocks) if task]
    if not tasks:
        raise ConfigError("there is no task in the file: write one a line, or longer ones with --- between them")
    return {f"agent-{number}": task for number, task in enumerate(tasks, 1)}


async def run(config: AgentConfig, asked: Asked, store: SessionStore, as_object: bool, apply: str | None) -> int:
    """Let them work, tell how they did, and bring what is to be applied. Returns the exit code."""
    screen, board = Console(stderr=True), Board(dict(asked.tasks))
    terminated = _stopped_by_sigterm()
    try:
        with shown(board, screen):
            played = await play(config, asked, store, board)
    except asyncio.CancelledError:
        screen.print("stopped; what each had done is kept: etude agent --results", style="yellow")
        if terminated():
            raise Terminated("stopped by SIGTERM") from None
        raise
    for ref in played.orphans:
        screen.print(Text(f"of a run that was killed, kept: git show {ref}", "yellow"), soft_wrap=True)
    repository = await find_repository(asked.directory)
    await _told(repository, played.run, played.conflicts, as_object, apply)
    done = played.run.done
    fine = played.run.best() is not None if played.run.one_task else not any(each.bad for each in done)
    return 0 if fine else 1


def _stopped_by_sigterm() -> Callable[[], bool]:
    """From now on it stops the task as Ctrl-C does, the first time it comes. Tells whether it has come."""
    task, came = asyncio.current_task(), asyncio.Event()
    assert task is not None, "a coroutine asks"

    def stop() -> None:
        if not came.is_set():
            came.set()
            task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    return came.is_set


async def tell(directory: Path, store: SessionStore, run_id: str | None, as_object: bool, apply: str | None) -> int:
    """Tell of a run that is kept, the newest if none is named, and bring what is to be applied."""
    repository = await find_repository(directory)
    kept = Runs(store.home, repository).load(run_id)
    await _told(repository, kept, await conflicts_of(repository, kept), as_object, apply)
    return 0


async def _told(
    repository: Repository, run: RunRecord, conflicts: Sequence[Conflict], as_object: bool, apply: str | None
) -> None:
    """Print first, then apply: a result that cannot be brought is still told of."""
    out = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 120, highlight=False)
    if not as_object:
        out.print(table(run, conflicts))
    brought: dict[str, list[str]] = {}
    refused: ConfigError | None = None
    if apply is not None:
        try:
            async for name, paths in take_over(repository, run, apply):
                brought[name] = paths
        except ConfigError as error:
            refused = error
    if as_object:
        say(json.dumps({**as_json(run, conflicts), "applied": brought}))
    for name, paths in brought.items() if not as_object else ():
        what = plain_line(", ".join(paths)) or "nothing, it is there already"
        out.print(Text(f"brought {name} into your tree: {what}"), soft_wrap=True)
    if refused is not None:
        raise refused
    if apply is None and not as_object and any(done.good for done in run.done):
        what = "best|N" if run.one_task else "all|N"
        out.print(f"to bring a result into your tree: etude agent --apply {what}", style="dim")
