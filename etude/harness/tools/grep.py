"""grep: lines that match an extended regular expression.

Owns the command line and its answer, `path:line:text` sorted by path. It is always GNU grep, in training and in the
product: another searcher where one happens to be installed would answer with other lines, from another dialect of
expressions.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from etude.environments.base import Sandbox
from etude.harness.schema import Parameter
from etude.harness.tools.base import Tool, ToolConfig, ToolError, cut_lines, overdue, relative

_GREP = "grep -rnIEH --null --color=never --exclude-dir=.git"
_MAX_OUTPUT_BYTES = 400_000
_MAX_LINE_CHARS = 240


async def _grep(sandbox: Sandbox, config: ToolConfig, arguments: Mapping[str, Any]) -> str:
    path = relative(arguments.get("path", "."))
    where = "" if path == "." else f" -- {shlex.quote(path)}"
    command = f"{_GREP} -e {shlex.quote(arguments['pattern'])}{where}"
    done = await sandbox.exec(command, timeout_s=config.command_timeout_s, max_output_bytes=_MAX_OUTPUT_BYTES)
    if done.timed_out:
        overdue()
        raise ToolError(f"no answer in {config.command_timeout_s:g} s; search in a smaller path")
    output = done.output.decode("utf-8", "replace")
    found = sorted((line for line in output.split("\n") if "\0" in line), key=lambda line: line.partition("\0")[0])
    if not found:
        if done.exit_code == 1:
            return "no matches"
        raise ToolError(output.strip().split("\n")[0].removeprefix("grep: ") or f"grep ended with {done.exit_code}")
    lines = [line.replace("\0", ":", 1)[:_MAX_LINE_CHARS].rstrip("\r") for line in found]
    fits = cut_lines(lines, config.max_observation_bytes)
    if fits < len(lines) or done.log_path:
        more = "many" if done.log_path else str(len(lines) - fits)
        lines = [*lines[:fits], f"[{more} more; narrow the pattern or the path]"]
    return "\n".join(lines)


GREP = Tool(
    "grep",
    "Find the lines that match an extended regular expression.",
    (
        Parameter("pattern", "Extended regular expression (grep -E)."),
        Parameter("path", "File or directory to search in; the workspace if not given.", required=False),
    ),
    reads_only=True,
    run=_grep,
)
