"""The line that a person types: keys, history, completion, and a keyboard that stays quiet while the agent works.

Owns `Keyboard`. Enter sends, Alt-Enter and a backslash at the end of a line begin another, and what is pasted stays as
it is. Tab completes commands after `/` and files after `@`. Ctrl-C clears the line, on an empty one it raises
KeyboardInterrupt, and Ctrl-D there EOFError. While the agent works Esc is told at once, and all else that is typed is
kept for the next prompt, and can be shown meanwhile. Knows no session.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
import termios
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, ThreadedCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import AnyFormattedText
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPress, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output.color_depth import ColorDepth
from prompt_toolkit.styles import Style

from etude.errors import EtudeError
from etude.host import beneath
from etude.host.git import GitContext, run_git_now
from etude.host.repository import PrivateGitDir, find
from etude.plain import is_plain

_STYLE = Style.from_dict({"bottom-toolbar": "noreverse fg:ansibrightblack", "prompt": "bold"})
_MOST_FILES, _MOST_SHOWN, _DEPTH = 20_000, 40, 32
_LISTED_S, _FRESH_S = 10.0, 5.0
_ESCAPE_S = 0.1
"""After so long an escape is a key of its own, and not the beginning of another key's code."""


class Typed(FileHistory):
    """What was typed before. A disk that takes no more costs it the line, and nobody what they are at."""

    def store_string(self, string: str) -> None:
        with contextlib.suppress(OSError):
            super().store_string(string)


class Keyboard:
    """Reads lines from the terminal. `commands` gives the words after a slash, and what they do, whenever they are
    completed."""

    def __init__(
        self,
        history: Path,
        directory: Path,
        commands: Callable[[], Mapping[str, str]],
        toolbar: Callable[[], AnyFormattedText] = lambda: "",
    ) -> None:
        history.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(OSError):  # as in `Typed`
            history.touch(mode=0o600)
        depth = ColorDepth.DEPTH_1_BIT if os.environ.get("NO_COLOR") else None
        self._session: PromptSession[str] = PromptSession(
            history=Typed(str(history)), completer=ThreadedCompleter(Words(directory, commands)), multiline=True,
            key_bindings=_keys(), prompt_continuation="… ", bottom_toolbar=toolbar, style=_STYLE, color_depth=depth,
            reserve_space_for_menu=6, enable_suspend=True, complete_while_typing=False,
        )  # fmt: skip
        self._short: PromptSession[str] = PromptSession(style=_STYLE, color_depth=depth)

    async def prompt(self) -> str:
        """What the user wants, of any number of lines."""
        return await self._session.prompt_async("› ", handle_sigint=False)

    async def answer(self, question: str) -> str:
        """One line that answers a question. What was typed before it was asked is no answer to it, and is kept."""
        with contextlib.suppress(termios.error):
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        kept = get_typeahead(self._short.input)
        try:
            return await self._short.prompt_async(question, handle_sigint=False)
        finally:
            store_typeahead(self._short.input, kept)

    def typed(self) -> str:
        """What is kept for the next prompt, as far as it can be told before it is edited there."""
        kept = get_typeahead(self._session.input)
        store_typeahead(self._session.input, kept)
        return _shown(kept)

    @contextlib.contextmanager
    def listening(self, on_escape: Callable[[], None], on_typed: Callable[[], None]) -> Generator[None]:
        """While nobody is asked for a line. A prompt within it has the keyboard to itself."""
        source, loop = self._session.input, asyncio.get_running_loop()
        flush: asyncio.TimerHandle | None = None

        def take(pressed: list[KeyPress]) -> None:
            if [each.key for each in pressed] == [Keys.Escape]:
                on_escape()
            else:
                store_typeahead(source, pressed)
                on_typed()

        def ready() -> None:
            nonlocal flush
            take(source.read_keys())
            if flush is not None:
                flush.cancel()
            flush = loop.call_later(_ESCAPE_S, lambda: take(source.flush_keys()))

        with source.attach(ready):
            try:
                yield
            finally:
                if flush is not None:
                    flush.cancel()
                store_typeahead(source, source.flush_keys())


def _shown(keys: Iterable[KeyPress]) -> str:
    """The line that keys make; ⏎ where it is sent, or goes on."""
    line = ""
    for each in keys:
        if each.key in (Keys.ControlM, Keys.ControlJ):
            line += "⏎"
        elif each.key is Keys.ControlH:
            line = line[:-1]
        elif each.key is Keys.ControlU:
            line = line[: line.rfind("⏎") + 1]
        elif each.key is Keys.BracketedPaste or not isinstance(each.key, Keys):
            line += each.data
    return line


@contextlib.contextmanager
def quiet_keys() -> Generator[None]:
    """Keys are kept for the next prompt and not echoed, or they would stand in the middle of what the agent says.
    Ctrl-C still interrupts."""
    with _keys_with(lambda flags: flags & ~(termios.ECHO | termios.ICANON)):  # ICANON would take Ctrl-D for itself
        yield


@contextlib.contextmanager
def usual_keys() -> Generator[None]:
    """Within that, for a program of the user's own: keys are shown, and lines can be edited."""
    with _keys_with(lambda flags: flags | termios.ECHO | termios.ICANON):
        yield


@contextlib.contextmanager
def _keys_with(change: Callable[[int], int]) -> Generator[None]:
    file = sys.stdin.fileno()
    try:
        before = termios.tcgetattr(file)
    except termios.error:
        yield
        return
    changed = [*before]
    changed[3] = change(changed[3])
    termios.tcsetattr(file, termios.TCSADRAIN, changed)
    try:
        yield
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state and buffer.complete_state.current_completion:
            buffer.complete_state = None  # it is taken; another enter sends
        elif buffer.document.current_line_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return keys


class Words(Completer):
    """Commands at the start of a line, files behind an @."""

    def __init__(self, directory: Path, commands: Callable[[], Mapping[str, str]]) -> None:
        self._directory, self._commands = directory, commands
        self._files: list[str] = []
        self._listed = -_FRESH_S

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        before = document.text_before_cursor
        if before.startswith("/") and not any(char.isspace() for char in before):
            for name, does in self._commands().items():
                if name.startswith(before[1:]):
                    yield Completion(f"/{name}", start_position=-len(before), display_meta=does)
            return
        word = before.split()[-1] if before and not before[-1].isspace() else ""
        if word.startswith("@"):
            for path in matching(self._listing(), word[1:])[:_MOST_SHOWN]:
                yield Completion(f"@{path}", start_position=-len(word), display=path)

    def _listing(self) -> list[str]:
        if time.monotonic() - self._listed >= _FRESH_S:
            self._files = [path for path in list_files(self._directory) if is_plain(path)]
            self._listed = time.monotonic()
        return self._files


def matching(paths: Iterable[str], typed: str) -> list[str]:
    """Those that begin so first, then those whose name does, then those that have it anywhere."""
    low = typed.lower()

    def rank(path: str) -> int:
        lower = path.lower()
        return 0 if lower.startswith(low) else 1 if lower.rpartition("/")[2].startswith(low) else 2

    return sorted((path for path in paths if low in path.lower()), key=lambda path: (rank(path), len(path), path))


def list_files(directory: Path) -> list[str]:
    """The files of a project, those that git ignores left out; without git, those that are not hidden."""
    with contextlib.suppress(EtudeError, OSError):
        if (found := find(directory)) is not None:
            user = PrivateGitDir(found)
            at = GitContext(user.git_dir, found.top, user.index, directory)
            ran = run_git_now("ls-files", "-z", "-co", "--exclude-standard", at=at, deadline_s=_LISTED_S)
            if ran.code == 0:
                return [os.fsdecode(path) for path in ran.output.split(b"\0") if path][:_MOST_FILES]
    return list(itertools.islice(_walked(directory), _MOST_FILES))


def _walked(directory: Path) -> Iterable[str]:
    def shown(name: str) -> bool:
        return not name.startswith(".")

    for here, names in beneath.walk(directory, depth=_DEPTH, most_entries=8 * _MOST_FILES, enter=shown):
        yield from (f"{here}/{name}".lstrip("/") for name in names if shown(name))
