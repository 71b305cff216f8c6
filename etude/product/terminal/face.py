"""The terminal: opens sessions, reads what the user types, plays it, and can be interrupted at any moment.

Owns `Face`. Esc and Ctrl-C stop what is going on, a second Ctrl-C leaves; none loses anything, since a session is its
log. A line that begins with ! is a command of the user's own, which their shell runs outside the sandbox.
What a line means is the business of `commands`, how things look that of `show`. One session is open at a time; another
is opened by closing this one first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from prompt_toolkit.formatted_text import AnyFormattedText

from etude.errors import ConfigError, EtudeError
from etude.harness.cost import SessionCost
from etude.harness.permissions.gate import Answer, Question
from etude.harness.rewind import Rewind
from etude.harness.store import SessionStore
from etude.product.agent import Agent, open_agent
from etude.product.config import AgentConfig
from etude.product.own_commands import own_commands
from etude.product.surroundings import branch_of
from etude.product.terminal import commands
from etude.product.terminal.commands import COMMANDS, CommandContext, Leave, Next, Play, Switch
from etude.product.terminal.flow import Flow
from etude.product.terminal.questions import Questions
from etude.product.terminal.screen import Screen, usable
from etude.product.terminal.show import Show, format_duration, prose_of, stopped_by
from etude.product.terminal.typing import Keyboard, quiet_keys, usual_keys

_TICK_S = 0.15
_INTERRUPTED = 130
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_CLOSING = ".,;:!?)]}'\""
_MENTION = re.compile(r"(?<!\S)@(\S+)")


@dataclass(frozen=True)
class Opened:
    """How the terminal was opened: where, on which session (None is a new one), and with what to do first."""

    directory: Path
    session: str | None = None
    prompt: str | None = None
    allow: Sequence[str] = ()


class Face:
    """One terminal, for as long as `run` runs."""

    def __init__(self, config: AgentConfig, store: SessionStore, opened: Opened) -> None:
        if not usable(sys.stdin) or not usable(sys.stdout):
            raise ConfigError(
                "this is no terminal that can be typed in; add --print for a script, or --list to see what there is"
            )
        self._config, self._store, self._opened = config, store, opened
        self._screen = Screen()
        self._commands: CommandContext | None = None
        self._show = Show(self._screen, opened.directory)
        self._keyboard = Keyboard(store.home / "history", opened.directory, _commands, self._toolbar)
        self._branch = ""
        self._questions = Questions(self._screen, self._keyboard.answer)
        self._first = opened.prompt
        self._last: str | None = None
        """The session that was opened last."""
        self._began: float | None = None
        """Since when something is going on that status tells of."""
        self._asked_to_leave = False
        self._idle = False
        """Whether a line is waited for: a Ctrl-C just before the keyboard is read leaves as one that it reads does."""
        self._stopping = False
        """Whether what is going on has been told to stop."""
        self._warned = False
        """Whether a Ctrl-C has stopped something, or was answered by a word: the next one leaves."""
        self._own_command = False
        """Whether a command of the user's own runs, whose Ctrl-C is not ours."""
        self._main: asyncio.Task[Any] | None = None

    async def run(self) -> int:
        """Until the user leaves. Returns the exit code: 0, or 130 where it was left in the middle of something."""
        loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        for each in _ENDING:
            loop.add_signal_handler(each, self._leave)
        ticking = asyncio.create_task(self._tick())
        session: str | None = self._opened.session
        try:
            with quiet_keys(), self._log_on_screen():
                while (switch := await self._next_session(session)) is not None:
                    session = switch.session
            return 0
        except asyncio.CancelledError:
            if not self._asked_to_leave:
                raise
            return 0 if self._idle else _INTERRUPTED
        finally:
            self._show.stop()
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)
            for each in (signal.SIGINT, *_ENDING):
                loop.remove_signal_handler(each)

    # --- one session --------------------------------------------------------------------------------------------------

    async def _next_session(self, session: str | None) -> Switch | None:
        """The same, but for one that cannot be opened: then the one before is opened again."""
        try:
            return await self._session(session)
        except EtudeError as error:
            if self._last is None:
                raise
            self._failed(error)
            back, self._last = self._last, None
            return Switch(back)

    async def _session(self, session: str | None) -> Switch | None:
        """Open it, and talk until another is to be opened; None is the end."""
        show = self._show = Show(self._screen, self._opened.directory)
        show.doing = "opening"
        opening = open_agent(
            self._config, self._opened.directory, self._store, session,
            on_event=show.event, on_delta=show.delta, on_output=show.output, ask=self._ask, allow=self._opened.allow,
        )  # fmt: skip
        async with contextlib.AsyncExitStack() as stack:
            with self._working():
                agent = await stack.enter_async_context(opening)
            self._last = agent.id
            self._commands = CommandContext(agent, self._config, self._store, self._screen, show)
            switch = None
            try:
                self._greet(agent, new=session is None)
                switch = await self._talk(self._commands)
                return switch
            finally:
                self._commands = None
                self._show.stop()
                if switch is None and agent.session.state.prompts:
                    self._screen.line((f"etude agent -r {agent.id}  goes on with this session", "dim"))

    async def _talk(self, opened: CommandContext) -> Switch | None:
        while True:
            line = await self._line()
            if line is None:
                return None
            if not line.strip():
                continue
            try:
                step = await self._do(opened, line)
            except EtudeError as error:
                self._failed(error)
                if not isinstance(error, ConfigError):
                    self._screen.line(("/continue tries again from here", "dim"))
                continue
            if isinstance(step, Leave):
                return None
            if isinstance(step, Switch):
                return step

    def _failed(self, error: EtudeError) -> None:
        self._show.stop()
        self._screen.line(("✗ ", "bold red"), (str(error), "red"))

    async def _line(self) -> str | None:
        """What is to be done next; None where the user leaves."""
        if self._first is not None:
            line, self._first = self._first, None
            self._screen.line(("› ", "bold"), line)
            return line
        self._screen.gap()
        self._branch = await asyncio.to_thread(branch_of, self._opened.directory)
        while True:
            self._idle = True
            try:
                line = await self._keyboard.prompt()
                self._warned = False
                return line
            except EOFError:
                return None
            except KeyboardInterrupt:
                if self._warned:  # the first of two may have stopped what was going on
                    return None
                self._warn()
            finally:
                self._screen.typed()

    async def _do(self, opened: CommandContext, line: str) -> Next:
        if line.startswith("!"):
            await self._run_own(line[1:].strip(), opened.agent.directory)
        elif commands.is_command(line):
            with self._working():
                step = await commands.run(opened, line.strip())
            if not isinstance(step, Play):
                return step
            await self._play(opened, step.prompt and mentioned(step.prompt, opened.agent.directory))
        else:
            await self._play(opened, mentioned(line, opened.agent.directory))
        return None

    async def _run_own(self, command: str, directory: Path) -> None:
        """As the user's shell runs it, on this terminal; nothing of it is told to the model."""
        shell = os.environ.get("SHELL") or "/bin/sh"
        self._own_command = True
        try:
            with usual_keys():
                process = await asyncio.create_subprocess_exec(shell, "-c", command, cwd=directory)
                try:
                    code = await process.wait()
                finally:
                    if process.returncode is None:
                        process.terminate()
        except OSError as error:
            raise ConfigError(f"$SHELL, {shell}, does not start: {error.strerror}") from None
        finally:
            self._own_command = False
            self._screen.typed()
        if code < 0:
            self._screen.piece("\n")  # the terminal has shown ^C on this line
        if code:
            self._screen.line((f"exit {code if code > 0 else 128 - code}", "yellow"))  # a signal, as shells count it

    async def _play(self, opened: CommandContext, prompt: str | None) -> None:
        agent = opened.agent
        spent, turns = agent.ledger.spent, agent.session.state.usage["turns"]
        began = time.monotonic()
        self._show.doing = "thinking"
        with self._working():
            try:
                ended = await agent.play(prompt)
            finally:
                self._show.stop()
        count = agent.session.state.usage["turns"] - turns
        self._screen.gap()
        self._screen.line((self._bill(opened, agent.ledger.spent - spent, count, time.monotonic() - began), "dim"))
        if ended == "cancelled":
            self._screen.line(
                ("stopped. ", "yellow"), ("What was done stays: /continue, /undo, or say what else", "dim")
            )
        elif ended != "finished":
            self._screen.line((f"{stopped_by(ended)}. ", "yellow"), ("Say something to go on", "dim"))

    def _bill(self, opened: CommandContext, spent: SessionCost, turns: int, seconds: float) -> str:
        told = [commands.counted(turns, "turn")]
        if spent.requests:
            told.append(commands.cost_line(spent, self._config.currency))
        return " · ".join([*told, commands.context(opened), format_duration(seconds)])

    async def _ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        """The gate's questions. Ctrl-C there stops the prompt that they are part of."""
        began, self._began = self._began, None  # no status beside a line that is typed
        try:
            return await self._questions.ask(questions)
        except (KeyboardInterrupt, EOFError):
            self._interrupt()
            await asyncio.sleep(0)  # where the cancellation arrives
            return [Answer(False)] * len(questions)
        finally:
            self._began = began

    # --- what stands on the screen ------------------------------------------------------------------------------------

    def _greet(self, agent: Agent, new: bool) -> None:
        state = agent.session.state
        where = str(agent.directory).replace(str(Path.home()), "~", 1)
        self._screen.gap()
        self._screen.line(("Etude ", "bold"), (state.model, "cyan"), (f" in {where}", "dim"))
        if new:
            self._screen.line(("/help lists commands · esc stops · ctrl-c twice leaves", "dim"))
            return
        said = f"{commands.counted(len(state.prompts), 'prompt')}, {commands.counted(state.usage['turns'], 'turn')}"
        self._screen.line((f"session {agent.id}: {said}", "dim"))
        self._recall(agent)
        if state.prompts and state.stop is None:
            self._screen.line(("it was cut short; ", "yellow"), ("/continue goes on with it", "dim"))

    def _recall(self, agent: Agent) -> None:
        """The last thing that was asked, and what was answered."""
        log = agent.session.log
        rewind = Rewind(log)
        asked, answered = "", ""
        for line, event in enumerate(log):
            if event.kind == "prompt" and rewind.is_current(line):
                asked, answered = event.data["user"], ""
            elif event.kind == "completion" and rewind.is_current(line):
                answered = prose_of(event.data["text"]) or answered
        if asked:
            self._screen.gap()
            self._screen.line(("› ", "bold"), asked)
        if answered.strip():
            self._screen.gap()
            flow = Flow(self._screen.piece, lambda: self._screen.width, marks=not self._screen.coloured)
            flow.feed(answered.strip())
            flow.finish()
        if agent.session.state.todos:
            self._show.todos(agent.session.state.todos)

    def _toolbar(self) -> AnyFormattedText:
        """The line below the one that is typed: model, context, what it cost, branch, and what is asked about."""
        if self._commands is None:
            return []
        agent = self._commands.agent
        told = [agent.endpoint.config.model, commands.context(self._commands)]
        if agent.ledger.spent.money is not None and agent.ledger.spent.requests:
            told.append(commands.money(agent.ledger.spent.money, self._config.currency))
        told += [self._branch] if self._branch else []
        warned = "fg:ansiyellow" if agent.gate.mode == "auto" else ""
        return [("", f" {' · '.join(told)} · "), (warned, f"mode {agent.gate.mode}")]

    @contextlib.contextmanager
    def _working(self) -> Generator[None]:
        """Something goes on that the status tells of, and that Ctrl-C stops."""
        self._began, self._idle = time.monotonic(), False
        self._stopping = self._warned = False
        try:
            with self._keyboard.listening(self._escape, self._tell_status):
                yield
        finally:
            self._began = None
            self._screen.status("")

    async def _tick(self) -> None:
        while True:
            if self._began is not None:
                self._show.tick()
                self._tell_status()
            await asyncio.sleep(_TICK_S)

    def _tell_status(self) -> None:
        if self._began is not None:
            doing = "stopping" if self._stopping else self._show.doing or "working"
            time_taken = format_duration(time.monotonic() - self._began)
            self._screen.status(f"{doing} · {time_taken} · esc or ctrl-c stops", self._keyboard.typed())

    def _escape(self) -> None:
        """Stops what can be stopped, and never leaves."""
        if not self._stopping and self._commands is not None:
            self._stopping = self._commands.agent.cancel()

    def _interrupt(self) -> None:
        """The first stops what can be stopped, or is answered by a word; the second leaves."""
        if self._own_command:
            return
        if self._commands is None or self._warned:
            self._leave()
        elif self._stopping or not self._commands.agent.cancel():
            self._warn()
        else:
            self._stopping = self._warned = True

    def _warn(self) -> None:
        self._warned = True
        self._screen.line(("ctrl-c once more leaves", "dim"))

    def _leave(self) -> None:
        """End everything in order, from wherever it is: the terminal gets its keys back, commands are stopped."""
        if self._main is not None:
            self._asked_to_leave = True
            self._main.cancel()

    @contextlib.contextmanager
    def _log_on_screen(self) -> Generator[None]:
        """What our own rooms warn of is told here like everything else, and as plainly."""

        def on_screen(logger: object, method: str, said: Mapping[str, Any]) -> Mapping[str, Any]:
            words = ", ".join(f"{key}: {value}" for key, value in said.items() if key != "event")
            self._screen.line((f"{method}: {said.get('event', '')} {words}", "yellow"))
            raise structlog.DropEvent

        before = structlog.get_config()
        structlog.configure(processors=[on_screen])
        try:
            yield
        finally:
            structlog.configure(**before)


def _commands() -> dict[str, str]:
    """Every slash command by name, and what it does."""
    return {**own_commands(), **{name: command.does for name, command in COMMANDS.items()}}


def mentioned(line: str, directory: Path) -> str:
    """A prompt with the files it mentions as their paths alone."""

    def path(found: re.Match[str]) -> str:
        for word in (found[1], found[1].rstrip(_CLOSING)):
            with contextlib.suppress(OSError, ValueError):
                if (directory / word).exists():
                    return found[0][1:]
        return found[0]

    return _MENTION.sub(path, line)
