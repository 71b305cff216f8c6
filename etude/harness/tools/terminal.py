"""run_terminal_cmd: a shell command, its output, and how it ended.

Owns the environment commands see: nothing may wait for a person, page, colour or prompt. Input is closed, and a
command that overstays is killed with its whole process group, by the sandbox. A command that fails is not an error of
the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etude.environments.base import Sandbox
from etude.harness.schema import Parameter
from etude.harness.tools.base import Tool, ToolConfig, ToolError, overdue

QUIET_ENV: Mapping[str, str] = {
    "CI": "1",
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
    # Python trusts a cached module whose source has the same size and second: after a quick edit that is the old code.
    "PYTHONDONTWRITEBYTECODE": "1",
}
_ROOM_FOR_ENDING = 60


async def _run_terminal_cmd(sandbox: Sandbox, config: ToolConfig, arguments: Mapping[str, Any]) -> str:
    if not arguments["command"].strip():
        raise ToolError("the command is blank")
    done = await sandbox.exec(
        arguments["command"],
        timeout_s=config.command_timeout_s,
        env=QUIET_ENV,
        max_output_bytes=config.max_observation_bytes - _ROOM_FOR_ENDING,
    )
    output = done.output.decode("utf-8", "replace").rstrip("\n")
    if done.timed_out:
        overdue()
        ending = f"[stopped after {config.command_timeout_s:g} s]"
    elif done.exit_code:
        ending = f"[exit {done.exit_code}]"
    else:
        return output
    return f"{output}\n{ending}" if output else ending


RUN_TERMINAL_CMD = Tool(
    "run_terminal_cmd",
    "Run a shell command in /workspace and wait for it to end.",
    (Parameter("command", "The command, for sh."),),
    reads_only=False,
    run=_run_terminal_cmd,
)
