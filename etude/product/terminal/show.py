"""A session's events on the screen, as they happen.

Owns `Show`: reads and searches in a line each, edits as diffs, commands with what they print, the todo list, summaries
with the tokens before and after. It receives events, deltas and output, and asks the session nothing. Everything is
written once: long output is shown from its start, then only counted, and its end is shown when it is there.
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etude.harness.endpoint import CallDelta, Delta, Retry, TextDelta
from etude.harness.permissions.rules import READS
from etude.harness.state import cut_for
from etude.harness.tools.agent.todo import parse_todos
from etude.plain import plain_line, plain_output
from etude.product.files import on_this_machine, text_of
from etude.product.terminal.diffs import edit_rows
from etude.product.terminal.flow import Flow
from etude.product.terminal.screen import Screen
from etude.records import Event

_HEAD_LINES, _TAIL_LINES = 12, 6
_DIFF_ROWS = 60
_SILENT_S = 0.5
_LARGEST_SHOWN = 2_000_000
_WRITES = ("edit_file", "write_file")
_SIGNS = {"pending": ("☐", ""), "in_progress": ("▸", "bold"), "completed": ("☑", "green"), "cancelled": ("☒", "dim")}
_VERBS = {
    "read_file": "Read", "list_dir": "List", "grep": "Search", "glob": "Find", "codebase_search": "Search",
    "read_lints": "Lint", "edit_file": "Edit", "write_file": "Write",
}  # fmt: skip
_COUNTED = {
    "read_file": "line", "list_dir": "entry", "grep": "line", "glob": "file", "codebase_search": "line",
    "read_lints": "line",
}  # fmt: skip


@dataclass
class _Output:
    """What one command prints, split into lines as it comes."""

    decoder: Any = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))
    partial: str = ""
    lines: int = 0
    tail: list[str] = field(default_factory=list)
    command: str = ""
    """What runs, until that is shown: a command that is refused at once is not shown as one that ran."""
    began: float = field(default_factory=time.monotonic)

    def feed(self, piece: bytes, final: bool = False) -> list[str]:
        """The lines that are whole now."""
        *whole, self.partial = (self.partial + self.decoder.decode(piece, final)).split("\n")
        if final and self.partial:
            whole, self.partial = [*whole, self.partial], ""
        return whole


class Show:
    """One session's projection onto one screen. `directory` is where the workspace lies on this machine."""

    def __init__(self, screen: Screen, directory: Path) -> None:
        self._screen, self._directory = screen, directory
        self._flow: Flow | None = None
        self._streamed = False
        self._summarising = False
        self._calls: dict[int, Mapping[str, Any]] = {}
        self._before: dict[int, str | None] = {}
        self._outputs: dict[int, _Output] = {}
        self.doing = ""
        """In a few words what is going on, for whoever writes the line of status."""
        self._kinds: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "prompt": self._prompt, "completion": self._completion, "tool_call": self._call,
            "tool_started": self._started, "tool_result": self._result, "observation": self._thinking,
            "summary_asked": self._asked, "summary": self._summary, "segment_sealed": self._sealed,
            "opening": self._thinking, "checkpoint": self._checkpoint,
        }  # fmt: skip

    # --- what is told -------------------------------------------------------------------------------------------------

    def event(self, event: Event) -> None:
        """One event, once it is in the log."""
        if handler := self._kinds.get(event.kind):
            handler(event.data)

    def delta(self, delta: Delta) -> None:
        """More of the message that the model writes."""
        match delta:
            case TextDelta(text, "text") if not self._summarising:
                self._speak(text)
            case TextDelta():
                self.doing = "summarising" if self._summarising else "thinking"
            case CallDelta(_, name, _):
                self._hush()
                self.doing = f"writing {name}"
            case Retry(why, after_s):
                self._hush()
                self._streamed = False
                self._screen.line((f"↻ {why}; asking again" + (f" in {after_s:.0f} s" * (after_s >= 1)), "yellow"))

    def output(self, index: int, piece: bytes) -> None:
        """More of what the command in this place of the turn prints."""
        self._printed(self._outputs.setdefault(index, _Output()), piece)

    def tick(self) -> None:
        """Time has passed: a command that has printed nothing yet is shown all the same."""
        for output in self._outputs.values():
            if time.monotonic() - output.began >= _SILENT_S:
                self._announced(output)

    def stop(self) -> None:
        """Nothing goes on any more: the line that was being written is ended."""
        self._hush()
        self._calls.clear()
        self._outputs.clear()
        self._before.clear()
        self._streamed, self._summarising, self.doing = False, False, ""
        self._screen.status("")

    # --- words --------------------------------------------------------------------------------------------------------

    def _speak(self, text: str) -> None:
        if self._flow is None:
            if not text.strip():
                return
            self._screen.gap()
            self._flow = Flow(self._screen.piece, lambda: self._screen.width, marks=not self._screen.coloured)
            text = text.lstrip("\n")
        self._streamed, self.doing = True, ""
        self._flow.feed(text)

    def _hush(self) -> None:
        if self._flow is not None:
            self._flow.finish()
            self._flow = None

    def _prompt(self, data: Mapping[str, Any]) -> None:
        self._streamed, self.doing = False, "thinking"

    def _thinking(self, data: Mapping[str, Any]) -> None:
        self.doing = "thinking"

    def _completion(self, data: Mapping[str, Any]) -> None:
        if self._flow is None and not self._streamed:
            self._speak(prose_of(data["text"]))  # an endpoint that told nothing while it wrote
        self._hush()
        self._streamed = False
        if "repeated" in data:
            self._screen.line((cut_for(data["repeated"]), "yellow"))
        elif data["finish"] == "length":
            self._screen.line(("the message was cut off at its longest", "yellow"))

    # --- calls --------------------------------------------------------------------------------------------------------

    def _call(self, data: Mapping[str, Any]) -> None:
        self._calls[data["index"]] = data.get("arguments", {})

    def _started(self, data: Mapping[str, Any]) -> None:
        index, name = data["index"], data["name"]
        arguments = self._calls.get(index, {})
        if name in _WRITES:
            self._before[index] = self._content(arguments)
        elif name == "run_terminal_cmd":
            self._outputs[index] = _Output(command=command_shown(arguments))
        self.doing = f"{_VERBS.get(name, name)} {_target(name, arguments)}".strip()

    def _result(self, data: Mapping[str, Any]) -> None:
        index, name, text, failed = data["index"], data["name"], data["text"], data["error"]
        arguments = self._calls.get(index, {})
        self.doing = ""
        if name == "run_terminal_cmd":
            self._command_over(index, text, failed)
        elif failed:
            self._failed(name, arguments, text)
        elif name in _WRITES:
            self._edited(name, arguments, self._before.pop(index, None), text)
        elif name == "todo_write":
            self.todos(text)
        elif name in READS:
            found = _found(name, text)
            self._screen.line(
                ("● ", "blue"), _VERBS[name], " ", (_target(name, arguments), "cyan"), (found, "dim"), cut=True
            )
        else:
            first = plain_line(text)
            self._screen.line(
                ("● ", "magenta"), name, " ", (_target(name, arguments), "cyan"), (f"  {first}", "dim"), cut=True
            )

    def _failed(self, name: str, arguments: Mapping[str, Any], text: str) -> None:
        reason = text.removeprefix("error: ").split("\n")[0]
        what = "" if name == "malformed" else f"{_VERBS.get(name, name)} {_target(name, arguments)}: "
        self._screen.line(("✗ ", "red"), what, (reason, "red"))

    def todos(self, text: str) -> None:
        """The list, as the tool's answer holds it."""
        self._screen.gap()
        for todo in parse_todos(text):
            sign, style = _SIGNS[todo.status]
            self._screen.line((f"{sign} {todo.content}", style), indent=2)

    # --- edits --------------------------------------------------------------------------------------------------------

    def _edited(self, name: str, arguments: Mapping[str, Any], before: str | None, text: str) -> None:
        after = self._content(arguments)
        target = _target(name, arguments)
        self._screen.gap()
        if after is None:
            self._screen.line(
                ("● ", "green"), f"{_VERBS[name]} ", (target, "cyan"), (f"  {plain_line(text)}", "dim"), cut=True
            )
            return
        rows, added, removed = edit_rows(before or "", after, _DIFF_ROWS)
        verb = "New" if before is None else _VERBS[name]
        counts = [("  ", ""), (f"+{added}", "green"), (" ", ""), (f"-{removed}", "red")]
        self._screen.line(("● ", "green"), f"{verb} ", (target, "cyan"), *counts)
        self._screen.rows(rows, indent=2)

    def _content(self, arguments: Mapping[str, Any]) -> str | None:
        """A file as it is now, to be compared; None where there is none, or none that can be shown."""
        path = on_this_machine(self._directory, str(arguments.get("path", "")))
        return text_of(self._directory, path, _LARGEST_SHOWN)

    # --- commands -----------------------------------------------------------------------------------------------------

    def _announced(self, output: _Output) -> None:
        if output.command:
            self._screen.gap()
            self._screen.line(("$ ", "bold blue"), (output.command, "bold"))
            output.command = ""

    def _printed(self, output: _Output, piece: bytes, final: bool = False) -> None:
        self._announced(output)
        for line in output.feed(piece, final):
            output.lines += 1
            if output.lines <= _HEAD_LINES:
                self._screen.rows([(plain_output(line), "dim")], indent=2)
            else:
                output.tail = [*output.tail[1 - _TAIL_LINES :], line]
        if output.lines > _HEAD_LINES:
            self.doing = f"{output.lines} lines … {plain_output(output.tail[-1])[:200]}"

    def _command_over(self, index: int, text: str, failed: bool) -> None:
        output = self._outputs.pop(index, None)
        *_, last = text.rstrip("\n").split("\n")
        if failed:
            refused = output.command if output is not None else ""
            self._screen.line(("✗ ", "red"), (f"{refused}: " if refused else ""), (text.removeprefix("error: "), "red"))
            return
        if output is None or not (output.lines or output.partial):  # its output was not told while it ran
            output = output or _Output()
            self._printed(output, text.encode("utf-8", "replace"), final=True)
        else:
            self._printed(output, b"", final=True)
        left_out = output.lines - _HEAD_LINES - len(output.tail)
        if left_out > 0:
            self._screen.line((f"… {left_out} lines", "dim italic"), indent=2)
        self._screen.rows([(plain_output(line), "dim") for line in output.tail], indent=2)
        self.doing = ""
        seconds = time.monotonic() - output.began
        if last.startswith("[") and last.endswith("]"):
            self._screen.line(
                (last, "yellow" if "running" in last else "red"),
                (f"  {format_duration(seconds)}" if seconds >= 1 else "", "dim"),
                indent=2,
            )
        elif seconds >= 1:
            self._screen.line((format_duration(seconds), "dim"), indent=2)

    # --- contexts and checkpoints -------------------------------------------------------------------------------------

    def _asked(self, data: Mapping[str, Any]) -> None:
        self._hush()
        self._summarising, self.doing = True, f"summarising {data['before']:,} tokens"

    def _summary(self, data: Mapping[str, Any]) -> None:
        why = "the context was full" if data["reason"] == "context" else "as you asked"
        self._screen.gap()
        told = f"⇣ summarised, {why}: {data['before']:,} tokens before, {data['after']:,} after"
        self._screen.line((told, "magenta"))

    def _sealed(self, data: Mapping[str, Any]) -> None:
        self._summarising = False
        if why := data.get("no_summary"):
            self._screen.line((f"the context was cut without a summary: {why}", "yellow"))

    def _checkpoint(self, data: Mapping[str, Any]) -> None:
        if why := data.get("error"):
            self._screen.line((f"this turn cannot be undone: {why}", "yellow"))


def call_shown(name: str, arguments: Mapping[str, Any]) -> tuple[str, str]:
    """What a call would do: a word for it, and what it is about."""
    if name == "run_terminal_cmd":
        return "$ ", command_shown(arguments)
    return f"{_VERBS.get(name, name)} ", _target(name, arguments)


def command_shown(arguments: Mapping[str, Any]) -> str:
    """A call of run_terminal_cmd in a line or more."""
    if (number := arguments.get("id")) is not None:
        return f"{'stop' if arguments.get('stop') else 'look at'} background command {number}"
    command = str(arguments.get("command", "")).strip()
    return f"{command} &" if arguments.get("background") else command


def _target(name: str, arguments: Mapping[str, Any]) -> str:
    """What a call is about, in a few words."""
    if name == "run_terminal_cmd":
        return plain_line(command_shown(arguments))
    path = str(arguments.get("path") or "")
    if name == "read_file" and (start := arguments.get("start")):
        path += f":{start}" + (f"-{arguments['end']}" if arguments.get("end") else "")
    if name == "read_lints":
        return plain_line(" ".join(map(str, arguments.get("paths") or [path])))
    sought = arguments.get("pattern") or arguments.get("query")
    if sought:
        return plain_line(f"{sought}" + (f" in {path}" if path and path != "." else ""))
    if path or name in _VERBS:
        return plain_line(path or ".")
    return plain_line(" ".join(f"{key}={value}" for key, value in arguments.items()))


def _found(name: str, text: str) -> str:
    lines = text.rstrip("\n").split("\n")
    if len(lines) == 1 and (lines[0].startswith(("[", "no ")) or not lines[0]):
        return f"  {lines[0]}"
    noun = _COUNTED[name]
    plural = "entries" if noun == "entry" else f"{noun}s"
    return f"  {len(lines)} {noun if len(lines) == 1 else plural}"


def stopped_by(stop: str) -> str:
    """Why a prompt ended that was not finished."""
    return "stopped: the model repeats itself" if stop == "repetition" else f"stopped by a limit: {stop}"


def format_duration(seconds: float) -> str:
    """A time, as people say it."""
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def prose_of(text: str) -> str:
    """A message without the calls in it."""
    return text.partition("<tool_call>")[0]
