"""A model that does the same over and over is stopped, and one that waits, reviews or has forgotten is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from etude.environments.base import Sandbox
from etude.harness.config import HarnessConfig, SummaryConfig
from etude.harness.prompt import render_call, render_calls
from etude.harness.scripted import ScriptedSampler
from etude.harness.session import SessionResult, run_session
from etude.models.chat import ChatRenderer
from etude.records import Limits

FILES = {f"{name}.py": f"{name} = 1\n".encode() for name in "abcde"}
LIMITS = Limits(max_turns=16, max_context_tokens=8000, max_sampled_tokens=8000, wall_s=60)
MISSING = render_call("read_file", {"path": "no.py"})
UNCHANGED = render_call("edit_file", {"path": "a.py", "old": "a = 1", "new": "a = 1"})


def read(name: str) -> str:
    return render_call("read_file", {"path": f"{name}.py"})


Play = Callable[[Sequence[str]], SessionResult]


@pytest.fixture
def play(in_sandbox: Callable[..., Any], chat: ChatRenderer) -> Play:
    def run(messages: Sequence[str], config: HarnessConfig | None = None) -> SessionResult:
        told = iter([*messages, "Done."])

        async def scenario(sandbox: Sandbox) -> SessionResult:
            sampler = ScriptedSampler(lambda observations: next(told), chat)
            return await run_session(
                "Go.", sandbox, sampler, chat, config or HarnessConfig(), LIMITS, session_id="s", seed=0
            )

        return in_sandbox(scenario, FILES)

    return run


@pytest.mark.parametrize(
    "turns",
    [
        [MISSING],
        ["<tool_call>\n<function=read_file>\n</tool_call>"],
        [read("a")],
        [UNCHANGED, read("a")],
        [render_calls([("read_file", {"path": "a.py"}), ("read_file", {"path": "no.py"})])],
    ],
)
def test_turns_that_tell_nothing_new_end_the_session(play: Play, turns: list[str]) -> None:
    result = play(turns * 8)
    assert result.stop == "repetition"
    assert result.usage["turns"] == len(turns) + 3, "three beyond the first that were the same"
    assert result.events[-1].data["stop"] == "repetition" and result.segments[0].sampled.any()


@pytest.mark.parametrize(
    "turns",
    [
        [render_call("run_terminal_cmd", {"command": "true"})] * 8,
        [render_call("write_file", {"path": "f.py", "content": ""})] * 8,
        [MISSING, MISSING, MISSING, read("a"), MISSING, MISSING],
        [read(name) for name in "abcdeabcdeabcde"],
        [message for _ in range(6) for message in (read("a"), render_call("run_terminal_cmd", {"command": "true"}))],
    ],
)
def test_what_acts_or_tells_something_goes_on(play: Play, turns: list[str]) -> None:
    """A command may wait for something, a file may be read again after many others."""
    result = play(turns)
    assert (result.stop, result.usage["turns"]) == ("finished", len(turns) + 1)


def test_a_file_may_be_read_again_after_a_summary(in_sandbox: Callable[..., Any], chat: ChatRenderer) -> None:
    """The model does not remember it. Every third message is a summary here, and all others are one and the same."""
    summaries = HarnessConfig(summary=SummaryConfig(trigger_tokens=200, max_tokens=32, request="Sum up."))
    asked: list[list[str]] = []

    def say(observations: list[str]) -> str:
        asked.append(observations)
        return "Done." if len(asked) > 12 else read("a")

    async def scenario(sandbox: Sandbox) -> SessionResult:
        sampler = ScriptedSampler(say, chat)
        return await run_session("Go.", sandbox, sampler, chat, summaries, LIMITS, session_id="s", seed=0)

    result = in_sandbox(scenario, FILES)
    assert result.usage["summaries"] > 2, result.usage
    assert result.stop != "repetition"
