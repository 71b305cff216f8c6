"""Commands of the user's own that run before or after a tool's call, and at a session's end.

Owns `HookConfig` and `Hooks`. They are named in the user's agent.toml and nowhere else: nothing that lies in a
repository is ever taken for one. One rule for all: a hook that ends with 0 has nothing to say; one that ends otherwise,
or takes too long, is listened to. Before a call that refuses it, after a call what the hook printed stands behind the
result, and at the end the user is told.

A hook runs outside the sandbox, as the user. So it starts in the home directory and not in the workspace, where `npx`
or `python -m` would run what the repository holds; it is told of the call on stdin, as one JSON object in the words of
`etude agent --output-format stream-json`, and by variables: ETUDE_WORKSPACE, and ETUDE_FILE where the call is about one
file of the workspace. Stands within redaction (`harness.secrets`), so no secret that it prints reaches a model.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import structlog
from pydantic import Field

from etude.config import Config
from etude.environments.base import Sandbox
from etude.errors import ConfigError
from etude.harness.tools.base import Tool, ToolConfig, ToolError
from etude.plain import plain_line
from etude.product.files import on_this_machine

_log = structlog.get_logger()
_MOST_SAID = 8000
"""Bytes of what a hook printed that are told on."""


class HookConfig(Config):
    """One hook."""

    on: Literal["before_tool", "after_tool", "session_end"]
    """`after_tool`: after a call that could be done. `session_end`: where a session that was given a prompt is left."""
    run: str = Field(min_length=1)
    """A line for /bin/sh."""
    tools: tuple[str, ...] = ()
    """Of these tools only; empty: of all."""
    timeout_s: float = Field(60.0, gt=0)
    """How long it is waited for; then it is stopped, and counts as one that ended with a failure."""

    def idle(self) -> dict[str, str]:
        return {"tools": "at a session's end"} if self.on == "session_end" else {}


class Hooks:
    """Those of one session."""

    def __init__(self, configs: Sequence[HookConfig], session_id: str, directory: Path) -> None:
        self._configs, self._directory = configs, directory
        self._about = {"session_id": session_id, "cwd": str(directory)}
        self.counts: Counter[str] = Counter()
        """How often each was run."""

    def check(self, known: Mapping[str, Tool]) -> None:
        """Raises ConfigError for a hook on a tool that there is not: a guard must not be off by a slip of the pen."""
        for config in self._configs:
            if gone := [name for name in config.tools if name not in known and not name.startswith("mcp__")]:
                raise ConfigError(f"hooks: there is no tool {gone[0]!r}; there are {', '.join(known)}")

    def guard(self, tools: Mapping[str, Tool]) -> dict[str, Tool]:
        """The same tools, with the hooks before and after each."""
        return {
            name: replace(tool, run=self._guarded(tool)) if self._of(name) else tool for name, tool in tools.items()
        }

    async def end(self, stop: str | None) -> None:
        """The session is left, its last prompt having ended so; None where it was cut short."""
        for config in self._configs:
            if config.on == "session_end" and (said := await self._run(config, {"stop": stop})) is not None:
                _log.warning("a hook failed", hook=config.run, said=plain_line(said))

    def _of(self, tool: str) -> list[HookConfig]:
        return [each for each in self._configs if each.on != "session_end" and tool in (each.tools or (tool,))]

    def _guarded(self, tool: Tool) -> Callable[[Sandbox, ToolConfig, Mapping[str, Any]], Awaitable[str]]:
        hooks = self._of(tool.name)

        async def run(sandbox: Sandbox, config: ToolConfig, arguments: Mapping[str, Any]) -> str:
            about = {"tool_name": tool.name, "parameters": dict(arguments)}
            file = self._file(arguments.get(tool.file)) if tool.file else None
            for hook in hooks:
                if hook.on == "before_tool" and (said := await self._run(hook, about, file)) is not None:
                    raise ToolError(f"not done: a check that the user has set up refuses this call: {said}")
            text = await tool.run(sandbox, config, arguments)
            for hook in hooks:
                if hook.on == "after_tool":
                    said = await self._run(hook, {**about, "output": text}, file)
                    text += "" if said is None else f"\n[a check that the user has set up says: {said}]"
            return text

        return run

    def _file(self, path: Any) -> Path | None:
        """A file of the workspace as the user's programs find it; None where a link leads out of it."""
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            real = on_this_machine(self._directory, str(path)).resolve()
            return real if real.is_relative_to(self._directory) else None
        return None

    async def _run(self, hook: HookConfig, about: Mapping[str, Any], file: Path | None = None) -> str | None:
        """What it has to say; None from one that ended with 0."""
        self.counts[hook.run] += 1
        env = {**os.environ, "ETUDE_WORKSPACE": str(self._directory)}
        env |= {"ETUDE_FILE": str(file)} if file is not None else {}
        # files and no pipes: what a hook leaves running would hold those open
        with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as said:
            told.write(json.dumps({"event": hook.on, **self._about, **about}).encode() + b"\n")
            told.seek(0)
            process = await asyncio.create_subprocess_exec(
                "/bin/sh", "-c", hook.run, stdin=told, stdout=said, stderr=said, cwd=Path.home(), env=env,
                start_new_session=True,
            )  # fmt: skip
            late = ""
            try:
                async with asyncio.timeout(hook.timeout_s):
                    await process.wait()
            except TimeoutError:
                late = f"stopped after {hook.timeout_s:g} s. "
            finally:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()
            if not process.returncode:
                return None
            said.seek(0)
            words = said.read(_MOST_SAID).decode("utf-8", "replace").strip()
            return late + (words or f"`{hook.run}` ended with {process.returncode}")
