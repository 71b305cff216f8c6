"""The agent's codebase_search: a question in words, answered with the stretches of code it is about.

Owns the form of the answer. The index behind it is `indexed`'s: a cache and nothing else, without which the answer is
the same, only later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etude.environments.base import WORKSPACE, Sandbox
from etude.harness.schema import Parameter
from etude.harness.tools.agent.indexed import index_of
from etude.harness.tools.base import Tool, ToolConfig, ToolError, cut_lines, relative
from etude.search import Hit
from etude.search.content import MAX_BYTES, lines_of, text_of

_HITS = 8
_SHOWN_LINES = 30


async def _codebase_search(sandbox: Sandbox, config: ToolConfig, arguments: Mapping[str, Any]) -> str:
    if not arguments["query"].strip():
        raise ToolError("the query is blank")
    under = relative(arguments.get("path") or ".")
    hits = await index_of(sandbox).search(sandbox, config, arguments["query"], _HITS, "" if under == "." else under)
    if not hits:
        return "nothing found; try other words, or grep for a name"
    texts = {path: await _lines(sandbox, path) for path in dict.fromkeys(hit.path for hit in hits)}
    rows = [row for hit in hits for row in _rows(hit, texts[hit.path])]
    return "\n".join(rows[: cut_lines(rows, config.max_observation_bytes)]).rstrip("\n")


async def _lines(sandbox: Sandbox, path: str) -> list[str]:
    """None of what is gone meanwhile."""
    try:
        return lines_of(text_of(await sandbox.read_file(f"{WORKSPACE}/{path}", MAX_BYTES)) or "")
    except OSError:
        return []


def _rows(hit: Hit, file: list[str]) -> list[str]:
    lines = file[hit.first - 1 : hit.last]
    more = [f"[{len(lines) - _SHOWN_LINES} more lines]"] if len(lines) > _SHOWN_LINES else []
    return [f"{hit.path}:{hit.first}-{hit.last}", *lines[:_SHOWN_LINES], *more, ""]


CODEBASE_SEARCH = Tool(
    "codebase_search",
    "Find the code a question is about: describe it in words. For an exact name, grep is better.",
    (
        Parameter("query", "What you look for, in words."),
        Parameter("path", "Directory to search in; the workspace if not given.", required=False),
    ),
    reads_only=True,
    run=_codebase_search,
)
