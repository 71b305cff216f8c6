"""How a command that trains or writes a model ends when a signal stops it: in one line, whenever the signal comes.

Owns `stoppable`. The first SIGINT or SIGTERM counts, and those that follow are ignored: one Ctrl-C often comes more
than once, from the terminal and from the process above. (A second one that is meant, the supervisor heeds.) Knows
nothing of what is run; talks to the command's `main`, by Interrupted and Terminated.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from etude.errors import Interrupted, stopped_by

_ASKING = (signal.SIGINT, signal.SIGTERM)
_EARLY = "stopped while it started, and nothing is lost; the same command starts it again"
T = TypeVar("T")


class _Told:
    """Which signal came first, and how the process meets signals while no loop of ours runs."""

    def __init__(self) -> None:
        self.first: int | None = None

    def listen(self) -> None:
        for number in _ASKING:
            signal.signal(number, signal.SIG_IGN if self.first is not None else self._stop)

    def note(self, number: int) -> bool:
        """Whether it is the first."""
        if self.first is not None:
            return False
        self.first = number
        return True

    def _stop(self, number: int, _frame: object) -> None:
        if self.note(number):
            self.listen()
            raise KeyboardInterrupt

    def error(self, said: str) -> Interrupted:
        return stopped_by(self.first or signal.SIGINT, said)


class _Loop(asyncio.SelectorEventLoop):
    """Tells which signal came, asks what handles it once, and leaves the handling to `told` when it is closed."""

    def __init__(self, told: _Told) -> None:
        super().__init__()
        self._told = told

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        def first() -> None:
            if self._told.note(sig):
                callback(*args)

        super().add_signal_handler(sig, first)

    def remove_signal_handler(self, sig: int) -> bool:
        removed = super().remove_signal_handler(sig)
        self._told.listen()
        return removed


@contextlib.contextmanager
def stoppable(said: str = _EARLY) -> Generator[Callable[[Coroutine[Any, Any, T]], T]]:
    """A signal in here is raised as Interrupted, or Terminated, with what is `said`. Gives a function in the place of
    `asyncio.run`, for what handles both signals itself once it has started."""
    told = _Told()
    before = {number: signal.getsignal(number) for number in _ASKING}
    told.listen()

    def run(main: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner(loop_factory=lambda: _Loop(told)) as runner:
            return runner.run(main)

    try:
        yield run
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise told.error(said) from None
    except Interrupted as error:
        if told.first is None:  # the supervisor's, which takes signals itself
            raise
        raise told.error(str(error)) from None
    finally:
        if told.first is None:  # else it ends now, and is not to be stopped again in the middle of saying so
            for number, handler in before.items():
                signal.signal(number, handler)
