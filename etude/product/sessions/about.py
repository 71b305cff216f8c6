"""What the log of a session says of it as a whole, whoever has it open.

Owns `about` and `model_of`. Reads the file and nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from etude.harness.events import decoded
from etude.harness.rewind import Rewind


def about(log: Path) -> dict[str, Any]:
    """{"id", "directory", "began", "model", "parent", "lines", "prompts", "stop", "usage", "redoable"}.

    `stop` is how the last prompt ended, and null where none has, or it was cut short; `usage` is as it was then."""
    events = [event for event, _ in decoded(log)]
    prompts: list[str] = []
    rewind = Rewind(events)
    about: dict[str, Any] = {"stop": None, "usage": {}}
    for line, event in enumerate(events):
        if not rewind.is_current(line):
            continue
        if event.kind == "prompt":
            prompts.append(event.data["user"])
            about["stop"] = None
        elif event.kind == "end":
            about |= {"stop": event.data["stop"], "usage": event.data["usage"]}
    first = events[0].data if events else {}
    return {
        "id": log.parent.name, "directory": first.get("workspace"), "began": first.get("time"), "model": _model(events),
        "parent": first.get("parent"), "lines": len(events), "prompts": prompts, **about,
        "redoable": rewind.redoable is not None,
    }  # fmt: skip


def model_of(log: Path) -> str:
    """The model that was asked last; empty where the log names none."""
    return _model(event for event, _ in decoded(log))


def _model(events: Any) -> str:
    named = [event.data.get("model", "") for event in events if event.kind in ("session", "model")]
    return named[-1] if named else ""
