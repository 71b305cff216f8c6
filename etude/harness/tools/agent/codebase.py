"""The agent's codebase_search: a question in words, answered with the stretches of code it is about.

Owns the tool. The form of its answer is `search.answer`'s, and the index behind it `indexed`'s: a cache and nothing
else, without which the answer is the same, only later.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from etude.environments.base import WORKSPACE, Sandbox
from etude.harness.schema import Parameter
from etude.harness.tools.agent.indexed import index_of
from etude.harness.tools.base import Tool, ToolConfig, ToolError, absolute, relative
from etude.search.answer import BUDGET_BYTES, FORM, answer
from etude.search.content import MOST_BYTES, lines_of, text_of


async def _codebase_search(sandbox: Sandbox, config: ToolConfig, arguments: Mapping[str, Any]) -> str:
    query = arguments["query"]
    if not query.strip():
        raise ToolError("the query is blank")
    path = arguments.get("path") or "."
    under = "" if relative(path) == "." else relative(path)
    found = await index_of(sandbox).search(sandbox, config, query, FORM.pieces, under)
    note = f"\n[{found.too_long} files here are too long for this search; grep reads them]" if found.too_long else ""
    if not found.hits:
        await _check_there(sandbox, config, path)
        return f"nothing found; try other words, or grep for a name{note}"
    files = {path: await _lines(sandbox, path) for path in dict.fromkeys(hit.path for hit in found.hits)}
    budget = min(BUDGET_BYTES, config.max_observation_bytes) - len(note)
    return answer(query, found.hits, files.__getitem__, budget) + note


async def _check_there(sandbox: Sandbox, config: ToolConfig, path: str) -> None:
    done = await sandbox.exec(
        f"[ -e {shlex.quote(absolute(path))} ]", timeout_s=config.command_timeout_s, max_output_bytes=1000
    )
    if done.exit_code == 1:
        raise ToolError(f"no such file or directory: {path}")


async def _lines(sandbox: Sandbox, path: str) -> list[str]:
    """None of what is gone meanwhile."""
    try:
        return lines_of(text_of(await sandbox.read_file(f"{WORKSPACE}/{path}", MOST_BYTES)) or "")
    except OSError:
        return []


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
