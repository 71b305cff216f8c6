"""The agent's codebase_search: a question in words, answered with the stretches of code it is about.

Owns the index of each sandbox: made at the first question, brought up to date at every other from the files that have
changed since. It is a cache and nothing else: without it the answer is the same, only later. How it ranks is the
business of `etude.search`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from etude.environments.base import WORKSPACE, Sandbox
from etude.harness.schema import Parameter
from etude.harness.tools.agent.listing import listing
from etude.harness.tools.agent.text import decode
from etude.harness.tools.base import Tool, ToolConfig, ToolError, cut_lines, overdue, relative
from etude.search import CodeIndex, Hit, LexicalIndex

_HITS = 8
_SHOWN_LINES = 30
_MAX_FILE_BYTES = 200_000
_MAX_FILES = 20_000
_AT_ONCE = 16
_LISTING_BYTES = 8_000_000
_NOT_CODE = re.compile(r"(^|/)(package-lock\.json|[^/]*\.lock|[^/]*\.min\.(js|css)|[^/]*\.(svg|map|csv|ipynb))$")


@dataclass
class _Indexed:
    index: CodeIndex = field(default_factory=LexicalIndex)
    seen: dict[str, str] = field(default_factory=dict)
    """For each file size and time of its last change, when it was taken in."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


_INDEXES: WeakKeyDictionary[Sandbox, _Indexed] = WeakKeyDictionary()


async def _codebase_search(sandbox: Sandbox, config: ToolConfig, arguments: Mapping[str, Any]) -> str:
    if not arguments["query"].strip():
        raise ToolError("the query is blank")
    indexed = _INDEXES.setdefault(sandbox, _Indexed())
    async with indexed.lock:
        await _update(sandbox, config, indexed)
        under = relative(arguments.get("path") or ".")
        hits = indexed.index.search(arguments["query"], _HITS, "" if under == "." else under)
    if not hits:
        return "nothing found; try other words, or grep for a name"
    rows = [row for hit in hits for row in _rows(hit)]
    return "\n".join(rows[: cut_lines(rows, config.max_observation_bytes)]).rstrip("\n")


def _rows(hit: Hit) -> list[str]:
    lines = hit.text.split("\n")
    more = [f"[{len(lines) - _SHOWN_LINES} more lines]"] if len(lines) > _SHOWN_LINES else []
    return [f"{hit.path}:{hit.first}-{hit.last}", *lines[:_SHOWN_LINES], *more, ""]


async def _update(sandbox: Sandbox, config: ToolConfig, indexed: _Indexed) -> None:
    now = await _stamps(sandbox, config)
    for path in indexed.seen.keys() - now.keys():
        indexed.index.drop(path)
        del indexed.seen[path]
    changed = [path for path, stamp in now.items() if indexed.seen.get(path) != stamp]
    some = asyncio.Semaphore(_AT_ONCE)

    async def text_of(path: str) -> str | None:
        async with some:
            try:
                return decode(await sandbox.read_file(f"{WORKSPACE}/{path}", _MAX_FILE_BYTES), path).text
            except (OSError, ToolError):
                return None  # gone meanwhile, grown too long, or no text

    texts = await asyncio.gather(*map(text_of, changed))
    for path, text in zip(changed, texts, strict=True):
        indexed.index.drop(path)
        if text is not None:
            indexed.index.put(path, text)
        indexed.seen[path] = now[path]


async def _stamps(sandbox: Sandbox, config: ToolConfig) -> dict[str, str]:
    """Size and time of each file worth indexing."""
    command = f"{listing('.')} | xargs -0r stat --printf '%s %.9Y %n\\0' -- 2>/dev/null"
    done = await sandbox.exec(command, timeout_s=config.command_timeout_s, max_output_bytes=_LISTING_BYTES)
    if done.timed_out:
        overdue()
    if done.timed_out or done.log_path:
        raise ToolError("there are too many files here to be indexed; use grep")
    stamps: dict[str, str] = {}
    for entry in done.output.decode("utf-8", "surrogateescape").split("\0"):
        size, _, rest = entry.partition(" ")
        time, _, path = rest.partition(" ")
        if path and int(size) <= _MAX_FILE_BYTES and not _NOT_CODE.search(path):
            stamps[path] = f"{size} {time}"
        if len(stamps) >= _MAX_FILES:
            break
    return stamps


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
