"""What a session left undone by its own account.

Owns `unfinished`: items of its list that are neither done nor dropped, and marks in what it added that say that work is
to come. A mark that stood there before counts for nothing, wherever it stands now. Reads the log and the files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from etude.harness.tools.agent.todo import parse_todos
from etude.records import Event
from etude.rewards.quality.conventions import known
from etude.rewards.quality.style import added_lines

_MARK = re.compile(
    r"(?:#|//|/\*|--|<!--|\"\"\")\s*(?:TODO|FIXME|XXX|TBD)\b"
    r"|\braise\s+NotImplementedError\b|\bthrow\s+new\s+Error\(['\"](?:not implemented|todo)"
    r"|\b(?:todo|unimplemented)!\(",
    re.IGNORECASE,
)


def unfinished(events: Sequence[Event], before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """One line for each thing left undone. Texts by path."""
    return (*_of_list(events), *_of_files(before, after))


def _of_list(events: Sequence[Event]) -> list[str]:
    calls = {
        (event.data["turn"], event.data["index"])
        for event in events
        if event.kind == "tool_call" and event.data["name"] == "todo_write"
    }
    answers = [
        event.data["text"]
        for event in events
        if event.kind == "tool_result"
        and not event.data["error"]
        and (event.data["turn"], event.data["index"]) in calls
    ]
    last = parse_todos(answers[-1]) if answers else []
    return [f"on its list, {todo.status}: {todo.content}" for todo in last if todo.status in ("pending", "in_progress")]


def _of_files(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    found = []
    for path in sorted(after):
        if after[path] == before.get(path) or not known(path):
            continue
        lines, added = after[path].split("\n"), added_lines(before.get(path, ""), after[path])
        found += [f"{path}:{number}: {lines[number - 1].strip()[:100]}" for number in sorted(added)
                  if _MARK.search(lines[number - 1])]  # fmt: skip
    return found
