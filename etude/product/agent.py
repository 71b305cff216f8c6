"""An agent at work in a user's directory: everything a session needs, put together and taken apart again.

Owns `open_agent`, which every face opens its sessions by: the terminal, an editor, headless. The session is the very
one of training; what the product adds stands around it: the OS sandbox over the user's own directory, permissions and
redaction before the tools, MCP servers beside them, snapshots, the project's rules in the system prompt, and a log that
outlives the process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from etude.environments.local import WorkspaceConfig, open_workspace
from etude.errors import ConfigError
from etude.harness.endpoint import Delta, Endpoint
from etude.harness.endpoint.dialogue import EndpointDialogue
from etude.harness.events import EventLog
from etude.harness.mcp import McpTools
from etude.harness.permissions.gate import Ask, Gate
from etude.harness.permissions.judge import Judge
from etude.harness.permissions.paths import Place
from etude.harness.permissions.rules import PermissionConfig
from etude.harness.permissions.store import load_permissions
from etude.harness.permissions.unreadable import unreadable
from etude.harness.prompt import PERSONA
from etude.harness.rules import read_rules
from etude.harness.secrets import Redactor, SecretGuard, known_secrets, without_secrets
from etude.harness.session import Session
from etude.harness.store import SessionStore
from etude.product.config import AgentConfig
from etude.records import Event

_log = structlog.get_logger()


@dataclass(frozen=True)
class Agent:
    """An open session, and what it cost."""

    id: str
    session: Session
    endpoint: Endpoint
    gate: Gate


def _quiet(_: object) -> None:
    """For who does not listen."""


@contextlib.asynccontextmanager
async def open_agent(
    config: AgentConfig,
    directory: Path,
    store: SessionStore,
    session_id: str | None = None,
    *,
    on_event: Callable[[Event], None] = _quiet,
    on_delta: Callable[[Delta], None] = _quiet,
    ask: Ask | None = None,
    allow: Sequence[str] = (),
) -> AsyncGenerator[Agent]:
    """A new session in `directory`, or one of the store's. `allow` are rules for this process; without `ask` nobody is
    there to be asked, and what would need it is refused."""
    directory = directory.resolve()
    if session_id is not None and (there := store.workspace(session_id)) != directory:
        raise ConfigError(f"session {session_id} works in {there}, not in {directory}; go on with it there")
    async with contextlib.AsyncExitStack() as stack:
        name = session_id or store.new_id()
        journal = stack.enter_context(store.open(name, new=session_id is None))
        endpoint = Endpoint(config.endpoint)
        stack.push_async_callback(endpoint.close)
        permissions = load_permissions(directory)
        sandbox = await open_workspace(directory, _workspace(config.workspace, permissions, directory))
        stack.push_async_callback(sandbox.destroy)
        gate = Gate(_judge(permissions, directory, allow), ask)
        mcp = await stack.enter_async_context(McpTools(config.mcp, directory))
        for server, why in mcp.failed.items():
            _log.warning("an MCP server lacks tools", server=server, why=why)
        harness = config.summarised
        tools = {**harness.chosen(), **mcp.by_name}
        guard = SecretGuard(Redactor(known_secrets(os.environ), store.key(name)))
        session = Session(
            sandbox,
            EndpointDialogue(endpoint, tools, session_id=name, on_delta=on_delta),
            harness,
            config.limits,
            EventLog(on_event, journal),
            shadow=store.shadow(name, directory),
            tools=gate.guard(guard.guard(tools)),
            review=gate.review,
            persona=lambda: _persona(directory),
        )
        if not session.state.begun:
            time = datetime.now(UTC).isoformat(timespec="seconds")
            session.begin(id=name, workspace=str(directory), time=time, model=config.endpoint.model)
        yield Agent(name, session, endpoint, gate)


def _workspace(config: WorkspaceConfig, permissions: PermissionConfig, directory: Path) -> WorkspaceConfig:
    """Without the user's secrets in its environment, and without files that nothing may read."""
    env = {**without_secrets(os.environ), **config.env}
    masked = (*config.masked, *unreadable(permissions, directory))
    return config.model_copy(update={"env": env, "masked": masked})


def _judge(permissions: PermissionConfig, directory: Path, allow: Sequence[str]) -> Judge:
    judge = Judge(permissions, Place(directory))
    for rule in allow:
        judge.allow(rule)
    return judge


def _persona(directory: Path) -> str:
    rules = read_rules(directory)
    return f"{PERSONA}\n\n{rules}\n" if rules else PERSONA
