"""Whether a grammar can be compiled at all: it is tried in a process of its own, which may die of it.

A schema of a kilobyte can send the compiler into recursion that overflows the stack, or into a search without end, and
neither can be stopped where it happens. Owns the limits of such a trial, and the thread on which what has survived one
is compiled: it has more stack than the trial had. Knows nothing of schemas (`grammar`).
"""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

from llguidance import LLMatcher, LLTokenizer

from etude.errors import DeadlineExceeded, EtudeError

T = TypeVar("T")
_CPU_S = 3
"""Several times what the largest grammars take that anybody writes."""
_MEMORY = 512 << 20
_STACK = 8 << 20
"""Some eight hundred definitions that lead to one another."""
_SIZING = threading.Lock()
"""The size of new stacks is the process's."""
_WAIT_S = 60.0
"""For a process to do `_CPU_S` of work on a machine that is busy."""


@lru_cache(maxsize=64)
def survives(grammar: str) -> bool:
    """Whether the compiler came to its end, with a grammar or with an error. Raises DeadlineExceeded."""
    command = [sys.executable, "-P", "-c", f"from {__name__} import attempt; attempt()"]
    try:
        done = subprocess.run(command, input=grammar.encode(), capture_output=True, timeout=_WAIT_S)
    except subprocess.TimeoutExpired:
        raise DeadlineExceeded("a grammar to be tried", _WAIT_S, "the machine is too busy; ask again later") from None
    except OSError as error:
        raise EtudeError(f"no grammar can be tried, since no process can be started: {error}") from error
    if done.returncode > 0:
        raise RuntimeError(f"a grammar could not be tried: {done.stderr.decode(errors='replace')[-2000:]}")
    return done.returncode == 0


def with_room(work: Callable[[], T]) -> T:
    """What `work` returns, on a thread with four times the stack of a trial."""
    with ThreadPoolExecutor(1, "grammar") as roomy:
        with _SIZING:
            before = threading.stack_size(4 * _STACK)
            done = roomy.submit(work)  # which starts the thread
            threading.stack_size(before)
        return done.result()


# --- the process ------------------------------------------------------------------------------------------------------


def attempt() -> None:
    """Compile what comes in, for any vocabulary."""
    for what, most in (("CORE", 0), ("CPU", _CPU_S), ("AS", _MEMORY), ("STACK", _STACK)):
        limit = getattr(resource, f"RLIMIT_{what}")
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_lark(sys.stdin.buffer.read().decode()), log_level=0)
