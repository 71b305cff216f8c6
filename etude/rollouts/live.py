"""What an operator changes in a run while it goes on, and the socket by which they say so.

Owns which keys of a recipe may change live and why others may not, the file that keeps accepted changes (a resumed run
has them too), and the exchange: one line of JSON to `control.sock` in the run's directory, one line back. A change is
checked as the recipe was; one that is refused changes nothing. What is asked for is done by the run. Talks to: run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.config import overridden
from etude.errors import ConfigError, DeadlineExceeded, EtudeError
from etude.rollouts.lines import append, rows

if TYPE_CHECKING:
    from etude.rollouts.config import RunConfig  # most of the system: whoever only asks loads none of it

LIVE = {
    "groups.size": "groups that are opened from now on",
    "groups.max_staleness": "the next batch",
    "groups.straggler_s": "all open groups",
    "rollouts.concurrency": "what is sent out from now on",
    "rollouts.rungs": "tasks that are drawn from now on",
    "rollouts.max_steps": "the end of training",
    "rollouts.attempts": "the next failure",
}
"""Keys that may change in a running job, and from when on they hold."""
FIXED_IN_LOCKSTEP = ("groups.size", "rollouts.rungs")
"""Keys that say which samples there are; in lockstep a run resumed must have the same as one that never stopped."""
SOCKET, CHANGES = "control.sock", "changes.jsonl"
ANSWER_S = 600.0
_LINE = 1 << 20


class Changes:
    """The recipe of a run as it is now: `current`."""

    def __init__(self, recipe: RunConfig, directory: Path) -> None:
        """Takes up what was changed in earlier lives, but for what changes nothing and an earlier version accepted."""
        self.current, self.path = recipe, directory / CHANGES
        idle = recipe.all_idle()
        for row in rows(self.path):
            self.current = overridden(
                self.current, [each for each in row["set"] if each.partition("=")[0].strip() not in idle]
            )

    def set(self, overrides: Sequence[str]) -> RunConfig:
        """Check the changes, keep them, and return the recipe with them.

        Raises ConfigError for a key that is not in LIVE, or a value that no recipe could have; then nothing changes.
        """
        for override in overrides:
            self._check(override.partition("=")[0].strip())
        changed = overridden(self.current, overrides)
        append(self.path, {"set": list(overrides), "at": time.time()}, synced=True)
        self.current = changed
        return changed

    def _check(self, key: str) -> None:
        if key not in LIVE:
            raise ConfigError(
                f"{key}: cannot change while the run goes on; these can: {', '.join(sorted(LIVE))}. For any other key "
                "start a run anew"
            )
        if key in FIXED_IN_LOCKSTEP and self.current.rollouts.schedule == "lockstep":
            raise ConfigError(f"{key}: cannot change in lockstep, whose samples are fixed when the run begins")


# --- the exchange -----------------------------------------------------------------------------------------------------


class ControlSocket:
    """Answers operators for as long as it is entered (`async with`). `answer` gets a request and returns what is said
    back; an EtudeError it raises is told to the operator and changes nothing here.
    """

    def __init__(self, directory: Path, answer: Callable[[dict[str, Any]], Awaitable[str]]) -> None:
        self.directory, self.answer = directory, answer
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> ControlSocket:
        with _short(self.directory) as path:
            path.unlink(missing_ok=True)  # a dead run's: the run directory has one owner
            self._server = await asyncio.start_unix_server(self._serve, path, limit=_LINE)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.close()
        (self.directory / SOCKET).unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError):  # an operator who left, or sent what is no request
            request = json.loads(await reader.readline())
            try:
                reply = {"ok": True, "said": await self.answer(request)}
            except EtudeError as error:
                reply = {"ok": False, "said": str(error), "config": isinstance(error, ConfigError)}
            writer.write(json.dumps(reply).encode() + b"\n")
            await writer.drain()
        writer.close()


def ask(directory: Path, request: dict[str, Any], seconds: float = ANSWER_S) -> str:
    """Ask a running job; returns what it says. Raises ConfigError or EtudeError as it says, or where none runs."""
    if not (directory / "recipe.json").exists():
        raise ConfigError(f"{directory}: no run here; give the directory that `etude train` writes")
    with _short(directory) as path, socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(seconds)
        try:
            connection.connect(str(path))
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as answer:
                line = answer.readline(_LINE)
        except TimeoutError:
            raise DeadlineExceeded(f"the run in {directory} to answer", seconds) from None
        except OSError:
            raise EtudeError(f"{directory}: this run does not go on now; start it with --resume") from None
    if not line:
        raise EtudeError(f"{directory}: the run ended before it answered; what it had accepted is in {CHANGES}")
    reply = json.loads(line)
    if reply["ok"]:
        return reply["said"]
    raise (ConfigError if reply.get("config") else EtudeError)(reply["said"])


@contextlib.contextmanager
def _short(directory: Path) -> Generator[Path]:
    """A path to the socket that is short enough for one, however deep the directory is."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield Path(f"/proc/self/fd/{handle}/{SOCKET}")
    finally:
        os.close(handle)
