"""The commands that begin with a slash.

Owns the commands, their words and what they answer. Each gets the `CommandContext` of the session it was typed in and
what was typed after its name; it returns what the face is to do next, if anything. A command of the user's own is a
prompt (`product.own_commands`), and one that has the name of one of these is not reached here. Reads no keys.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from etude.errors import ConfigError
from etude.harness.cost import SessionCost
from etude.harness.permissions.gate import Mode
from etude.harness.shadow import Restored
from etude.harness.store import SessionEntry, SessionStore
from etude.plain import plain_line
from etude.product.agent import Agent
from etude.product.config import AgentConfig
from etude.product.own_commands import own_commands
from etude.product.terminal.diffs import patch_rows
from etude.product.terminal.screen import Screen
from etude.product.terminal.show import Show

_PATCH_ROWS = 500
_SESSIONS = 15


@dataclass(frozen=True)
class CommandContext:
    """An open session with all that a command may need."""

    agent: Agent
    config: AgentConfig
    store: SessionStore
    screen: Screen
    show: Show


@dataclass(frozen=True)
class Leave:
    """End."""


@dataclass(frozen=True)
class Switch:
    """Open this session instead; None is a new one."""

    session: str | None


@dataclass(frozen=True)
class Play:
    """Play this; None goes on where the log ends."""

    prompt: str | None = None


Next: TypeAlias = Leave | Switch | Play | None


async def run(opened: CommandContext, line: str) -> Next:
    """Do what a line that begins with a slash says. Raises ConfigError for a command that is none."""
    name, _, rest = line[1:].partition(" ")
    command = COMMANDS.get(name) or COMMANDS.get(_SHORT.get(name, ""))
    if command is None and name in own_commands():
        return Play(line)
    if command is None:
        raise ConfigError(f"there is no /{plain_line(name)}; /help lists what there is")
    return await command.run(opened, rest.strip())


def is_command(line: str) -> bool:
    """Whether a line is a command: a path at its start makes it none."""
    first = line.split(maxsplit=1)[0] if line.strip() else ""
    return line.startswith("/") and "/" not in first[1:] and len(first) > 1


# --- going back -------------------------------------------------------------------------------------------------------


async def _undo(opened: CommandContext, rest: str) -> Next:
    if rest and not rest.isdigit():
        raise ConfigError("/undo takes a number of turns, or nothing for the whole last prompt")
    last = opened.agent.session.state.prompts[-1:]
    restored = await opened.agent.session.checkpoints.undo(int(rest) if rest else None)
    what = f"the last {rest} turns" if rest else f"“{_short(last[0])}”" if last else "your last prompt"
    _restored(opened, f"took back {what}", restored)
    opened.screen.line(("/redo brings it back, until you say something new", "dim"))
    return None


async def _redo(opened: CommandContext, rest: str) -> Next:
    _restored(opened, "brought back what was undone", await opened.agent.session.checkpoints.redo())
    return None


def _restored(opened: CommandContext, said: str, restored: Restored) -> None:
    files = [(path, "written back") for path in restored.written] + [(path, "removed") for path in restored.removed]
    opened.screen.line(("↶ ", "magenta"), said, ("; no file was touched" if not files else "", "dim"))
    for path, what in files[:20]:
        opened.screen.line((f"{plain_line(path)}  ", "cyan"), (what, "dim"), indent=2)
    if len(files) > 20:
        opened.screen.line((f"and {len(files) - 20} more", "dim"), indent=2)
    for path in restored.kept:
        opened.screen.line((f"{plain_line(path)}: left alone, something else is in its place", "yellow"), indent=2)


async def _diff(opened: CommandContext, rest: str) -> Next:
    patch = await opened.agent.session.checkpoints.diff()
    if patch:
        opened.screen.rows(patch_rows(patch, _PATCH_ROWS))
    else:
        opened.screen.line(("no file is other than at this session's start", "dim"))
    return None


# --- sessions ---------------------------------------------------------------------------------------------------------


async def _resume(opened: CommandContext, rest: str) -> Next:
    listed = [
        each for each in opened.store.sessions(opened.agent.directory) if each.id != opened.agent.id and each.task
    ]
    if rest:
        return Switch(_chosen(listed, rest))
    if not listed:
        opened.screen.line(("there is no other session of this directory", "dim"))
    for number, each in enumerate(listed[:_SESSIONS], 1):
        when = f"{each.last_active.astimezone():%Y-%m-%d %H:%M}"
        opened.screen.line((f"{number:3}  ", "bold"), (f"{when}  ", "dim"), plain_line(each.task), cut=True)
    if listed:
        opened.screen.line(("/resume NUMBER opens one", "dim"))
    return None


def _chosen(listed: Sequence[SessionEntry], rest: str) -> str:
    if rest.isdigit() and len(rest) < 4:
        if not 1 <= int(rest) <= len(listed):
            raise ConfigError(f"there are {len(listed)} other sessions; /resume lists them")
        return listed[int(rest) - 1].id
    return rest


async def _fork(opened: CommandContext, rest: str) -> Next:
    forked = await opened.store.fork(rest or opened.agent.id)
    opened.screen.line(
        ("⑂ ", "magenta"), f"forked; the session before stays as it is: /resume {rest or opened.agent.id}"
    )
    return Switch(forked)


async def _new(opened: CommandContext, rest: str) -> Next:
    return Switch(None)


async def _continue(opened: CommandContext, rest: str) -> Next:
    if opened.agent.session.state.stop is not None or not opened.agent.session.state.prompts:
        opened.screen.line(("nothing was cut short; say what to do next", "dim"))
        return None
    return Play()


async def _quit(opened: CommandContext, rest: str) -> Next:
    return Leave()


# --- the model, and what it costs -------------------------------------------------------------------------------------


async def _compact(opened: CommandContext, rest: str) -> Next:
    if not await opened.agent.compact():
        opened.screen.line(("stopped; the context is as it was", "dim"))
    return None


async def _model(opened: CommandContext, rest: str) -> Next:
    current = opened.agent.endpoint.config.model
    if rest:
        opened.agent.use_model(rest)
        opened.screen.line(("● ", "blue"), "from the next message on: ", (rest, "cyan"))
        return None
    opened.screen.line(("● ", "blue"), (current, "cyan"), (f"  at {opened.agent.endpoint.config.url}", "dim"))
    for name in await opened.agent.endpoint.models():
        if name != current:
            opened.screen.line((plain_line(name), ""), indent=2)
    opened.screen.line(("/model NAME asks another", "dim"))
    return None


async def _mode(opened: CommandContext, rest: str) -> Next:
    if rest and rest not in _MODES:
        raise ConfigError(f"/mode takes one of {', '.join(_MODES)}")
    gate = opened.agent.gate
    gate.mode = _MODES.get(rest, (gate.mode, ""))[0]
    for name, (mode, does) in _MODES.items():
        opened.screen.line(("● " if gate.mode == mode else "  ", "blue"), (f"{name:<6}", "bold"), does, hang=8)
    return None


_MODES: dict[str, tuple[Mode, str]] = {
    "ask": ("ask", "as your rules say; what none allows is asked"),
    "read": ("read", "nothing is changed, and no command is run"),
    "auto": ("auto", "what no rule denies is done, without a question; the OS sandbox holds"),
}


async def _cost(opened: CommandContext, rest: str) -> Next:
    spent, state = opened.agent.ledger.spent, opened.agent.session.state
    opened.screen.line("this session: ", (cost_line(spent, opened.config.currency), "bold"))
    counts = (
        (len(state.prompts), "prompt"), (state.usage["turns"], "turn"), (state.usage["tool_calls"], "call"),
        (state.usage["summaries"], "summary"),
    )  # fmt: skip
    opened.screen.line((f"{', '.join(counted(*each) for each in counts)}; {context(opened)}", "dim"))
    if spent.money is None and spent.requests:
        model = opened.agent.endpoint.config.model
        opened.screen.line((f'no price is set; put [prices."{model}"] with input and output into agent.toml', "dim"))
    return None


def cost_line(spent: SessionCost, currency: str) -> str:
    """Tokens, and what they cost where that is known."""
    cached = f" ({thousands(spent.cached)} cached)" if spent.cached else ""
    tokens = f"{thousands(spent.prompt)} in{cached}, {thousands(spent.completion)} out"
    if spent.money is None or not spent.requests:
        return tokens
    return f"{tokens} · {money(spent.money, currency)}"


def money(spent: float, currency: str) -> str:
    """An amount, short ones to a hundredth of a cent."""
    return f"{currency}{spent:.2f}" if spent >= 1 else f"{currency}{spent:.4f}"


def counted(number: int, noun: str) -> str:
    """A number of things."""
    many = f"{noun[:-1]}ies" if noun[-1:] == "y" else f"{noun}s"
    return f"{number} {noun if number == 1 else many}"


def thousands(tokens: int) -> str:
    """A number of tokens, short."""
    if tokens < 1000:
        return str(tokens)
    text = f"{tokens / 1000:.1f}k" if tokens < 999_950 else f"{tokens / 1e6:.1f}M"
    return text.replace(".0", "")


def context(opened: CommandContext) -> str:
    """How full the context is."""
    tokens = opened.agent.session.dialogue.tokens
    return f"context {tokens / opened.config.context_tokens:.0%} of {thousands(opened.config.context_tokens)}"


async def _todos(opened: CommandContext, rest: str) -> Next:
    if opened.agent.session.state.todos:
        opened.show.todos(opened.agent.session.state.todos)
    else:
        opened.screen.line(("there is no list", "dim"))
    return None


async def _help(opened: CommandContext, rest: str) -> Next:
    for name, command in COMMANDS.items():
        usage = f"/{name} {command.takes}".rstrip()
        opened.screen.line((f"{usage:<18}", "bold"), command.does, hang=18)
    for name, does in own_commands().items():
        if name not in COMMANDS:
            opened.screen.line((f"/{name:<17} "[:18], "bold cyan"), does, hang=18)
    keys = (
        ("@", "and a file's name: tab completes it"), ("alt-enter", "another line; so does a \\ at the end of one"),
        ("!", "and a command of your own: your shell runs it here, and the model is not told"),
        ("esc", "stops what is going on"), ("ctrl-c", "the same; twice leaves"), ("ctrl-d", "leaves"),
    )  # fmt: skip
    for key, does in keys:
        opened.screen.line((f"{key:<18}", "bold"), does, hang=18)
    return None


@dataclass(frozen=True)
class Command:
    """One command: what it takes, what it does, in words and in deed."""

    takes: str
    does: str
    run: Callable[[CommandContext, str], Awaitable[Next]]


COMMANDS: dict[str, Command] = {
    "help": Command("", "this list", _help),
    "undo": Command("[TURNS]", "take back your last prompt, or so many turns: files and conversation", _undo),
    "redo": Command("", "bring back what was undone", _redo),
    "diff": Command("", "what changed since this session's start", _diff),
    "continue": Command("", "go on with what was stopped or cut short", _continue),
    "todos": Command("", "the agent's list of what is to do", _todos),
    "compact": Command("", "have the model summarise now, and go on in a fresh context", _compact),
    "model": Command("[NAME]", "which models there are; ask another one", _model),
    "mode": Command("[MODE]", "ask as the rules say, only read, or do all that no rule denies", _mode),
    "cost": Command("", "tokens so far, and their price", _cost),
    "resume": Command("[NUMBER]", "sessions of this directory; open one", _resume),
    "fork": Command("[ID]", "a new session with the same past, and this one stays", _fork),
    "new": Command("", "a new session", _new),
    "quit": Command("", "leave; the session is kept", _quit),
}
_SHORT = {"exit": "quit", "q": "quit", "clear": "new", "usage": "cost", "todo": "todos", "sessions": "resume"}


def _short(text: str) -> str:
    line = plain_line(text)
    return line if len(line) <= 60 else f"{line[:59]}…"
