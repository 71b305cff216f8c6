"""An agent that speaks ACP as a benchmark's policy: Etude stands where the editor would.

Owns `play_acp`. The task's workspace is copied into a directory of this machine, the agent is started there with the
instruction, and its final files go back into the sandbox, to be judged like any other attempt. The agent runs with the
rights of whoever runs the benchmark: it brings its own tools, its own model and its own network, and so can do whatever
they can. Every permission it asks for is given. What it says it does becomes events, under the names of our own tools
where the protocol has a kind for them; how many tokens it sampled is its own word. Talks to: environments, harness.
"""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import acp
from acp.schema import (
    AllowedOutcome,
    ClientCapabilities,
    DeniedOutcome,
    PermissionOption,
    RequestPermissionResponse,
    ToolCallUpdate,
)

from etude.bench.config import AcpPolicy
from etude.environments.archive import Archive, opened, take_out, unpack
from etude.environments.base import ARCHIVE_MAX, WORKSPACE, Sandbox
from etude.errors import EtudeError, SandboxSpoiled
from etude.harness.events import EventLog
from etude.harness.session import SessionResult
from etude.harness.state import Stop, no_counts
from etude.records import Task

_NAMES = {
    "read": "read_file", "edit": "edit_file", "delete": "edit_file", "move": "edit_file", "search": "grep",
    "execute": "run_terminal_cmd",
}  # fmt: skip
_STOPS: dict[str, Stop] = {"max_tokens": "tokens", "max_turn_requests": "turns", "cancelled": "wall"}
_END_S = 2.0
_LINE_BYTES = 1 << 26


async def play_acp(
    config: AcpPolicy, task: Task, sandbox: Sandbox, session_id: str
) -> tuple[SessionResult, float | None]:
    """The session, and what it cost by the agent's own account. Raises EtudeError where the agent does not start, ends
    before its answer, or does not keep to the protocol."""
    with tempfile.TemporaryDirectory(prefix="etude-acp-") as place:
        workspace = Path(place) / "workspace"
        workspace.mkdir()
        for _, data in (await take_out(sandbox)).parts:
            with opened(data) as tar:
                tar.extractall(workspace, filter="data")
        editor = _Editor(task.instruction, session_id)
        stop, sampled = await _prompted(config, task, workspace, editor)
        spoiled = ""
        try:
            await unpack(Archive(parts=((WORKSPACE, _packed(workspace)),)), sandbox)
        except SandboxSpoiled as error:
            spoiled = str(error)
    editor.end_message()
    editor.usage["sampled_tokens"] = sampled
    editor.log.add("end", stop=stop, usage=dict(editor.usage))
    return SessionResult(session_id, (), editor.log.events, stop, editor.usage, spoiled), editor.cost


async def _prompted(config: AcpPolicy, task: Task, workspace: Path, editor: _Editor) -> tuple[Stop, int]:
    """How it ended, and the tokens that the agent says it sampled."""
    env = {**acp.default_environment(), **{name: os.environ[name] for name in config.pass_env if name in os.environ}}
    process = None
    try:
        spawned = acp.spawn_agent_process(
            cast("acp.Client", editor), *config.command, env=env, cwd=workspace, use_unstable_protocol=True,
            transport_kwargs={"limit": _LINE_BYTES, "shutdown_timeout": _END_S, "stderr": None},
        )  # fmt: skip
        async with spawned as (connection, process):
            async with asyncio.timeout(config.start_s):
                none = ClientCapabilities()  # its files and its terminal are its own
                await connection.initialize(protocol_version=acp.PROTOCOL_VERSION, client_capabilities=none)
                session = await connection.new_session(cwd=str(workspace), mcp_servers=[])
            asked = connection.prompt(session_id=session.session_id, prompt=[acp.text_block(task.instruction)])
            try:
                async with asyncio.timeout(task.limits.wall_s):
                    answer = await asked
            except TimeoutError:
                return "wall", 0
    except (OSError, ConnectionError, TimeoutError, acp.RequestError) as error:
        ended = "" if process is None or process.returncode is None else f", and ended with {process.returncode}"
        said = str(error) or f"no answer within {config.start_s:g} s"
        raise EtudeError(f"policy.command: {config.command[0]} failed: {said}{ended}") from error
    usage = answer.usage
    return _STOPS.get(answer.stop_reason, "finished"), usage.output_tokens if usage is not None else 0


def _packed(workspace: Path) -> bytes:
    """What the agent left, if one archive takes it. Raises SandboxSpoiled where it does not."""
    buffer = io.BytesIO()
    try:
        size = sum(os.lstat(Path(top) / name).st_size for top, _, names in os.walk(workspace) for name in names)
        if size > ARCHIVE_MAX:
            raise SandboxSpoiled(f"the agent left {size >> 20} MiB; {ARCHIVE_MAX >> 20} can be judged")
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for entry in sorted(workspace.iterdir()):
                tar.add(entry, entry.name)
    except (OSError, RecursionError) as error:
        raise SandboxSpoiled(f"what the agent left cannot be read: {error}"[:2000]) from error
    return buffer.getvalue()


class _Editor:
    """Allows everything, and keeps what the agent says and does as a session's events. The rest of a client's side is
    never called, for no capability is offered."""

    def __init__(self, instruction: str, session_id: str) -> None:
        self.log = EventLog()
        self.usage = no_counts()
        self.cost: float | None = None
        self._said: list[str] = []
        self._calls: dict[str, tuple[int, int]] = {}
        """Of every call: its turn, and its place there."""
        self._open: set[str] = set()
        self._in_turn = 0
        """How many calls the turn has, which is over when they are answered and something new is said or called."""
        self.log.add("session", id=session_id)
        self.log.add("prompt", user=instruction, system="", tokens=0)

    def on_connect(self, agent: object) -> None:
        """Nothing is asked of the agent from here."""

    async def request_permission(
        self, session_id: str, tool_call: ToolCallUpdate, options: Sequence[PermissionOption], **_: Any
    ) -> RequestPermissionResponse:
        allowed = [option for option in options if option.kind.startswith("allow")]
        if not allowed:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=allowed[0].option_id))

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        match update.session_update:
            case "agent_message_chunk":
                self._speaks(getattr(update.content, "text", ""))
            case "tool_call":
                self._calls_tool(update)
                self._hears(update)
            case "tool_call_update":
                self._hears(update)
            case "usage_update":
                self.cost = update.cost.amount if update.cost is not None else self.cost

    def _speaks(self, text: str) -> None:
        if not self._said and (self._in_turn or not self.usage["turns"]):
            self._begin_turn()
        self._said.append(text)

    def _calls_tool(self, update: Any) -> None:
        if not self.usage["turns"] or (self._in_turn and not self._open):
            self._begin_turn()
        self.end_message()
        turn, index = self._calls[update.tool_call_id] = self.usage["turns"], self._in_turn
        self._open.add(update.tool_call_id)
        self._in_turn += 1
        self.usage["tool_calls"] += 1
        self.usage["parallel_turns"] += self._in_turn == 2
        given = update.raw_input if isinstance(update.raw_input, dict) else {"title": update.title}
        name = _NAMES.get(update.kind or "", update.kind or "other")
        self.log.add("tool_call", turn=turn, index=index, name=name, arguments=given)

    def _hears(self, update: Any) -> None:
        if update.status not in ("completed", "failed") or update.tool_call_id not in self._open:
            return
        self._open.discard(update.tool_call_id)
        turn, index = self._calls[update.tool_call_id]
        failed = update.status == "failed"
        self.usage["error_observations"] += failed
        self.log.add("tool_result", turn=turn, index=index, text=_text_of(update.content), error=failed, tokens=0)

    def _begin_turn(self) -> None:
        self.end_message()
        self.usage["turns"] += 1
        self._in_turn = 0

    def end_message(self) -> None:
        """What was said so far is a whole message."""
        if self._said:
            self.log.add("completion", turn=self.usage["turns"], text="".join(self._said), tokens=0)
            self._said = []


def _text_of(content: Any) -> str:
    parts = [getattr(getattr(each, "content", None), "text", None) for each in content or ()]
    return "\n".join(part for part in parts if part)
