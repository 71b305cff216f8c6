"""What a tool call looks like in an editor: a title, a kind, the places it is about, and what it changes.

Owns how each tool is shown. Pure but for reading the files an edit is about, which lie on this machine. What an edit
will change is told from its arguments before it runs, and from the file afterwards. Decides nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from acp.helpers import plan_entry, text_block, tool_content, tool_diff_content
from acp.schema import (
    AgentPlanUpdate,
    ContentToolCallContent,
    FileEditToolCallContent,
    TerminalToolCallContent,
    ToolCallLocation,
    ToolKind,
)

from etude.harness.edits import parse_hunks
from etude.harness.tools.agent.todo import parse_todos
from etude.harness.tools.base import relative
from etude.product.files import on_this_machine, text_of

Content = ContentToolCallContent | FileEditToolCallContent | TerminalToolCallContent

KINDS: Mapping[str, ToolKind] = {
    "read_file": "read",
    "list_dir": "read",
    "read_lints": "read",
    "grep": "search",
    "glob": "search",
    "codebase_search": "search",
    "edit_file": "edit",
    "write_file": "edit",
    "run_terminal_cmd": "execute",
}
PLAN = "todo_write"
"""The tool whose calls are shown as the plan, and not as calls."""
EDITS, COMMAND = ("edit_file", "write_file"), "run_terminal_cmd"
MAX_SHOWN_BYTES = 500_000
"""Largest file that is shown whole, as it was and as it is; of others only what the arguments say."""
_TITLE = 200
_EDITED = re.compile(r"ok, lines? (\d+)")
_EXIT = re.compile(r"\[exit (\d+)\]\Z")


def kind_of(name: str) -> ToolKind:
    return KINDS.get(name, "other")


def title_of(name: str, arguments: Mapping[str, Any]) -> str:
    """One line of Markdown."""
    said = {key: str(value) for key, value in arguments.items()}
    path = _code(relative(said["path"])) if said.get("path") else ""
    match name:
        case "read_file":
            lines = f" from line {said['start']}" if "start" in said else ""
            return f"Read {path}{lines}{' to ' + said['end'] if 'end' in said else ''}"
        case "list_dir":
            return f"List {path or 'the workspace'}"
        case "edit_file":
            return f"Edit {path}"
        case "write_file":
            return f"Write {path}"
        case "grep" | "glob" | "codebase_search":
            what = _code(said.get("pattern") or said.get("query", ""))
            return f"{'Find' if name == 'glob' else 'Search for'} {what}{f' in {path}' if path else ''}"
        case "read_lints":
            return f"Read the linters' findings{f' in {path}' if path else ''}"
        case "run_terminal_cmd" if "id" in said:
            return f"{'Stop' if arguments.get('stop') else 'Look at'} background command {said['id']}"
        case "run_terminal_cmd":
            return _code(said.get("command", ""))
        case _ if name.startswith("mcp__"):
            server, _, tool = name.removeprefix("mcp__").partition("__")
            return f"{tool or server} ({server})"
    return "A call that cannot be read" if name == "malformed" else name


def locations_of(directory: Path, arguments: Mapping[str, Any], result: str = "") -> list[ToolCallLocation]:
    """The files a call is about, with the line where it looks or, once there is a result, has changed something."""
    given = arguments.get("paths") or arguments.get("path") or []
    line = arguments.get("start")
    if edited := _EDITED.match(result):
        line = int(edited[1])
    line = max(line, 0) if isinstance(line, int) else None
    return [
        ToolCallLocation(path=clean(str(on_this_machine(directory, str(path)))), line=line)
        for path in (given if isinstance(given, list) else [given])
    ]


def will_change(directory: Path, name: str, arguments: Mapping[str, Any], *, live: bool) -> list[Content]:
    """What an edit is about to do, from its arguments. `live`: the file is as it will be found."""
    path = on_this_machine(directory, str(arguments.get("path", "")))
    if name == "write_file":
        old = text_of(directory, path, MAX_SHOWN_BYTES) if live else None
        return [tool_diff_content(clean(str(path)), clean(str(arguments.get("content", ""))), old)]
    if (hunks := arguments.get("hunks")) is None:
        pairs = [(str(arguments.get("old", "")), str(arguments.get("new", "")))]
    else:
        try:
            pairs = [(edit.old, edit.new) for edit in parse_hunks(str(hunks))]
        except ValueError:
            return []  # the call will be answered with why
    return [tool_diff_content(clean(str(path)), clean(new), clean(old)) for old, new in pairs]


def has_changed(path: Path, before: str | None, after: str | None) -> list[Content] | None:
    """What an edit has done; None where that cannot be shown. `before` None: there was no such file."""
    if after is None or before == after:
        return None
    return [tool_diff_content(clean(str(path)), after, before)]


def exit_code_of(result: str) -> int | None:
    """Of a command, from what the model is told; None of one that runs on."""
    if found := _EXIT.search(result):
        return int(found[1])
    return None if "[still running" in result[-300:] else 0


def output(text: str) -> list[Content]:
    """Text as it stands, whatever Markdown would make of it."""
    text = clean(text)
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return [tool_content(text_block(f"{fence}\n{text}\n{fence}"))]


def words(text: str) -> list[Content]:
    """Text as Markdown."""
    return [tool_content(text_block(clean(text)))]


def plan_of(todos: str) -> AgentPlanUpdate:
    """The list that todo_write answered with. The protocol has no word for what was given up: it is left out."""
    entries = [
        plan_entry(clean(todo.content), status=todo.status) for todo in parse_todos(todos) if todo.status != "cancelled"
    ]
    return AgentPlanUpdate(session_update="plan", entries=entries)


def clean(text: str) -> str:
    """Text that can be sent: a lone surrogate is no text."""
    return text.encode("utf-8", "replace").decode()


def clean_json(value: Any) -> Any:
    """The same for what JSON can hold."""
    return json.loads(clean(json.dumps(value, ensure_ascii=False)))


def shortened(text: str, most: int = _TITLE) -> str:
    """One line of it."""
    line = " ".join(clean(text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _code(text: str) -> str:
    line = shortened(text)
    fence = "``" if "`" in line else "`"
    return f"{fence}{line}{fence}"
