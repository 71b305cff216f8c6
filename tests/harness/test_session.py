"""The loop: exact ids, honest masks, every limit, and failures that are nobody's but the machinery's."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from proofs import one_of_each
from pydantic import ValidationError

from etude.environments.base import Sandbox
from etude.errors import ConfigError, ContextOverflow, DeadlineExceeded, SandboxError
from etude.harness.config import HarnessConfig
from etude.harness.dialogue import TokenDialogue
from etude.harness.events import EventLog
from etude.harness.journal import Journal
from etude.harness.prompt import PERSONA, explained_prompt, render_call, render_calls, render_results, system_prompt
from etude.harness.sampler import Completion, SampleRequest
from etude.harness.schema import Parameter
from etude.harness.scripted import ScriptedSampler
from etude.harness.session import Session, SessionResult, run_session
from etude.harness.state import SessionState
from etude.harness.tools import AGENT_TOOLS, TOOLS, Tool, ToolConfig
from etude.models.chat import ChatRenderer
from etude.records import Event, Limits

FILES = {"a.py": b"x = 1\n", "b.py": b"y = 2\n"}
EDIT = ("edit_file", {"path": "a.py", "old": "x = 1", "new": "x = 7"})
SHOW = ("run_terminal_cmd", {"command": "cat a.py; exit 2"})
LIMITS = Limits(max_turns=8, max_context_tokens=4000, max_sampled_tokens=2000, wall_s=30)
Run = Callable[..., Any]


class Recorder:
    """Passes requests on to a script and remembers both sides."""

    def __init__(self, messages: Sequence[str], chat: ChatRenderer) -> None:
        self.heard: list[list[str]] = []
        self.requests: list[SampleRequest] = []
        self.completions: list[Completion] = []
        self.messages = iter(messages)
        self.script = ScriptedSampler(self.next_message, chat)

    def next_message(self, observations: list[str]) -> str:
        self.heard.append(observations)
        return next(self.messages)

    async def sample(self, request: SampleRequest) -> Completion:
        self.requests.append(request)
        completion = await self.script.sample(request)
        number, length = len(self.requests), len(completion.token_ids)
        context = len(request.prompt_ids) + length - 1
        self.completions.append(
            replace(
                completion,
                logprobs=tuple(-number - at / 1000 for at in range(length)),
                versions=(number,) * length,
                routed_experts=np.full((context, 2, 1), number, np.uint8),
            )
        )
        return self.completions[-1]


@pytest.fixture
def play(in_sandbox: Run, chat: ChatRenderer) -> Run:
    def run(
        sampler: Any, limits: Limits = LIMITS, config: HarnessConfig | None = None, look: Any = None, **options: Any
    ) -> SessionResult:
        async def scenario(sandbox: Sandbox) -> SessionResult:
            options.setdefault("session_id", "s")
            options.setdefault("seed", 5)
            result = await run_session("Fix it.", sandbox, sampler, chat, config or HarnessConfig(), limits, **options)
            if look:
                await look(sandbox)
            return result

        return in_sandbox(scenario, FILES)

    return run


def test_a_session_holds_exactly_what_was_sampled_and_seen(play: Run, chat: ChatRenderer) -> None:
    messages = [render_calls([EDIT, SHOW]), "I look.\n" + render_call("read_file", {"path": "b.py"}), "Done."]
    sampler = Recorder(messages, chat)
    result = play(sampler, temperature=0.7)
    seen = [["ok", "x = 7\n[exit 2]"], ["y = 2\n"]]
    assert sampler.heard == [[], *seen] and result.stop == "finished"

    [segment] = result.segments
    expected = chat.opening(system_prompt(TOOLS), "Fix it.")
    sampled = [False] * len(expected)
    for message, observations in zip(messages, [*seen, None], strict=True):
        own = [*chat.encode(message), chat.end_id]
        after = chat.observation(render_results(observations)) if observations else []
        expected += [*own, *after]
        sampled += [True] * len(own) + [False] * len(after)
    assert segment.token_ids.tolist() == expected and segment.sampled.tolist() == sampled
    assert segment.kind == "turns"
    for name in ("logprobs", "versions"):
        kept = getattr(segment, name)
        flat = [value for completion in sampler.completions for value in getattr(completion, name)]
        assert np.array_equal(kept[segment.sampled], np.array(flat, kept.dtype)) and not kept[~segment.sampled].any()
    first_told = np.repeat([1, 2, 3], np.diff([0, *(len(c.routed_experts) for c in sampler.completions)]))
    assert segment.routed_experts.shape == (len(expected) - 1, 2, 1)
    assert (segment.routed_experts == first_told[:, None, None]).all(), "what is known of a position stays"

    for request, start in zip(sampler.requests, _starts(segment.sampled), strict=True):
        assert list(request.prompt_ids) == expected[:start]
        assert request.stop_ids == chat.stop_ids and request.temperature == 0.7 and request.session_id == "s"
    assert len({request.seed for request in sampler.requests}) == 3
    assert result.usage == {
        "turns": 3, "tool_calls": 3, "malformed_calls": 0, "parallel_turns": 1, "cut_messages": 0,
        "sampled_tokens": sum(sampled), "error_observations": 0, "overdue_calls": 0, "summaries": 0,
        "observed_tokens": len(expected) - sum(sampled) - len(sampler.requests[0].prompt_ids),
    }  # fmt: skip


def _starts(sampled: np.ndarray) -> list[int]:
    return [at for at in range(1, len(sampled)) if sampled[at] and not sampled[at - 1]]


def test_the_log_tells_everything_in_order(play: Run, chat: ChatRenderer) -> None:
    heard: list[Event] = []
    messages = [render_calls([EDIT, SHOW]), render_call("reed", {}), "Done."]
    result = play(ScriptedSampler(_script(messages), chat), on_event=heard.append)
    assert tuple(heard) == result.events
    assert [event.kind for event in heard] == [
        "session", "prompt", "completion", "tool_call", "tool_call",
        "tool_started", "tool_result", "tool_started", "tool_result", "observation",
        "completion", "tool_call", "tool_started", "tool_result", "observation", "completion", "segment_sealed", "end",
    ]  # fmt: skip
    assert all(a.at <= b.at for a, b in itertools.pairwise(heard))
    call, answer = heard[3].data, heard[6].data
    assert (call["turn"], call["index"], call["name"], call["arguments"]) == (1, 0, *EDIT)
    assert answer == {"turn": 1, "index": 0, "name": "edit_file", "text": "ok", "error": False}
    assert heard[11].data["name"] == "malformed" and heard[11].data["raw"].startswith("<tool_call>\n<function=reed>")
    assert heard[13].data["error"] and heard[13].data["text"].startswith("error: no tool reed")
    assert heard[-1].data["stop"] == "finished" and heard[-1].data["usage"] == result.usage
    assert result.usage["malformed_calls"] == result.usage["error_observations"] == 1


def _script(messages: Sequence[str]) -> Callable[[list[str]], str]:
    waiting = iter(messages)
    return lambda _: next(waiting)


def test_the_same_session_twice_is_the_same(play: Run, chat: ChatRenderer) -> None:
    messages = [render_calls([EDIT, SHOW]), "Done."]
    one, two = (play(ScriptedSampler(_script(messages), chat)) for _ in range(2))
    assert one.segments[0].token_ids.tolist() == two.segments[0].token_ids.tolist()
    assert [event.data for event in one.events] == [event.data for event in two.events]


def test_the_last_turns_calls_are_run_and_its_answer_is_not_appended(play: Run, chat: ChatRenderer) -> None:
    async def look(sandbox: Sandbox) -> None:
        assert await sandbox.read_file("/workspace/a.py") == b"x = 7\n"

    result = play(ScriptedSampler(_script([render_calls([EDIT])]), chat), replace(LIMITS, max_turns=1), look=look)
    assert result.stop == "turns" and result.usage["turns"] == 1
    assert result.segments[0].token_ids[-1] == chat.end_id and result.segments[0].sampled[-1]


def test_a_message_cut_off_is_closed_by_a_token_nobody_sampled(play: Run, chat: ChatRenderer) -> None:
    call = render_call("write_file", {"path": "new.py", "content": "z = 1\n" * 50})
    sampler = Recorder([render_calls([EDIT]) + "\n" + call, "word " * 200, "Done."], chat)
    result = play(sampler, config=HarnessConfig(max_turn_tokens=100))
    assert result.stop == "finished" and result.usage["cut_messages"] == 2
    assert sampler.heard[1][0] == "ok" and sampler.heard[1][1].startswith(
        "error: the message was cut off inside this call"
    )
    assert sampler.heard[2] == ["error: your message was cut off after 100 tokens; write shorter ones"]
    [segment] = result.segments
    for request in sampler.requests[:2]:
        cut_at = len(request.prompt_ids) + 100
        assert segment.sampled[cut_at - 100 : cut_at].all() and segment.token_ids[cut_at - 1] != chat.end_id
        assert not segment.sampled[cut_at] and segment.token_ids[cut_at] == chat.end_id
        assert segment.token_ids[cut_at + 1 :].tolist()[:3] == chat.observation("x")[:3]


def test_limits_on_tokens_and_context_stop_a_session(play: Run, chat: ChatRenderer) -> None:
    read = render_call("read_file", {"path": "b.py"})
    own = len(chat.encode(read)) + 1
    sampler = Recorder([read] * 9, chat)
    result = play(sampler, replace(LIMITS, max_sampled_tokens=own + 5))
    assert result.stop == "tokens" and result.usage["sampled_tokens"] == own + 5
    assert [request.max_tokens for request in sampler.requests] == [own + 5, 5]

    opening, seen = len(sampler.requests[0].prompt_ids), len(chat.observation(render_results(["y = 2\n"])))
    fits = opening + own + seen + 16
    for room, turns in ((opening + 16, 1), (fits - 1, 1), (fits, 2)):
        result = play(Recorder([read] * 9, chat), replace(LIMITS, max_context_tokens=room))
        assert (result.stop, result.usage["turns"]) == ("context", turns)
        assert len(result.segments[0].token_ids) <= room
    with pytest.raises(ConfigError, match=f"no room for a single turn: the prompt takes {opening} of the context's"):
        play(Recorder([read] * 9, chat), replace(LIMITS, max_context_tokens=opening + 15))


@pytest.mark.parametrize("turns", [0, 1])
def test_a_sampler_may_find_that_the_context_is_full(play: Run, chat: ChatRenderer, turns: int) -> None:
    """Before the first turn it is no agent's failure, and no session at all."""

    class Full:
        script = ScriptedSampler(_script([render_call("list_dir", {})] * turns), chat)
        asked = 0

        async def sample(self, request: SampleRequest) -> Completion:
            self.asked += 1
            if self.asked > turns:
                raise ContextOverflow("full")
            return await self.script.sample(request)

    if not turns:
        with pytest.raises(ConfigError, match=r"does not fit the model's context: full\. .*limits\.max_context_tokens"):
            play(Full())
        return
    result = play(Full())
    assert result.stop == "context" and result.usage["turns"] == 1


def test_waiting_for_the_model_is_not_the_policys_time(play: Run, chat: ChatRenderer) -> None:
    class Slow:
        script = ScriptedSampler(_script([render_call("reed", {}), "Done."]), chat)

        async def sample(self, request: SampleRequest) -> Completion:
            await asyncio.sleep(1.0)
            return await self.script.sample(request)

    assert play(Slow(), replace(LIMITS, wall_s=0.9)).stop == "finished"  # its one call is not even run


def test_the_time_of_tools_is_in_the_log_and_counts_for_a_prompt(
    in_sandbox: Run, chat: ChatRenderer, tmp_path: Path
) -> None:
    """Calls beside each other count once, and what a process that died has used stays used."""
    pair = [("wait", {"seconds": 0.4}), ("wait", {"seconds": 0.5})]
    sampler = ScriptedSampler(_script([render_calls(pair), render_call(*pair[1]), "Done."]), chat)
    schema = Parameter("seconds", "how long", "number")

    async def wait(sandbox: Sandbox, config: ToolConfig, arguments: Any) -> str:
        await asyncio.sleep(arguments["seconds"])
        return "waited"

    tools = {"wait": Tool("wait", "Wait.", (schema,), reads_only=True, run=wait)}

    def dialogue() -> TokenDialogue:
        return TokenDialogue(sampler, chat, tools, session_id="s", seed=1)

    async def scenario(sandbox: Sandbox) -> None:
        journal = Journal(tmp_path / "log")
        session = Session(sandbox, dialogue(), HarnessConfig(), LIMITS, EventLog(journal=journal), tools=tools)
        session.begin(id="s")
        assert await session.prompt("Wait.") == "finished"
        used, events = session.state.tools_s, session.log.events
        started, ended = ([e.at for e in events if e.kind == kind] for kind in ("tool_started", "tool_result"))
        assert used == pytest.approx(max(ended[:2]) - min(started[:2]) + ended[2] - started[2]) and used >= 0.99
        assert SessionState(dialogue(), EventLog(journal=journal)).tools_s == used
        journal.cut(len(events) - 2)  # killed before the last message, so the prompt goes on
        journal.close()
        journal = Journal(tmp_path / "log")
        again = ScriptedSampler(_script([render_call(*pair[0])]), chat)
        limits = replace(LIMITS, wall_s=used)  # which is spent
        fresh = TokenDialogue(again, chat, tools, session_id="s", seed=1)
        more = Session(sandbox, fresh, HarnessConfig(), limits, EventLog(journal=journal), tools=tools)
        assert await more.resume() == "wall"
        journal.close()

    in_sandbox(scenario)


def test_the_wall_clock_stops_a_stuck_command(play: Run, chat: ChatRenderer) -> None:
    async def look(sandbox: Sandbox) -> None:
        assert (await sandbox.exec("pgrep -x sleep")).output == b""

    sleep = render_call("run_terminal_cmd", {"command": "sleep 600"})
    result = play(ScriptedSampler(_script([sleep]), chat), replace(LIMITS, wall_s=1.0), look=look)
    assert result.stop == "wall"
    assert result.usage["turns"] == 1
    assert result.segments[0].sampled.sum() == len(chat.encode(sleep)) + 1
    assert [event.kind for event in result.events][-3:] == ["tool_started", "segment_sealed", "end"]


@pytest.mark.parametrize("error", [DeadlineExceeded("a token", 1), SandboxError("gone"), TimeoutError("inner")])
def test_failures_of_the_machinery_are_raised(play: Run, error: Exception) -> None:
    class Failing:
        async def sample(self, request: SampleRequest) -> Completion:
            raise error

    with pytest.raises(type(error)):
        play(Failing())


def test_a_session_has_only_the_tools_it_is_given(play: Run, chat: ChatRenderer) -> None:
    config = HarnessConfig(tools=("grep", "read_file"))
    sampler = Recorder([render_calls([SHOW]), "Done."], chat)
    result = play(sampler, config=config)
    assert sampler.heard[1] == ["error: no tool run_terminal_cmd; there are read_file, grep"]
    prompt = result.events[1].data["system"]
    assert "grep(pattern, path?)" in prompt and "edit_file" not in prompt
    for wrong in ((), ("grep", "grep")):
        with pytest.raises(ValidationError, match="name each tool once"):
            HarnessConfig(tools=wrong)
    with pytest.raises(ValidationError, match="'grap' is not known; there is read_file"):
        HarnessConfig(tools=("grap",))


def test_the_agent_has_ten_tools_and_is_told_what_they_are_for(play: Run, chat: ChatRenderer) -> None:
    config = HarnessConfig(toolset="agent", tool=ToolConfig(edit_tolerance="spacing"))
    todos = render_call("todo_write", {"todos": '["look"]'})
    sampler = Recorder([todos, render_call("glob", {"pattern": "*.py"}), "Done."], chat)
    result = play(sampler, config=config)
    assert sampler.heard[1:] == [["[ ] look"], ["a.py\nb.py"]]
    assert result.events[1].data["system"] == explained_prompt(AGENT_TOOLS, PERSONA)
    assert HarnessConfig(toolset="agent").tools == tuple(tool.name for tool in AGENT_TOOLS)
    with pytest.raises(ValidationError, match=r'tool\.edit_tolerance has no effect with toolset = "small"'):
        HarnessConfig(tool=ToolConfig(edit_tolerance="exact"))
    with pytest.raises(ValidationError, match="'glob' is not known; there is read_file, edit_file, write_file"):
        HarnessConfig(tools=("glob",))


def test_what_a_command_prints_is_shown_while_it_runs(in_sandbox: Run, chat: ChatRenderer) -> None:
    config, shown = HarnessConfig(toolset="agent"), []
    calls = [("list_dir", {}), ("run_terminal_cmd", {"command": "echo one"})]
    sampler = Recorder([render_calls(calls), "Done."], chat)

    async def scenario(sandbox: Sandbox) -> None:
        dialogue = TokenDialogue(sampler, chat, config.chosen(), session_id="s", seed=5)
        session = Session(
            sandbox, dialogue, config, LIMITS, EventLog(), on_output=lambda index, piece: shown.append((index, piece))
        )
        session.begin(id="s")
        assert await session.prompt("Look.") == "finished"

    in_sandbox(scenario, FILES)
    assert shown == [(1, b"one\n")]


def test_what_results_quote_cannot_end_a_turn(play: Run, chat: ChatRenderer) -> None:
    """A command that prints the end token writes ids nobody sampled; the session goes on, and its mask says so."""
    sampler = Recorder([render_call("run_terminal_cmd", {"command": "printf '%s' '<|im_end|>'"}), "Done."], chat)
    result = play(sampler)
    [segment] = result.segments
    assert result.stop == "finished" and segment.sampled.sum() == result.usage["sampled_tokens"]


def test_values_not_quite_of_their_type_are_taken_where_the_config_says_so(play: Run, chat: ChatRenderer) -> None:
    messages = [render_call("read_file", {"path": "a.py", "start": "1.0"}), "Done."]
    for lenient, expected in ((False, "error: start must be an integer, not '1.0'"), (True, "x = 1\n")):
        sampler = Recorder(messages, chat)
        play(sampler, config=HarnessConfig(lenient_calls=lenient))
        assert sampler.heard == [[], [expected]]


@pytest.mark.parametrize("toolset", one_of_each(2, ["agent", "small"]))
def test_a_call_that_exceeds_its_deadline_is_answered_and_counted(play: Run, chat: ChatRenderer, toolset: str) -> None:
    """A command at its own deadline, and a tool of whatever kind at that of the whole call; the session goes on."""
    slow = ("run_terminal_cmd", {"command": "echo begun; sleep 30"})
    read = ("read_file", {"path": "b.py"})
    config = HarnessConfig.model_validate({"toolset": toolset, "tool": {"command_timeout_s": 2.0}})
    result = play(Recorder([render_calls([slow, read]), "Done."], chat), config=config)
    told = [event.data for event in result.events if event.kind == "tool_result"]
    [command] = [data for data in told if data["name"] == "run_terminal_cmd"]
    assert command["text"].startswith("begun\n[") and "after 2 s" in command["text"]
    assert [data.get("overdue", False) for data in sorted(told, key=lambda data: data["index"])] == [True, False]
    assert result.usage["overdue_calls"] == 1 and result.usage["error_observations"] == 0

    config = HarnessConfig.model_validate({"toolset": toolset, "tool": {"call_timeout_s": 0.3}})
    result = play(Recorder([render_calls([slow]), "Done."], chat), config=config)
    [stopped] = [event.data for event in result.events if event.kind == "tool_result"]
    assert stopped["text"].startswith("error: stopped after 0.3 s; it may have done all, some or nothing")
    assert result.stop == "finished" and result.usage["overdue_calls"] == 1 == result.usage["error_observations"]


def test_a_name_that_is_none_is_an_error_to_the_model(play: Run, chat: ChatRenderer) -> None:
    """Behind the product's gate too: the judge looks at names before the tools do."""
    calls = [render_call("read_file", {"path": "~\0"}), render_call("list_dir", {"path": "x\0"}), "Done."]
    result = play(Recorder(calls, chat), config=HarnessConfig(toolset="agent"))
    results = [event.data for event in result.events if event.kind == "tool_result"]
    assert [each["error"] for each in results] == [True, True], results
