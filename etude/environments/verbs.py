"""The verbs of a sandbox as a table: how each is asked for, and answered, between two processes.

Owns every verb's name, its HTTP request in both directions (arguments to request in a client, request to arguments in
a server), and whether a paused sandbox allows it. What a verb means is in `base.Sandbox`; clients (`far`), the server's
routes, its OpenAPI document and Ray's actors are loops over this table, so that a verb is added here and there alone.
Ray carries arguments and values as they are. How the guest agent is asked is `guest_verbs`.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from etude.config import Config
from etude.environments.base import DirEntry, ExecResult, Metrics, ProcessInfo, Snapshot, TarChunk
from etude.environments.wire import READ_MAX, ExecBody, ForkBody, TtlBody, exec_result
from etude.errors import ConfigError
from etude.serving.wire import dump, parse_body, whole_number

_WAIT_MAX_S = 60.0
_LAST_PROCESS = 0xFFFFFFFF
"""What the line to a guest agent has room for."""


@dataclass(frozen=True)
class ProcessStatus:
    """How a background command stands: its result, None while it runs, and whether its sandbox is paused."""

    result: ExecResult | None
    paused: bool


# arguments in an address ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parameter:
    """One argument in both directions, and its JSON schema."""

    schema: Mapping[str, Any]
    read: Callable[[str, str], Any]
    """From its name and text."""
    default: str = ""
    write: Callable[[Any], str] = str
    needed: bool = False


def _path_read(name: str, text: str) -> str:
    if not text.startswith("/") or "\0" in text:
        raise ConfigError("path: give an absolute path inside the sandbox, without NUL")
    return text


def _path_written(path: str) -> str:
    """A path as bytes, percent-encoded: names need not be UTF-8. Raises OSError for text no path can hold."""
    if "\0" in path:
        raise OSError(errno.EINVAL, "holds a NUL character", path)
    try:
        return quote(os.fsencode(path))
    except UnicodeEncodeError:
        raise OSError(errno.EINVAL, "not encodable as UTF-8", path) from None


def _yes_read(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise ConfigError(f"{name}: {text[:40]!r} must be true or false")
    return text == "true"


def _size_read(name: str, text: str) -> int:
    if (most := whole_number(name, text)) > READ_MAX:
        raise ConfigError(f"max_bytes: at most {READ_MAX} at once; take larger ones in an archive, or in parts")
    return most


def _process_read(name: str, text: str) -> int:
    if (number := whole_number(name, text)) > _LAST_PROCESS:
        raise ProcessLookupError(errno.ESRCH, f"no background command has the id {number}")
    return number


def _seconds_read(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if math.isnan(seconds):  # which compares with nothing, so that no bound would hold it
        raise ConfigError(f"{name}: {text[:40]!r} is no number of seconds")
    return min(max(seconds, 0.0), _WAIT_MAX_S)


_COUNT = {"type": "integer", "minimum": 0}
PARAMETERS = {
    "path": Parameter({"type": "string", "pattern": "^/"}, _path_read, "", _path_written, needed=True),
    "max_bytes": Parameter(_COUNT, _size_read, "10000000", lambda most: str(min(max(most, 0), READ_MAX))),
    "skip": Parameter(_COUNT, whole_number, "0"),
    "from": Parameter(_COUNT, whole_number, "0"),
    "recursive": Parameter(
        {"type": "string", "enum": ["true", "false"]}, _yes_read, "false", lambda yes: str(yes).lower()
    ),
    "wait_s": Parameter({"type": "number", "minimum": 0}, _seconds_read, "0", lambda seconds: str(round(seconds, 3))),
    "process": Parameter({"type": "integer", "minimum": 1}, _process_read),
}  # fmt: skip
"""Of requests: what stands in a query, and in a path."""


# verbs ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verb:
    """How one is asked for. What only reads may be asked again; what `changes` something goes under a key, once."""

    method: Literal["GET", "PUT", "POST", "DELETE"]
    path: str
    """Below the sandbox's address."""
    summary: str
    what: str
    """What is waited for, in errors; {…} is an argument."""
    query: tuple[str, ...] = ()
    body: str | type[Config] | None = None
    body_optional: bool = False
    """The argument that is sent as it is, or the form of those that are sent as JSON."""
    given: Mapping[str, Any] | None = None
    """Sent with them, and no argument."""
    answer: Literal["object", "array", "bytes", "tar"] = "object"
    keys: tuple[str, ...] = ()
    """Members that every answer has."""
    value: Callable[[Any], Any] = lambda said: None
    """From an answer: bytes, or what its JSON says."""
    while_paused: bool = False

    @property
    def changes(self) -> bool:
        return self.method != "GET"

    def says(self, arguments: Mapping[str, Any]) -> str:
        """What is waited for, with these arguments."""
        command = f"{arguments.get('command', '')[:60]!r}"
        return self.what.format_map({**arguments, "command": command})

    def request(self, arguments: Mapping[str, Any]) -> tuple[str, bytes]:
        """The address below the sandbox's, and the body."""
        query = "&".join(f"{name}={PARAMETERS[name].write(arguments[name])}" for name in self.query)
        at = self.path.format_map(arguments) + (f"?{query}" if query else "")
        if isinstance(self.body, str):
            return at, arguments[self.body]
        return at, b"" if self.body is None else dump({**arguments, **(self.given or {})})

    def arguments(self, place: Mapping[str, str], query: Mapping[str, str], raw: bytes) -> dict[str, Any]:
        """What a request gives: in its path, its query and its body. Raises ConfigError."""
        found = {name: PARAMETERS[name].read(name, text) for name, text in place.items() if name in PARAMETERS}
        for name in self.query:
            found[name] = PARAMETERS[name].read(name, query.get(name, PARAMETERS[name].default))
        if isinstance(self.body, str):
            found[self.body] = raw
        elif self.body is not None:
            found |= parse_body(raw, self.body).model_dump()
        return found

    def decoded(self, answer: bytes) -> Any:
        """The value in an answer."""
        return self.value(answer if self.answer in ("bytes", "tar") else json.loads(answer))


SHOWN = ("id", "backend", "image", "resources", "labels", "egress", "paused", "created_at", "expires_at")
"""Members of what is said of a sandbox."""
KEPT = ("id", "backend", "image", "of")
"""And of a snapshot."""
_USE = ("cpu_s", "memory_bytes", "pids", "disk_bytes", "uptime_s")
_EACH = "/processes/{process}"

VERBS: dict[str, Verb] = {
    "read_file": Verb("GET", "/files", "A file", "{path}", ("path", "max_bytes"), answer="bytes", value=bytes),
    "write_file": Verb("PUT", "/files", "Write a file", "{path} to be written", ("path",), "data"),
    "remove": Verb(
        "DELETE", "/files", "Remove a file, or with `recursive` a directory", "{path} to be removed",
        ("path", "recursive"),
    ),
    "list_dir": Verb(
        "GET", "/files/list", "What a directory holds", "the entries of {path}", ("path",), answer="array",
        value=lambda said: [DirEntry(**each) for each in said],
    ),
    "download": Verb(
        "GET", "/archive", "A directory as a tar archive", "an archive of {path}", ("path",), answer="tar", value=bytes
    ),
    "upload": Verb(
        "PUT", "/archive", "Unpack a tar archive", "an archive to be unpacked at {path}", ("path",), "archive"
    ),
    "part": Verb(
        "GET", "/archive/part", "A directory in archives, from the entry `skip` on", "a part of {path}",
        ("path", "skip"), answer="bytes", value=TarChunk.decoded, while_paused=True,
    ),
    "snapshot": Verb(
        "POST", "/snapshot", "Take a snapshot", "a snapshot", keys=KEPT, value=lambda said: Snapshot(said["id"]),
        while_paused=True,
    ),
    "fork": Verb(
        "POST", "/fork", "Copies of it, which go on by themselves", "{n} forks to start", body=ForkBody,
        body_optional=True, answer="array",
        value=lambda said: [each["id"] for each in said], while_paused=True,
    ),
    "pause": Verb("POST", "/pause", "Let it stand still", "it to stand still", while_paused=True),
    "resume": Verb("POST", "/resume", "Let it go on", "it to go on", while_paused=True),
    "ttl": Verb(
        "POST", "/ttl", "Give it so long from now", "its time to live to be set", body=TtlBody, keys=SHOWN,
        while_paused=True,
    ),
    "metrics": Verb("GET", "/metrics", "What it uses", "what it uses", keys=_USE, value=lambda said: Metrics(**said)),
    "exec": Verb(
        "POST", "/exec", "Run a command, to its end, as a stream or in the background", "the command {command} to end",
        body=ExecBody, given={"background": False}, value=exec_result,
    ),
    "start": Verb(
        "POST", "/exec", "Run a command in the background", "the command {command} to be running",
        body=ExecBody, given={"background": True}, value=lambda said: said["process"],
    ),
    "processes": Verb(
        "GET", "/processes", "Its commands in the background", "its commands", answer="array",
        value=lambda said: [ProcessInfo(**each) for each in said],
    ),
    "wait": Verb(
        "GET", _EACH, "How one ended, if it did", "process {process} to end", ("wait_s",), keys=("result", "paused"),
        value=lambda body: ProcessStatus(body["result"] and exec_result(body["result"]), body["paused"]),
        while_paused=True,
    ),
    "kill": Verb("DELETE", _EACH, "Kill one", "process {process} to be killed", while_paused=True),
    "destroy": Verb("DELETE", "", "Destroy a sandbox", "it to be destroyed", while_paused=True),
}  # fmt: skip
WHILE_PAUSED = {name for name, verb in VERBS.items() if verb.while_paused}
