"""The agent's todo_write: its own list of what is to do, written whole each time.

Owns the form of a list and its checks. Keeps nothing: the answer is the list, so the last answer in a session's log
is its state, for the summary, the faces and the reward that asks whether everything was done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from etude.environments.base import Sandbox
from etude.harness.schema import Parameter
from etude.harness.tools.base import Tool, ToolConfig, ToolError

Status = Literal["pending", "in_progress", "completed", "cancelled"]
_SIGNS: Mapping[Status, str] = {"pending": "[ ]", "in_progress": "[>]", "completed": "[x]", "cancelled": "[-]"}
_MAX_TODOS = 100
_ITEM: Mapping[str, Any] = {
    "type": "object",
    "properties": {"content": {"type": "string"}, "status": {"type": "string", "enum": list(get_args(Status))}},
    "required": ["content", "status"],
}


@dataclass(frozen=True)
class Todo:
    content: str
    status: Status


def read_todos(items: list[Any]) -> list[Todo]:
    """A call's list, checked. Raises ToolError naming the item that is wrong."""
    if len(items) > _MAX_TODOS:
        raise ToolError(f"{len(items)} items are too many; keep it below {_MAX_TODOS}")
    todos = []
    for number, item in enumerate(items, 1):
        if isinstance(item, str):
            item = {"content": item}
        content = item.get("content") if isinstance(item, dict) else None
        if not isinstance(content, str) or not content.strip():
            raise ToolError(f'item {number} has no content; write [{{"content": "…", "status": "pending"}}, …]')
        status = item.get("status", "pending")
        if status not in get_args(Status):
            raise ToolError(f"item {number} has status {status!r}; it is one of {', '.join(get_args(Status))}")
        todos.append(Todo(" ".join(content.split()), status))
    return todos


def render_todos(todos: list[Todo]) -> str:
    """One line each, as the model reads them."""
    return "\n".join(f"{_SIGNS[todo.status]} {todo.content}" for todo in todos) or "[nothing to do]"


def parse_todos(text: str) -> list[Todo]:
    """The inverse of `render_todos`: the list that an answer in a log holds."""
    statuses = {sign: status for status, sign in _SIGNS.items()}
    return [Todo(line[4:], statuses[line[:3]]) for line in text.split("\n") if line[:3] in statuses]


async def _todo_write(sandbox: Sandbox, config: ToolConfig, arguments: Mapping[str, Any]) -> str:
    return render_todos(read_todos(arguments["todos"]))


TODO_WRITE = Tool(
    "todo_write",
    "Write your list of what is to do, whole, in place of the one before. For work of several steps; keep one item "
    "in_progress, and mark each completed as soon as it is.",
    (
        Parameter(
            "todos",
            'A JSON list: [{"content": "…", "status": "pending|in_progress|completed"}, …].',
            "array",
            items=_ITEM,
        ),
    ),
    reads_only=True,
    run=_todo_write,
)
