"""read_file, edit_file, write_file and list_dir.

Owns what these four say. Files are bytes: an edit keeps every byte it does not replace, line endings and broken
encodings included, and is read back before it is called `ok`. Numbers of lines count from 1 and include both ends.
"""

from __future__ import annotations

import difflib
import posixpath
from collections.abc import Mapping
from typing import Any

from etude.environments.base import Sandbox
from etude.harness.schema import Parameter
from etude.harness.tools.base import Tool, ToolConfig, ToolError, absolute, cut_lines, relative
from etude.harness.tools.edit import replace_once

_PATH = Parameter("path", "Path of the file, relative to /workspace.")


async def _read_file(sandbox: Sandbox, config: ToolConfig, arguments: Mapping[str, Any]) -> str:
    path = arguments["path"]
    text = await _read_text(sandbox, config, path)
    first, last = max(arguments.get("start", 1), 1), arguments.get("end")
    if first == 1 and last is None and len(text) <= config.max_observation_bytes // 4:
        return text
    lines = text.removesuffix("\n").split("\n") if text else []
    if first > 1 and first > len(lines):
        raise ToolError(f"{path} has {len(lines)} lines")
    if last is not None and last < first:
        raise ToolError(f"end {last} is before start {first}")
    shown = lines[first - 1 : last]
    fits = cut_lines(shown, config.max_observation_bytes)
    if 0 < fits < len(shown):
        note = f"[cut: line {first + fits} of {len(lines)} is next]"
        return "\n".join([*shown[:fits], note])
    reaches_end = first - 1 + len(shown) >= len(lines)
    return "\n".join(shown) + ("\n" if shown and (text.endswith("\n") or not reaches_end) else "")


async def _edit_file(sandbox: Sandbox, config: ToolConfig, arguments: Mapping[str, Any]) -> str:
    path = arguments["path"]
    text = await _read_text(sandbox, config, path)
    edited, note = replace_once(text, arguments["old"], arguments["new"])
    await _write_text(sandbox, config, path, edited)
    return f"ok ({note})" if note else "ok"


async def _write_file(sandbox: Sandbox, config: ToolConfig, arguments: Mapping[str, Any]) -> str:
    await _write_text(sandbox, config, arguments["path"], whole_file(arguments["content"]))
    return "ok"


def whole_file(content: str) -> str:
    """The call's form takes the last newline off, and a text file has one."""
    return content if not content or content.endswith("\n") else content + "\n"


async def _list_dir(sandbox: Sandbox, config: ToolConfig, arguments: Mapping[str, Any]) -> str:
    entries = await sandbox.list_dir(absolute(arguments.get("path", ".")))
    names = [f"{entry.name}/" if entry.is_dir else entry.name for entry in entries]
    fits = cut_lines(names, config.max_observation_bytes)
    if fits < len(names):
        names = [*names[:fits], f"[{len(names) - fits} more]"]
    return "\n".join(names) or "[empty]"


async def _read_text(sandbox: Sandbox, config: ToolConfig, path: str) -> str:
    """Bytes that are no UTF-8 survive as lone surrogates, so that writing the text back restores them."""
    try:
        data = await sandbox.read_file(absolute(path), config.max_file_bytes)
    except FileNotFoundError:
        raise ToolError(f"no file {path}{await suggest(sandbox, absolute(path))}") from None
    if b"\0" in data[:8192]:
        raise ToolError(f"{path} is a binary file of {len(data)} bytes")
    return data.decode("utf-8", "surrogateescape")


async def _write_text(sandbox: Sandbox, config: ToolConfig, path: str, text: str) -> None:
    await write_verified(sandbox, config, path, text.encode("utf-8", "surrogateescape"))


async def write_verified(sandbox: Sandbox, config: ToolConfig, path: str, data: bytes) -> None:
    """Write what the limit allows, and read it back: no edit is called done that did not arrive."""
    if len(data) > config.max_file_bytes:
        raise ToolError(f"{path} would have {len(data)} bytes; the limit is {config.max_file_bytes}")
    await sandbox.write_file(absolute(path), data)
    if await sandbox.read_file(absolute(path), config.max_file_bytes) != data:
        raise ToolError(f"{path} does not hold what was written; another process changes it")


async def suggest(sandbox: Sandbox, path: str) -> str:
    """What is most like a path that is not there, as a question: part by part, from the first that is wrong on; empty
    where nothing is like it."""
    directory, wrong = path, list[str]()
    names: list[str] | None = None
    while names is None and directory != "/":
        directory, name = posixpath.split(directory)
        wrong.insert(0, name)
        names = await _names(sandbox, directory)
    for name in wrong:
        if names is None:
            names = await _names(sandbox, directory)
        close = _like(name, names or [])
        if not close:
            return ""
        directory, names = posixpath.join(directory, close), None
    told = posixpath.basename(directory) if len(wrong) == 1 else relative(directory)
    return f"; did you mean {told}?"


async def _names(sandbox: Sandbox, directory: str) -> list[str] | None:
    try:
        return [entry.name for entry in await sandbox.list_dir(directory)]
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None


def _like(name: str, names: list[str]) -> str:
    """Itself, where it is there; empty where none is like it."""
    longer = [each for each in names if each.startswith(f"{name}.")]
    return name if name in names else next(iter(longer or difflib.get_close_matches(name, names, n=1)), "")


READ_FILE = Tool(
    "read_file",
    "Read a file, or the lines from start to end of it.",
    (
        _PATH,
        Parameter("start", "First line, counted from 1.", "integer", required=False),
        Parameter("end", "Last line, included.", "integer", required=False),
    ),
    reads_only=True,
    run=_read_file,
)
EDIT_FILE = Tool(
    "edit_file",
    "Replace one piece of a file's text with another.",
    (
        _PATH,
        Parameter("old", "Text to replace; must occur exactly once."),
        Parameter("new", "Text to put in its place."),
    ),
    reads_only=False,
    run=_edit_file,
)
WRITE_FILE = Tool(
    "write_file",
    "Create a file, or replace the whole of it. Ends it with a newline.",
    (_PATH, Parameter("content", "The file's whole text.")),
    reads_only=False,
    run=_write_file,
)
LIST_DIR = Tool(
    "list_dir",
    "List a directory; names of directories end with a slash.",
    (Parameter("path", "Path of the directory; the workspace if not given.", required=False),),
    reads_only=True,
    run=_list_dir,
)
