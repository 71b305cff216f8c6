"""The agent's grep and glob.

Owns what is asked of ripgrep, or where there is none of GNU grep with Perl's expressions, which reads the same
patterns; and the answer, which is the same from both: the same files are searched, and the matches sorted by path.
Where an index is warm, files that cannot match are left out.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from etude.environments.base import ExecResult, Sandbox
from etude.harness.schema import Parameter
from etude.harness.tools.agent.indexed import index_of
from etude.harness.tools.agent.kept import OUTDATED
from etude.harness.tools.agent.listing import files, listing, naming
from etude.harness.tools.base import Tool, ToolConfig, ToolError, cut_lines, overdue
from etude.search.patterns import selective

_MAX_OUTPUT_BYTES = 400_000
_MAX_LINE_CHARS = 240
_TRIES = 2
_MATCH = re.compile(r"(?P<path>[^\0]+)\0(?P<line>\d+)(?P<sign>[:-])(?P<text>.*)")


async def _grep(sandbox: Sandbox, config: ToolConfig, arguments: Mapping[str, Any]) -> str:
    path = arguments.get("path") or "."
    done = await _searched(sandbox, config, path, arguments)
    if done.timed_out:
        overdue()
        raise ToolError(f"no answer in {config.command_timeout_s:g} s; search in a smaller path")
    if done.exit_code == 3:
        raise ToolError(f"no such file or directory: {path}")
    output = done.output.decode("utf-8", "replace").split("\n")
    found = [match for line in output if (match := _MATCH.fullmatch(line.rstrip("\r")))]
    if not found:
        said = [line for line in output if line.strip() and "binary file" not in line.lower()]
        if said:  # ripgrep quotes the pattern first and says what is wrong with it last
            raise ToolError(re.sub(r"^(grep|rg|error): ", "", said[-1] if said[0].startswith("rg: ") else said[0]))
        return "no matches"
    found.sort(key=lambda match: (match["path"], int(match["line"])))
    context = bool(arguments.get("context"))
    return _answer(_rows(found, context), config, "many" if done.log_path else "")


def _command(path: str, arguments: Mapping[str, Any]) -> str:
    return f"{listing(path, arguments.get('glob'))} | {_matching(arguments)}"


def _matching(arguments: Mapping[str, Any]) -> str:
    """Shell that searches the files it is told of."""
    options = " -i" if arguments.get("ignore_case") else ""
    if context := max(min(arguments.get("context", 0), 20), 0):
        options += f" -C {context}"
    ask = f"{options} -e {shlex.quote(arguments['pattern'])} --"
    rg = f"rg --no-config -nH0 --no-heading --no-messages --color=never{ask}"
    grep = f"grep -nIHsP --null --directories=skip --color=never{ask}"
    return f"if command -v rg >/dev/null; then xargs -0r {rg}; else LC_ALL=C.UTF-8 xargs -0r {grep}; fi"


async def _searched(sandbox: Sandbox, config: ToolConfig, path: str, arguments: Mapping[str, Any]) -> ExecResult:
    """What a search of all files prints. Where an index is warm, those are left out that cannot match: the searcher is
    the same and sees the others in the same order."""
    for _ in range(_TRIES):
        command, env = await _narrowed(sandbox, config, path, arguments) or ("", {})
        if not command:
            break
        done = await sandbox.exec(
            command, timeout_s=config.command_timeout_s, env=env, max_output_bytes=_MAX_OUTPUT_BYTES
        )
        if done.exit_code != OUTDATED:
            return done
        await index_of(sandbox).outdated()
    command = _command(path, arguments)
    return await sandbox.exec(command, timeout_s=config.command_timeout_s, max_output_bytes=_MAX_OUTPUT_BYTES)


async def _narrowed(
    sandbox: Sandbox, config: ToolConfig, path: str, arguments: Mapping[str, Any]
) -> tuple[str, dict[str, str]] | None:
    """Shell, with its environment, that searches those files alone that an index says may match; None where there is no
    warm one, or they are most."""
    indexed, pattern, ignore_case = index_of(sandbox), arguments["pattern"], bool(arguments.get("ignore_case"))
    if not indexed.on_disk or not selective(pattern, ignore_case):
        return None
    narrowed = await indexed.narrowed(sandbox, config, pattern, ignore_case, path, arguments.get("glob"))
    if narrowed is None:
        return None
    told = naming([*narrowed.paths, os.devnull])  # an expression may be wrong where no file could match it
    if told is None:
        return None
    prints, env = told
    return f"{narrowed.check}; {{ {prints}; }} | {{ unset {' '.join(env)}; {_matching(arguments)}; }}", env


def _rows(found: Sequence[re.Match[str]], context: bool) -> list[str]:
    """`path:line:text`; with context, lines around with `-`, and `--` where some are left out."""
    rows: list[str] = []
    last = ("", 0)
    for match in found:
        here = (match["path"], int(match["line"]))
        if context and rows and here != (last[0], last[1] + 1):
            rows.append("--")
        sign = match["sign"]
        rows.append(f"{match['path']}{sign}{match['line']}{sign}{match['text']}"[:_MAX_LINE_CHARS])
        last = here
    return rows


def _answer(rows: list[str], config: ToolConfig, more: str = "") -> str:
    fits = cut_lines(rows, config.max_observation_bytes)
    if fits < len(rows) or more:
        rows = [*rows[:fits], f"[{more or len(rows) - fits} more; narrow the pattern or the path]"]
    return "\n".join(rows)


async def _glob(sandbox: Sandbox, config: ToolConfig, arguments: Mapping[str, Any]) -> str:
    if not arguments["pattern"].strip():
        raise ToolError("the pattern is blank")
    found = await files(sandbox, config, arguments.get("path") or ".", arguments["pattern"])
    return _answer(found, config) if found else "no files"


_WHERE = Parameter("path", "File or directory to search in; the workspace if not given.", required=False)
GREP = Tool(
    "grep",
    "Find the lines that match a regular expression, in all files that git does not ignore.",
    (
        Parameter("pattern", "Regular expression, as ripgrep reads it."),
        _WHERE,
        Parameter("glob", "Only files whose path matches, as *.py or src/**/*.ts.", required=False),
        Parameter("ignore_case", "Take small and capital letters for the same.", "boolean", required=False),
        Parameter("context", "How many lines to show around each match.", "integer", required=False),
    ),
    reads_only=True,
    run=_grep,
)
GLOB = Tool(
    "glob",
    "List the files whose path matches a pattern, of those that git does not ignore.",
    (
        Parameter("pattern", "As *.py, **/test_*.py or src/**/*.{ts,tsx}; without a slash it is for file names."),
        Parameter("path", "Directory to look in; the workspace if not given.", required=False),
    ),
    reads_only=True,
    run=_glob,
)
