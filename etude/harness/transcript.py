"""A session as text that reads from top to bottom: what the agent itself is given of contexts that are over.

Owns `transcript`, a projection of events. Written for a model with `grep` and line ranges: every message begins with
a line of its own that starts with `##`. Keeps all that was said; commands' outputs are as long as the model saw them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from etude.records import Event


def transcript(events: Iterable[Event]) -> str:
    """One block a message, in order."""
    return "\n".join(block for event in events if (block := _block(event.kind, event.data)))


def _block(kind: str, data: Any) -> str:
    match kind:
        case "prompt":
            return f"## user\n{data['user']}\n"
        case "completion":
            return f"## turn {data['turn']}\n{data['text'].strip()}\n"
        case "tool_result":
            return f"## result of {data['name']}, turn {data['turn']}\n{data['text'].rstrip()}\n"
        case "summary":
            return f"## summary {data['number']}\n{data['text']}\n"
        case _:
            return ""
