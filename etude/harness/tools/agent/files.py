"""The agent's read_file, edit_file, write_file and list_dir.

Owns what these say. Reading takes any text file of any size, a stretch at a time; editing keeps every byte it does not
replace, line endings, encodings and byte order marks included, and reads back what it wrote before it says `ok`. How
an edit finds its place is the business of `harness.edits`. Lines count from 1.
"""

from __future__ import annotations

import errno
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from etude.environments.base import Sandbox
from etude.harness.edits import Edit, EditRefused, Replacement, parse_hunks, replace_each
from etude.harness.schema import Parameter
from etude.harness.tools import files as small
from etude.harness.tools.agent.text import TextFile, decode
from etude.harness.tools.base import Tool, ToolConfig, ToolError, absolute, cut_lines

_PATH = Parameter("path", "Path of the file, relative to /workspace.")
_LINES_OF_LARGE = 2000
_PEEK_BYTES = 8192


async def _read_file(sandbox: Sandbox, config: ToolConfig, arguments: Mapping[str, Any]) -> str:
    path, first, last = arguments["path"], max(arguments.get("start", 1), 1), arguments.get("end")
    if last is not None and last < first:
        raise ToolError(f"end {last} is before start {first}")
    try:
        file = await _read_text(sandbox, config, path)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        return await _read_large(sandbox, config, path, first, last)
    lines = file.text.removesuffix("\n").split("\n") if file.text else []
    if not lines:
        return "[empty file]"
    if first > len(lines):
        raise ToolError(f"{path} has {len(lines)} lines")
    return _shown(lines[first - 1 : last], first, str(len(lines)), config)


def _shown(lines: Sequence[str], first: int, count: str, config: ToolConfig) -> str:
    """Lines as they are, as many as fit, and where the next begin; `count` says how many the file has."""
    cut = [line.removesuffix("\r") for line in lines]
    fits = cut_lines(cut, config.max_observation_bytes)
    if fits == 0:
        return cut[0] if cut else ""  # one enormous line: its middle is cut further on
    after = first + fits
    whole = fits == len(cut) and (not count.isdigit() or after > int(count))
    return "\n".join(cut[:fits]) + ("" if whole else f"\n[lines {first}-{after - 1} of {count}; start={after} goes on]")


async def _read_large(sandbox: Sandbox, config: ToolConfig, path: str, first: int, last: int | None) -> str:
    """A stretch of a file too large to be read as a whole."""
    quoted, last = shlex.quote(absolute(path)), min(last or first + _LINES_OF_LARGE, first + _LINES_OF_LARGE)
    peek = await sandbox.exec(f"head -c {_PEEK_BYTES} -- {quoted}", max_output_bytes=_PEEK_BYTES)
    decode(peek.output, path)  # refuses what is binary
    command = f"wc -lc < {quoted} && sed -n '{first},{last}p;{last}q' -- {quoted}"
    room = config.max_observation_bytes * 2
    done = await sandbox.exec(command, timeout_s=config.command_timeout_s, max_output_bytes=room)
    head, _, body = done.output.decode("utf-8", "replace").partition("\n")
    if done.exit_code or len(head.split()) != 2:
        raise ToolError(f"{path}: {done.output.decode('utf-8', 'replace').strip()[:200] or 'cannot be read'}")
    count, size = (int(number) for number in head.split())
    if first > count:
        raise ToolError(f"{path} has {count} lines, {size} bytes")
    lines = body.removesuffix("\n").split("\n")
    if done.log_path:  # the middle of what came is missing: what comes before it is whole lines but for the last
        note = next((at for at, line in enumerate(lines) if line.startswith("[... ")), len(lines))
        lines = lines[: max(note - 1, 1)]
    return _shown(lines, first, str(max(count, first + len(lines) - 1)), config)


async def _edit_file(sandbox: Sandbox, config: ToolConfig, arguments: Mapping[str, Any]) -> str:
    path, edits = arguments["path"], _edits(arguments)
    file = await _read_text(sandbox, config, path)
    try:
        done = replace_each(file.text, edits, config.edit_tolerance)
    except EditRefused as refusal:
        raise ToolError(str(refusal)) from None
    await small.write_verified(sandbox, config, path, file.with_text(done[-1].text).encode())
    return "\n".join(_said(each) for each in done)


def _edits(arguments: Mapping[str, Any]) -> list[Edit]:
    """What a call asks for: old and new, or hunks."""
    hunks, old, new = (arguments.get(name) for name in ("hunks", "old", "new"))
    if hunks is not None and (old or new):
        raise ToolError("give old and new, or hunks; not both")
    if hunks is not None:
        try:
            return [replace(each, every=arguments.get("all", False)) for each in parse_hunks(hunks)]
        except ValueError as error:
            raise ToolError(str(error)) from None
    if old is None or new is None:
        raise ToolError("give old and new, or hunks")
    return [Edit(old, new, arguments.get("all", False))]


def _said(done: Replacement) -> str:
    lines = f"lines {done.first}-{done.last}" if done.last > done.first else f"line {done.first}"
    return f"ok, {lines}" + (f" ({'; '.join(done.notes)})" if done.notes else "")


async def _write_file(sandbox: Sandbox, config: ToolConfig, arguments: Mapping[str, Any]) -> str:
    content = small.whole_file(arguments["content"])
    await small.write_verified(sandbox, config, arguments["path"], content.encode())
    count = content.count("\n")
    return f"ok, {count} line{'s' if count != 1 else ''}"


async def _read_text(sandbox: Sandbox, config: ToolConfig, path: str) -> TextFile:
    try:
        return decode(await sandbox.read_file(absolute(path), config.max_file_bytes), path)
    except FileNotFoundError:
        raise ToolError(f"no file {path}{await small.suggest(sandbox, absolute(path))}") from None


READ_FILE = Tool(
    "read_file",
    "Read a text file, or the lines from start to end of it. A long one is cut, and says where to go on.",
    (
        _PATH,
        Parameter("start", "First line, counted from 1.", "integer", required=False),
        Parameter("end", "Last line, included.", "integer", required=False),
    ),
    reads_only=True,
    run=_read_file,
    file="path",
)
EDIT_FILE = Tool(
    "edit_file",
    "Replace text in a file. old must be in one place only: give whole lines, as they are, and enough of them. For "
    "several places give hunks, which are applied in order, all or none.",
    (
        _PATH,
        Parameter("old", "Text to replace.", required=False),
        Parameter("new", "Text in its place; empty removes it.", required=False),
        Parameter(
            "hunks",
            "Instead of old and new: blocks of a line <<<<<<< SEARCH, old text, a line =======, new text, and a line "
            ">>>>>>> REPLACE.",
            required=False,
        ),
        Parameter("all", "Replace every occurrence instead of the only one.", "boolean", required=False),
    ),
    reads_only=False,
    run=_edit_file,
    file="path",
)
WRITE_FILE = replace(small.WRITE_FILE, run=_write_file, file="path")
LIST_DIR = small.LIST_DIR
