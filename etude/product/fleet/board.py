"""What is known of each agent while it works, and how that looks: one line an agent.

Owns `Board`, filled from the events of sessions, and `shown`, which keeps it on a terminal for as long as agents work.
Where there is no terminal a line is printed when an agent begins, is measured and ends, and no more. Only ever writes
to the console it is given. What a model wrote is cut to a few plain characters before it comes near a terminal.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from etude.harness.fleet import Conflict
from etude.plain import plain, short_line
from etude.product.fleet.run_records import Done
from etude.records import Event

State: TypeAlias = Literal["starting", "working", "measured", "done", "failed"]
_SAID = {"starting": "getting ready", "working": "thinking", "measured": "tests and lints"}
_COLOURS = {"starting": "dim", "working": "cyan", "measured": "magenta", "done": "green", "failed": "red"}


@dataclass
class Status:
    """One agent, now."""

    task: str
    state: State = "starting"
    turns: int = 0
    doing: str = ""
    """The last call it made, or why it ended as it did."""
    size: str = ""
    """Of its change so far."""
    tokens: Callable[[], int] = lambda: 0
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    conflicts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By agent: the files both changed in ways that do not merge."""


class Board:
    """The agents of a run, by name; `on_change` is told whose state is another, `on_note` what the person should know
    of all of them."""

    def __init__(self, tasks: dict[str, str], on_change: Callable[[str, Status], None] = lambda name, status: None):
        self.agents = {name: Status(task) for name, task in tasks.items()}
        self.on_change = on_change
        self.on_note: Callable[[str], None] = lambda line: None

    def phase(self, name: str, state: State) -> None:
        status = self.agents[name]
        status.state, status.doing = state, ""
        self.on_change(name, status)

    def listener(self, name: str) -> Callable[[Event], None]:
        """For the events of an agent's session."""
        return partial(self._take, self.agents[name])

    def ended(self, done: Done) -> None:
        status = self.agents[done.name]
        status.state, status.doing = "failed" if done.entry.error else "done", short_line(done.entry.why())
        status.ended = time.monotonic()
        self.on_change(done.name, status)

    def conflicting(self, conflicts: Sequence[Conflict]) -> None:
        """What the newest trial merges found; those before no longer count."""
        for status in self.agents.values():
            status.conflicts = {}
        for each in conflicts:
            self.agents[each.first].conflicts[each.second] = each.paths
            self.agents[each.second].conflicts[each.first] = each.paths

    @staticmethod
    def _take(status: Status, event: Event) -> None:
        data = event.data
        if event.kind == "completion":
            status.turns, status.doing = data["turn"], ""
        elif event.kind == "tool_call":
            words = [value for value in data.get("arguments", {}).values() if isinstance(value, str)]
            status.doing = short_line(" ".join([data["name"], *words[:1]]))
        elif event.kind == "summary_asked":
            status.doing = "summarising"


def drawn(board: Board) -> Table:
    """One line an agent."""
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), expand=True)
    for width in (9, 6, 9, 9, 11):
        table.add_column(no_wrap=True, min_width=width)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for name, status in board.agents.items():
        colour = _COLOURS[status.state]
        doing = status.doing or _SAID.get(status.state, "")
        told = f"conflicts with {', '.join(status.conflicts)}: {doing}" if status.conflicts else doing
        row = (clock(status), f"turn {status.turns}", short(status.tokens()), status.size)
        style = "yellow" if status.conflicts else ""
        table.add_row(Text(name, colour), *(Text(each, "dim") for each in row), Text(told, style))
    return table


def clock(status: Status) -> str:
    seconds = int((status.ended or time.monotonic()) - status.began)
    return f"{seconds // 60}:{seconds % 60:02}"


def short(tokens: int) -> str:
    """A number of tokens in at most five characters, and the sign that it is one."""
    for size, sign in ((1_000_000, "M"), (1_000, "k")):
        if tokens >= size:
            return f"{tokens / size:.{1 if tokens < 10 * size else 0}f}{sign} tok"
    return f"{tokens} tok"


@contextlib.contextmanager
def shown(board: Board, console: Console) -> Generator[None]:
    """Keep the board in sight."""
    board.on_note = lambda line: console.print(Text(plain(line), "yellow"), soft_wrap=True)
    if console.is_terminal:
        with Live(get_renderable=lambda: drawn(board), console=console, refresh_per_second=4, transient=True):
            yield
        return

    def print_change(name: str, status: Status) -> None:
        said = status.doing or _SAID.get(status.state, status.state)
        console.print(Text(plain(f"{name}: {said}")), soft_wrap=True)

    board.on_change = print_change
    yield
