"""The live view of a run in a terminal.

Owns how a `ViewState` looks, and nothing of where it comes from (`rollouts.watch` fills it). On a terminal a panel that
is redrawn a few times a second; anywhere else one plain line for each step and phase. Never writes to stdout when
quiet.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from etude.plain import plain_line, say

BARS = " ▁▂▃▄▅▆▇█"
SHORT = {"zero_variance": "alike", "too_few_scored": "infra"}


@dataclass
class Call:
    """One tool call of the rollout being watched."""

    name: str
    arguments: str
    result: str = ""
    failed: bool | None = None
    """None while it runs."""


@dataclass
class ViewState:
    """Everything the view shows; plain data, changed in place."""

    recipe: str = ""
    studio: str = ""
    """The command that shows the run in a browser."""
    phase: str = "starting"
    elapsed_s: float = 0.0
    left_s: float | None = None
    evaluated: int = 0
    to_evaluate: int = 0
    history: Sequence[Mapping[str, Any]] = ()
    """The lines of the last steps (`stats.RunStats`)."""
    samples_per_s: float = 0.0
    tokens_per_s: float = 0.0
    ages: dict[int, int] = field(default_factory=dict)
    sandboxes: int = 0
    engine_busy: float = 0.0
    trainer_busy: float = 0.0
    mismatch: float | None = None
    """Largest log-probability difference between sampler and trainer at one version, so far; `max_abs_drift` of a step
    is that between a token's sampler and the policy that trains on it."""
    rollout: str = ""
    instruction: str = ""
    calls: deque[Call] = field(default_factory=lambda: deque(maxlen=8))
    figures: dict[str, float] = field(default_factory=dict)
    """What is known already: base pass@1 and so on."""


def sparkline(values: Sequence[float], width: int = 32, low: float = 0.0, high: float = 1.0) -> str:
    """The last `width` values as one line of bars."""
    scale = (len(BARS) - 1) / (high - low)
    return "".join(BARS[round(min(max(value - low, 0.0), high - low) * scale)] for value in values[-width:])


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


UNTRAINED: Mapping[str, Any] = {
    "step": 0, "version": 0, "loss": 0.0, "entropy": 0.0, "max_abs_drift": 0.0, "calls_per_turn": 0.0,
    "parallel_share": 0.0, "dropped": {},
}  # fmt: skip
"""What is shown of a run before its first step."""


class View:
    """Shows a `ViewState`: call `refresh` when it has changed, `line` for what a plain log should say."""

    def __init__(self, state: ViewState, quiet: bool = False, console: Console | None = None) -> None:
        self.state = state
        self.console = console or Console(file=sys.stdout)
        plain = not self.console.is_terminal or "NO_COLOR" in os.environ or "CI" in os.environ
        self.quiet, self.plain = quiet, plain
        self._live = Live(console=self.console, auto_refresh=False, transient=False) if not (quiet or plain) else None

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the terminal back."""
        if self._live is not None:
            self.refresh()
            self._live.stop()

    def refresh(self) -> None:
        """Redraw, on a terminal."""
        if self._live is not None:
            self._live.update(render(self.state), refresh=True)

    def warn(self, text: str) -> None:
        """One line that is seen on a terminal too: it stays above the view."""
        self.line(text)
        if self._live is not None:
            self._live.console.print(Text(plain_line(text), style="yellow"))

    def line(self, text: str) -> None:
        """One line of a plain log; the terminal view shows the same things in their places."""
        if self.plain and not self.quiet:
            say(text, self.console.file)


def render(state: ViewState) -> Group:
    """The whole view."""
    halves = Table.grid(expand=True)
    halves.add_column(ratio=1)
    halves.add_column(ratio=1)
    halves.add_row(_learning(state), _machine(state))
    return Group(_header(state), halves, _rollout(state))


def _last(state: ViewState) -> Mapping[str, Any]:
    return state.history[-1] if state.history else UNTRAINED


def _header(state: ViewState) -> Panel:
    line = Table.grid(expand=True)
    line.add_column(ratio=1)
    line.add_column(justify="right")
    left = "" if state.left_s is None else f"   about {clock(state.left_s)} left"
    line.add_row(
        Text.assemble(("etude ", "bold"), (state.recipe, "cyan"), "   ", (state.phase, "bold yellow")),
        Text(f"version {_last(state)['version']}   {clock(state.elapsed_s)}{left}"),
    )
    rows: list[Table | ProgressBar | Text] = [line]
    if state.to_evaluate:
        share = Table.grid(expand=True)
        share.add_column(ratio=1)
        share.add_column(justify="right")
        bar = ProgressBar(total=state.to_evaluate, completed=state.evaluated)
        share.add_row(bar, Text(f"  {state.evaluated} of {state.to_evaluate} tasks"))
        rows.append(share)
    if state.figures:
        known = "   ".join(f"{name} {value:.2f}" for name, value in state.figures.items())
        rows.append(Text(known, style="green"))
    return Panel(Group(*rows), border_style="blue", padding=(0, 1), subtitle=Text(state.studio), subtitle_align="right")


def _learning(state: ViewState) -> Panel:
    table, last = Table.grid(padding=(0, 1)), _last(state)
    shown = [("solved", "solve_rate", ".0%", "green"), ("reward", "reward", ".2f", "magenta")]
    if "dev_pass1" in last:
        shown.insert(1, ("dev tasks", "dev_pass1", ".0%", "cyan"))
    for name, key, form, style in shown:
        values = [line[key] for line in state.history if key in line]
        newest = format(values[-1], form) if values else "–"
        table.add_row(name, Text(newest, style="bold"), Text(sparkline(values, 22), style=style))
    table.add_row("step", str(last["step"]), f"loss {last['loss']:+.3f} H {last['entropy']:.3f}")
    mismatch = "–" if state.mismatch is None else f"{state.mismatch:.0e}"
    table.add_row("Δ logp", "", f"{mismatch} fresh, {last['max_abs_drift']:.1f} stale")
    table.add_row("calls", f"{last['calls_per_turn']:.2f}", f"a turn, {last['parallel_share']:.0%} parallel")
    dropped = " ".join(f"{SHORT.get(name, name)} {count}" for name, count in last["dropped"].items() if count)
    table.add_row("dropped", "", dropped or "none")
    return Panel(table, title="learning", border_style="dim", padding=(0, 1))


def _machine(state: ViewState) -> Panel:
    table = Table.grid(padding=(0, 1))
    table.add_row("engine", _bar(state.engine_busy), f"{state.engine_busy:4.0%}")
    table.add_row("trainer", _bar(state.trainer_busy), f"{state.trainer_busy:4.0%}")
    table.add_row("sandboxes", Text(f"{state.sandboxes}", style="bold"), "alive")
    table.add_row("samples", f"{state.samples_per_s:.1f}/s", f"{state.tokens_per_s:,.0f} tok/s")
    total = sum(state.ages.values()) or 1
    shares = [state.ages.get(age, 0) / total for age in range(5)]
    table.add_row("age", Text(sparkline(shares), style="cyan"), "0…4 old")
    table.add_row("", "", "")
    return Panel(table, title="machine", border_style="dim", padding=(0, 1))


def _bar(share: float, width: int = 12) -> Text:
    full = round(min(max(share, 0.0), 1.0) * width)
    return Text.assemble(("█" * full, "green"), ("░" * (width - full), "dim"))


def _rollout(state: ViewState) -> Panel:
    rows = [
        Text(
            plain_line(state.instruction) or "waiting for a rollout", style="italic", no_wrap=True, overflow="ellipsis"
        )
    ]
    for call in state.calls:
        mark = {None: ("…", "yellow"), False: ("✓", "green"), True: ("✗", "red")}[call.failed]
        row = Text.assemble(
            mark, " ", (plain_line(call.name), "bold"), " ", (plain_line(call.arguments), "cyan"),
            no_wrap=True, overflow="ellipsis",
        )  # fmt: skip
        if call.result:
            row.append(f"  → {plain_line(call.result)}", style="dim")
        rows.append(row)
    rows += [Text("")] * ((state.calls.maxlen or 8) - len(state.calls))
    return Panel(Group(*rows), title=f"rollout {state.rollout}", border_style="dim", padding=(0, 1))
