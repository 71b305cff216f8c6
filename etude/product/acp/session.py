"""One session of a client's: an open agent, and everything between it and the client.

Owns `AcpSession`: prompts and slash commands, their stop reasons, the replay of a past, settings, and the end. What the
client is shown is `projection`'s, how a person is asked `permission`'s, and the session itself is `product.agent`'s, so
all that holds for one holds here: it outlives a kill, and a cancelled prompt has lost nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from acp import RequestError
from acp.schema import (
    AvailableCommandsUpdate,
    ConfigOptionUpdate,
    Cost,
    CurrentModeUpdate,
    PromptResponse,
    SessionConfigOptionSelect,
    SessionConfigSelectOption,
    SessionModeState,
    StopReason,
    Usage,
)

from etude.errors import ConfigError, DeadlineExceeded
from etude.harness.events import Record, decoded
from etude.harness.permissions.gate import Mode
from etude.harness.rewind import Rewind
from etude.harness.store import SessionStore
from etude.product.acp import calls, requests
from etude.product.acp.edges import edges_of
from etude.product.acp.outbox import Outbox
from etude.product.acp.permission import Asking
from etude.product.acp.projection import Projection
from etude.product.agent import Agent, Ended, open_agent
from etude.product.config import AgentConfig
from etude.records import Event

if TYPE_CHECKING:
    from acp.interfaces import Client

_STOP: Mapping[Ended, StopReason] = {
    "finished": "end_turn",
    "cancelled": "cancelled",
    "turns": "max_turn_requests",
    "wall": "max_turn_requests",
    "tokens": "max_tokens",
    "context": "max_tokens",
    "repetition": "max_tokens",
}
_STOP_S = 60.0
_CURRENCIES = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY"}
"""The protocol's name of a currency; a config that has another sign may hold the name itself."""


class AcpSession:
    """Open until `close`. One prompt at a time; settings may change at any moment."""

    def __init__(self, agent: Agent, config: AgentConfig, projection: Projection, outbox: Outbox) -> None:
        self.agent, self.id, self.directory = agent, agent.id, agent.directory
        self._projection, self._outbox = projection, outbox
        self._size = config.context_tokens
        self._models: list[str] = []
        self._lacking = list(agent.lacking.values())
        self._held = contextlib.AsyncExitStack()
        self._idle = asyncio.Event()
        self._idle.set()
        self._unsaid: list[str] = []
        """Prompts that were cancelled before the log had them: they go with the next."""

    @classmethod
    async def open(
        cls,
        config: AgentConfig,
        directory: Path,
        store: SessionStore,
        client: Client,
        session_id: str | None,
        *,
        terminals: bool,
    ) -> AcpSession:
        """A new session, or one of the store's, whose past has not been shown yet. Raises what `open_agent` raises."""
        async with contextlib.AsyncExitStack() as held:
            outbox = Outbox(client)
            held.push_async_callback(outbox.close)
            text_calls = config.endpoint.calls == "text"
            projection = Projection(
                outbox.add, directory, config.context_tokens, terminals=terminals, text_calls=text_calls
            )
            asking = Asking(client, projection, outbox, lambda: agent.cancel())
            agent = await held.enter_async_context(
                open_agent(
                    config,
                    directory,
                    store,
                    session_id,
                    on_event=projection.event,
                    on_delta=projection.delta,
                    on_output=projection.printed,
                    ask=asking.ask,
                )
            )
            outbox.session_id = agent.id
            projection.turn, projection.titled = agent.session.state.usage["turns"], bool(agent.session.state.prompts)
            projection.cost = partial(_cost, agent, _CURRENCIES.get(config.currency, config.currency))
            session = cls(agent, config, projection, outbox)
            session._models = await agent.endpoint.models()
            session._held = held.pop_all()
        return session

    async def close(self) -> None:
        """Stop what runs, commands included, and let another process have the session. Safe to call twice.

        Whoever waits for the prompt is answered first."""
        self.agent.cancel()
        try:
            async with asyncio.timeout(_STOP_S):
                await self._idle.wait()
        except TimeoutError:
            raise DeadlineExceeded(f"the prompt of session {self.id} to stop", _STOP_S) from None
        finally:
            await self._held.aclose()

    # --- prompts ------------------------------------------------------------------------------------------------------

    async def prompt(self, text: str) -> PromptResponse:
        """Play a prompt, or do what a slash command says; when it returns the client has been told everything."""
        if not self._idle.is_set():
            raise RequestError(-32600, f"session {self.id} is at work; cancel that first, or wait for its end")
        self._idle.clear()
        self._tell_what_is_lacking()
        try:
            command = requests.command_in(text)
            ended = await (self._play(text) if command is None else self._command(*command))
        except ConfigError as error:
            if command is None:
                raise
            self._projection.say(str(error))
            ended = "finished"
        finally:
            self._projection.settle()
            try:
                await self._outbox.flush()
            finally:
                self._idle.set()
        return PromptResponse(stop_reason=_STOP[ended], usage=self._usage())

    def cancel(self) -> None:
        """The prompt that is being played ends, and says so."""
        self.agent.cancel()

    async def _play(self, text: str) -> Ended:
        prompts = len(self.agent.session.state.prompts)
        whole = "\n\n".join([*self._unsaid, text])
        ended = await self.agent.play(whole)
        said = len(self.agent.session.state.prompts) > prompts
        self._unsaid = [] if said else [whole]
        return ended

    async def _command(self, name: str, argument: str) -> Ended:
        checkpoints = self.agent.session.checkpoints
        match name:
            case "compact":
                return "finished" if await self.agent.compact() else "cancelled"
            case "continue":
                return await self.agent.play(None)
            case "undo":
                if argument and not argument.isdecimal():
                    raise ConfigError(f"/undo takes a number of turns, or nothing for the last prompt; not {argument}")
                restored = await checkpoints.undo(int(argument) if argument else None)
            case "redo":
                restored = await checkpoints.redo()
            case _:
                self._show_patch(await checkpoints.diff())
                return "finished"
        lines = [*(f"- {path}" for path in restored.written), *(f"- {path} is gone" for path in restored.removed)]
        lines += [f"- {path} was left alone: something unknown is in its place" for path in restored.kept]
        self._projection.say("\n".join([f"Restored {'these files' if lines else 'the conversation'}:", *lines]))
        self._show_state()
        return "finished"

    def _show_patch(self, patch: str) -> None:
        self._projection.say(f"````diff\n{patch.rstrip()}\n````" if patch else "Nothing has changed.")

    def _show_state(self) -> None:
        state = self.agent.session.state
        self._projection.turn = state.usage["turns"]
        self._outbox.add(calls.plan_of(state.todos))
        self._projection.context(state.dialogue.tokens)

    def _usage(self) -> Usage:
        """Of the whole session; what came from a cache is counted apart."""
        spent = self.agent.ledger.spent
        return Usage(
            total_tokens=spent.prompt + spent.completion,
            input_tokens=spent.prompt - spent.cached,
            output_tokens=spent.completion,
            cached_read_tokens=spent.cached,
        )

    # --- a past -------------------------------------------------------------------------------------------------------

    async def replay(self) -> None:
        """Show the client everything that still stands; when it returns the client has been told."""
        past = Projection(
            self._outbox.add,
            self.directory,
            self._size,
            terminals=self._projection.terminals,
            text_calls=self.agent.endpoint.config.calls == "text",
        )
        past.live = False
        for event, record in self._standing():
            past.event(event, record)
            await asyncio.sleep(0)
        past.settle("interrupted")
        await self._outbox.flush()

    def edges(self) -> list[dict[str, str]]:
        """How the requests to the model follow from each other."""
        return edges_of(self._standing())

    def _standing(self) -> Iterator[tuple[Event, Record]]:
        journal = self.agent.session.log.journal
        assert journal is not None, "a session of the store has its log there"
        rewind = Rewind(self.agent.session.log)
        return (each for line, each in enumerate(decoded(journal.path)) if rewind.is_current(line))

    # --- settings -----------------------------------------------------------------------------------------------------

    def announce(self) -> None:
        """Tell the client which commands there are. It learns of the session by the answer that follows this call, and
        must not hear of it before: what is added here is sent after that answer."""
        self._outbox.add(
            AvailableCommandsUpdate(session_update="available_commands_update", available_commands=requests.commands())
        )

    def modes(self) -> SessionModeState:
        return SessionModeState(current_mode_id=self.agent.gate.mode, available_modes=list(requests.MODES))

    def options(self) -> list[SessionConfigOptionSelect]:
        """What a client can choose, as it stands."""
        model = self.agent.session.state.model
        models = list(dict.fromkeys([*self._models, model]))
        return [
            _option("model", "Model", "model", model, [(name, name, None) for name in models]),
            _option(
                "mode",
                "Mode",
                "mode",
                self.agent.gate.mode,
                [(mode.id, mode.name, mode.description) for mode in requests.MODES],
            ),
        ]

    def set_mode(self, mode: str) -> None:
        """Holds from the next call on, in the middle of a prompt too."""
        if mode not in (known := [each.id for each in requests.MODES]):
            raise RequestError(-32602, f"there is no mode {mode!r}; there are {', '.join(known)}")
        self.agent.gate.mode = _mode(mode)
        self._outbox.add(CurrentModeUpdate(session_update="current_mode_update", current_mode_id=mode))
        self._tell_options()

    def set_model(self, model: str) -> None:
        """Holds from the model's next message on."""
        if self._models and model not in self._models:
            raise RequestError(-32602, f"the endpoint has no model {model!r}; it has {', '.join(self._models)}")
        self.agent.use_model(model)
        self._tell_options()

    def _tell_what_is_lacking(self) -> None:
        """Before the first prompt: an editor shows no log, and whoever set up a server waits for its tools."""
        for why in self._lacking:
            self._projection.note(why)
        self._lacking = []

    def _tell_options(self) -> None:
        self._outbox.add(ConfigOptionUpdate(session_update="config_option_update", config_options=list(self.options())))


def _cost(agent: Agent, currency: str) -> Cost | None:
    money = agent.ledger.spent.money
    return Cost(amount=money, currency=currency) if money else None


def _mode(mode: str) -> Mode:
    match mode:
        case "read" | "auto":
            return mode
    return "ask"


def _option(
    id: str,
    name: str,
    category: Literal["mode", "model"],
    value: str,
    choices: list[tuple[str, str, str | None]],
) -> SessionConfigOptionSelect:
    options = [SessionConfigSelectOption(value=value, name=name, description=said) for value, name, said in choices]
    return SessionConfigOptionSelect(
        type="select", id=id, name=name, category=category, current_value=value, options=options
    )
