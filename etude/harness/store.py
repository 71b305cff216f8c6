"""Where sessions are kept: a directory each, with the log that is all there is to a session.

Owns `SessionStore`. Lists them without reading them whole, makes new ones, and forks one at any line of its log. Never
writes into a workspace; opens no sandbox and plays nothing.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from etude.durable import write_new
from etude.errors import CheckpointError, ConfigError
from etude.harness.events import Record, decoded
from etude.harness.journal import Journal, whole_lines
from etude.harness.shadow import Shadow
from etude.host.home import default_home
from etude.records import Event

_ID = re.compile(r"[\w-]{1,64}")


@dataclass(frozen=True)
class SessionEntry:
    """One session, as a list shows it."""

    id: str
    workspace: str
    began: str
    last_active: datetime
    task: str
    """The first prompt; empty where there was none yet."""


class SessionStore:
    """`home` is ETUDE_HOME, or the user's directory for state."""

    def __init__(self, home: Path | None = None) -> None:
        self.home = home or default_home()

    def new_id(self) -> str:
        return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"

    def open(self, session_id: str, *, new: bool = False) -> Journal:
        """Its log, for this process alone. CheckpointError where another has it, ConfigError where there is none."""
        if not new:
            return Journal(self.log(session_id))
        path = self._path(session_id)
        if path.exists():
            raise CheckpointError(f"session {session_id} is there already")
        return Journal(path)

    def log(self, session_id: str) -> Path:
        """The file of its log. ConfigError where there is no such session."""
        path = self._path(session_id)
        if not path.exists():
            raise ConfigError(f"session {session_id} is not in {self.home}; `etude agent --list` shows those that are")
        return path

    def events(self, session_id: str) -> Iterator[tuple[Event, Record]]:
        """All that ever happened in it, whoever has it open."""
        return decoded(self.log(session_id))

    def key(self, session_id: str) -> bytes:
        """A secret of the session's own, for as long as it is kept."""
        path = self._path(session_id).with_name("key")
        if path.exists():
            return path.read_bytes()
        with contextlib.suppress(FileExistsError):
            write_new(path, secrets.token_bytes(32))
        return path.read_bytes()

    def shadow(self, session_id: str, workspace: Path) -> Shadow:
        """Its snapshots of the workspace."""
        return Shadow(workspace, self.home / "snapshots", session_id)

    def workspace(self, session_id: str) -> Path:
        """Where it works."""
        listed = _listed(self.log(session_id))
        if listed is None or not listed.workspace:
            raise CheckpointError(f"session {session_id} does not say where it works; its log has no beginning")
        return Path(listed.workspace)

    def sessions(self, workspace: Path | None = None) -> list[SessionEntry]:
        """The newest first; only those of one workspace, if it is given."""
        paths = (self.home / "sessions").glob("*/events.jsonl")
        listed = [each for path in paths if (each := _listed(path)) is not None]
        wanted = str(workspace.resolve()) if workspace else None
        chosen = [each for each in listed if wanted in (None, each.workspace)]
        return sorted(chosen, key=lambda each: each.last_active, reverse=True)

    async def fork(self, session_id: str, line: int | None = None) -> str:
        """A new session with the same past, up to so many lines of its log or all of it. Returns its id.

        Both go on in the same workspace, unless the caller gives one of them another."""
        lines = list(whole_lines(self.log(session_id)))
        if line is not None and not 1 <= line <= len(lines):
            raise ConfigError(f"line {line}: the log of {session_id} has lines 1 to {len(lines)}")
        first, *rest = lines[:line]
        about = json.loads(first)
        forked = self.new_id()
        about |= {"id": forked, "parent": session_id, "parent_line": 1 + len(rest)}
        with self.open(forked, new=True) as journal:
            for each in (json.dumps(about, ensure_ascii=False).encode(), *rest):
                journal.append(each)
            await journal.sync()
        if workspace := about.get("workspace"):
            await self.shadow(forked, Path(workspace)).adopt(session_id)
        return forked

    def _path(self, session_id: str) -> Path:
        if not _ID.fullmatch(session_id):
            raise ConfigError(f"{session_id!r} is no session's id; `etude agent --list` shows those there are")
        return self.home / "sessions" / session_id / "events.jsonl"


def _listed(path: Path) -> SessionEntry | None:
    """None for a log that begins with something else, or not at all: a session that never was."""
    lines = whole_lines(path)
    first = _parsed(next(lines, b""))
    if first.get("kind") != "session":
        return None
    task = next((each["user"] for each in _next_few(lines) if each.get("kind") == "prompt"), "")
    active = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return SessionEntry(path.parent.name, str(first.get("workspace", "")), str(first.get("time", "")), active, task)


def _next_few(lines: Iterator[bytes]) -> Iterator[dict]:
    for _, line in zip(range(3), lines, strict=False):
        yield _parsed(line)


def _parsed(line: bytes) -> dict:
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError):
        return {}
