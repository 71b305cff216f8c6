"""An agent at work in a user's directory: everything a session needs, put together and taken apart again.

Owns `open_agent`, which every face opens its sessions by: the terminal, an editor, HTTP, headless; and `Agent`, what a
face does with one: play a prompt, cancel it, change the model. The session is the very one of training; what the
product adds stands around it: the OS sandbox over the user's own directory, permissions and redaction before the tools,
MCP servers beside them, snapshots, the project's rules in the system prompt, and a log that outlives the process. How
anything looks, and how a person is asked, is the face's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import structlog

from etude import __version__
from etude.environments.base import Sandbox
from etude.environments.local import ConfinedWorkspace, WorkspaceConfig, absent, command_environment, open_workspace
from etude.errors import ConfigError
from etude.harness.cost import CostLedger
from etude.harness.endpoint import Delta, Endpoint
from etude.harness.endpoint.dialogue import EndpointDialogue
from etude.harness.events import EventLog, decoded
from etude.harness.mcp import McpTools
from etude.harness.permissions.gate import Ask, Gate
from etude.harness.permissions.judge import Judge
from etude.harness.permissions.paths import WorkspacePaths
from etude.harness.permissions.rules import PermissionConfig
from etude.harness.permissions.store import load_permissions, remember
from etude.harness.permissions.unreadable import unreadable
from etude.harness.prompt import persona
from etude.harness.rules import read_rules
from etude.harness.secrets import Redactor, SecretGuard, known_secrets, without_secrets
from etude.harness.session import Session
from etude.harness.state import Stop
from etude.harness.store import SessionStore
from etude.harness.tools.agent.indexed import keep_on_disk
from etude.plain import plain_line
from etude.product.config import AgentConfig, config_file
from etude.product.git_inside import lack_of_git, trusting
from etude.product.hooks import Hooks
from etude.product.images import Images
from etude.product.own_commands import expanded
from etude.product.searching import embedder_of
from etude.product.surroundings import surroundings
from etude.product.toolbox import Toolbox
from etude.product.tracing import spans_of, watched
from etude.records import Event
from etude.search.embedder import Embedder

if TYPE_CHECKING:
    from etude.product.spans import Spans

_log = structlog.get_logger()


Ended: TypeAlias = Stop | Literal["cancelled"]
_T = TypeVar("_T")


class Agent:
    """An open session, as a face drives it: one thing at a time, and any of them can be cancelled."""

    def __init__(
        self,
        id: str,
        directory: Path,
        session: Session,
        endpoint: Endpoint,
        gate: Gate,
        ledger: CostLedger,
        spans: Spans | None = None,
    ) -> None:
        self.id, self.directory, self.session, self.endpoint, self.gate = id, directory, session, endpoint, gate
        self.ledger, self.spans = ledger, spans
        self.hooks_run: Mapping[str, int] = {}
        """The user's hooks, and how often each was run."""
        self.lacking: Mapping[str, str] = {}
        """MCP servers that have not all the tools they should have, git where it does not work, and why."""
        self._at_work: asyncio.Task[Any] | None = None
        self._cancelled = False

    @property
    def busy(self) -> bool:
        """Whether a prompt is being played, or a summary written."""
        return self._at_work is not None

    async def play(self, prompt: str | None) -> Ended:
        """Play a prompt to its end, a slash command of the user's own as what it stands for; None goes on where the log
        ends. What was done before a `cancel` stays done, and stands in the log: the next prompt, or `play(None)`, goes
        on from there. Raises what `Session` raises."""
        ended = await self._work(self.session.resume() if prompt is None else self.session.prompt(expanded(prompt)))
        return "cancelled" if ended is None else ended

    async def compact(self) -> bool:
        """Have the model summarise now; False where that was cancelled. ConfigError if there is nothing yet."""
        return await self._work(_true(self.session.compact())) is not None

    def cancel(self) -> bool:
        """Stop what is being done, commands included; whoever awaits it returns when nothing runs any more. False if
        there is nothing to stop. Safe to call twice; call it on the session's own loop."""
        if self._at_work is None:
            return False
        self._cancelled = True
        return self._at_work.cancel()

    def use_model(self, name: str) -> None:
        """Ask another model of the same endpoint from the next message on. The log says so."""
        if name != self.session.state.model:
            self.endpoint.use_model(name)
            self.session.state.commit("model", model=name)

    async def _work(self, work: Coroutine[Any, Any, _T]) -> _T | None:
        """None where it was cancelled by `cancel`."""
        if self._at_work is not None:
            work.close()
            raise ConfigError(f"session {self.id} is at work; wait for its end, or cancel it")
        if self.spans is None:
            return await self._cancellable(work)
        with self.spans.invoked():
            done = await self._cancellable(work)
            if done is None:
                self.spans.cancelled()
            return done

    async def _cancellable(self, work: Coroutine[Any, Any, _T]) -> _T | None:
        self._at_work, self._cancelled = asyncio.ensure_future(work), False
        try:
            return await self._at_work
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._cancelled or (task is not None and task.cancelling()):
                raise  # it is the caller who is to stop
            return None
        finally:
            self._at_work = None


async def _true(work: Coroutine[Any, Any, None]) -> bool:
    await work
    return True


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
    on_output: Callable[[int, bytes], None] | None = None,
    ask: Ask | None = None,
    allow: Sequence[str] = (),
    worktree_of: Path | None = None,
) -> AsyncGenerator[Agent]:
    """A new session in `directory`, or one of the store's.

    `on_event` is told every event once it is in the log, `on_delta` the model's words as they come, and `on_output`, by
    the call's place in its turn, what a command prints. All three must be quick: the session waits for them. `allow`
    are rules for this process; without `ask` nobody is there to be asked, and what would need it is refused. The rules
    of a worktree that is there for a session only are those of the project it is of, and no snapshots of it are kept.
    """
    directory, project = directory.resolve(), (worktree_of or directory).resolve()
    _check_place(store, session_id, directory)
    async with contextlib.AsyncExitStack() as stack:
        name = session_id or store.new_id()
        journal = stack.enter_context(store.open(name, new=session_id is None))
        ledger = CostLedger(config.prices, decoded(journal.path))
        spans = await stack.enter_async_context(spans_of(config, name))
        on_event, on_delta, used = watched(spans, on_event, on_delta, ledger.add)
        endpoint = Endpoint(config.endpoint, used)
        stack.push_async_callback(endpoint.close)
        permissions = await asyncio.to_thread(load_permissions, project)
        secrets = config.endpoint.secrets()
        view = await asyncio.to_thread(confined, config.workspace, permissions, directory, secrets)
        sandbox, embedder = await _opened(directory, view, partial(embedder_of, config.search, secrets), stack)
        gate = Gate(_judge(permissions, directory, view, allow, sandbox), ask, partial(remember, project))
        mcp = await stack.enter_async_context(McpTools(config.mcp, directory))
        harness = config.summarised
        around = await asyncio.to_thread(surroundings, directory, config) if config.surroundings else ""
        guard = SecretGuard(Redactor(known_secrets(os.environ, secrets), store.key(name)))
        images, hooks = Images(config.images), Hooks(config.hooks, name, directory)
        tools = Toolbox(images.shown_by(harness.chosen()), mcp, gate, guard, hooks)
        session = Session(
            sandbox,
            EndpointDialogue(endpoint, tools.known, session_id=name, on_delta=on_delta, image=images.get),
            harness,
            config.limits,
            EventLog(on_event, journal),
            snapshots=None if worktree_of else store.shadow(name, directory),
            tools=tools.guarded,
            review=tools.review,
            on_output=on_output,
            persona=partial(_persona, guard.redactor, directory, view.masked, around, permissions.closed()),
        )
        _begin(session, name, directory, config.endpoint.model, harness.versions(embedder))
        agent = Agent(name, directory, session, endpoint, gate, ledger, spans)
        agent.lacking, agent.hooks_run = await _lacking(mcp, directory, config), hooks.counts
        agent.use_model(config.endpoint.model)
        stack.push_async_callback(_left, hooks, session)
        yield agent


async def _opened(
    directory: Path, view: WorkspaceConfig, made: Callable[[], Embedder], stack: contextlib.AsyncExitStack
) -> tuple[Sandbox, Embedder]:
    embedder = await asyncio.to_thread(made)
    sandbox = await open_workspace(directory, view)
    stack.push_async_callback(sandbox.destroy)
    keep_on_disk(sandbox, directory, _log.warning, embedder)
    return sandbox, embedder


def _check_place(store: SessionStore, session_id: str | None, directory: Path) -> None:
    if session_id is not None and (there := store.workspace(session_id)) != directory:
        raise ConfigError(f"session {session_id} works in {there}, not in {directory}; go on with it there")


async def _left(hooks: Hooks, session: Session) -> None:
    if session.state.prompts:
        await hooks.end(session.state.stop)


async def _lacking(mcp: McpTools, directory: Path, config: AgentConfig) -> dict[str, str]:
    """What does not work, and why; warns of it."""
    for server, why in mcp.failed.items():
        _log.warning("an MCP server lacks tools", server=server, why=why)
    lacking = dict(mcp.failed)
    sandboxed = config.workspace.sandbox == "on"
    gitless = await asyncio.to_thread(lack_of_git, directory, sandboxed)
    said = {"git": gitless.person if gitless else "", "writing": not_writable(directory) if sandboxed else ""}
    for what, why in said.items():
        if why:
            _log.warning(why)
            lacking[what] = why
    return lacking


def not_writable(directory: Path, user: int | None = None) -> str:
    """Why commands and tools cannot write in a directory that its user could: root's rights end at the sandbox."""
    seen = directory.stat()
    if (os.geteuid() if user is None else user) != 0 or seen.st_uid == 0 or seen.st_mode & stat.S_IWOTH:
        return ""
    owner = f"'#{seen.st_uid}'"
    return (
        f"nothing can be written here: {plain_line(str(directory))} belongs to user {seen.st_uid}, and root may in a "
        f"sandbox no more than anybody; start as that user (sudo -u {owner} etude agent), or make the files yours"
    )


def _begin(session: Session, name: str, directory: Path, model: str, versions: Mapping[str, str]) -> None:
    """Say who it is, unless its log does."""
    if not session.state.begun:
        time = datetime.now(UTC).isoformat(timespec="seconds")
        session.begin(versions, id=name, workspace=str(directory), time=time, model=model, version=__version__)


_READS_MORE = {"RIPGREP_CONFIG_PATH", "GREP_OPTIONS"}
"""Variables with options for ripgrep and grep, `--hidden` for one."""


def confined(
    config: WorkspaceConfig, permissions: PermissionConfig, directory: Path, secrets: Sequence[str] = ()
) -> WorkspaceConfig:
    """Without the user's secrets in its environment, these among them, and without files that nothing may read. Nor
    with what has a search read more than its words say: the judge goes by those."""
    env = {name: value for name, value in without_secrets(os.environ, said=secrets).items() if name not in _READS_MORE}
    env |= config.env
    if config.sandbox == "off":
        return config.model_copy(update={"env": env})
    denied = unreadable(permissions, directory)
    masked = (*config.masked, *(path for path in denied if not path.startswith("/")))
    hidden = (*config.hidden, *(path for path in denied if path.startswith("/")))
    env = trusting(env, directory)
    return config.model_copy(update={"env": env, "masked": masked, "hidden": hidden})


def _judge(
    permissions: PermissionConfig, directory: Path, config: WorkspaceConfig, allow: Sequence[str], sandbox: Sandbox
) -> Judge:
    """The judge over what is there for commands: what the sandbox has taken away need not be asked about, nor what its
    guard refuses."""
    hidden = absent(directory, config) if config.sandbox == "on" else ()
    guards = isinstance(sandbox, ConfinedWorkspace) and config.guard == "on"

    def guarded(path: str, removed: bool) -> str:
        assert isinstance(sandbox, ConfinedWorkspace)
        name = sandbox.refuses(path, removed)
        return "" if name is None else _refusal(name, config.unguarded)

    judge = Judge(
        permissions, WorkspacePaths(directory), command_environment(config), hidden, guarded if guards else None
    )
    for rule in allow:
        judge.allow(rule)
    return judge


def _refusal(name: str, unguarded: Sequence[str]) -> str:
    said = "the sandbox's guard refuses it whatever you answer, because your own programs obey it"
    if not name:
        return f"{said}, and no setting gives it up; write it yourself"
    way = f"`[workspace] unguarded = {json.dumps([*unguarded, name])}` in {config_file()}"
    return f"{said}; {way} lets the agent write it, and what it writes there may then run as you, outside the sandbox"


async def _persona(
    redactor: Redactor, directory: Path, masked: Sequence[str], around: str, closed: Sequence[str]
) -> str:
    return redactor.redact(persona(read_rules(directory, masked), around, closed))
