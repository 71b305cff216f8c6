"""Sessions longer than their context: sealed segments, summaries, what is carried over, and kills in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from directory_sandbox import DirectorySandbox

from etude.environments.base import Sandbox
from etude.errors import ConfigError, ContextOverflow
from etude.harness.config import HarnessConfig, SummaryConfig
from etude.harness.dialogue import TokenDialogue
from etude.harness.events import EventLog
from etude.harness.journal import Journal
from etude.harness.prompt import render_call, system_prompt
from etude.harness.sampler import Completion, SampleRequest
from etude.harness.session import Session, SessionResult, run_session
from etude.harness.summary import REQUEST, continuation, history_path, summary_in
from etude.harness.tools import TOOLS, ToolConfig
from etude.models.chat import ChatRenderer
from etude.records import Event, Limits

FILES = {"a.py": b"x = 1\n", **{f"b{n}.py": (f"y{n} = 2\n" * 30).encode() for n in range(10)}}
TASK = "Read them all.\nChange a.py.  Keep <this> as it is."
CONTEXT = 2500
LIMITS = Limits(max_turns=1000, max_context_tokens=CONTEXT, max_sampled_tokens=10**6, wall_s=120)
CONFIG = HarnessConfig(summary=SummaryConfig(trigger_tokens=1700, max_tokens=200))
EDIT = render_call("edit_file", {"path": "a.py", "old": "x = 1", "new": "x = 7"})


def read(number: int) -> str:
    return f"Step {number}.\n" + render_call("read_file", {"path": f"b{number % 10}.py"})


class Worker:
    """Knows only its context, as a model does. It notes in its summaries how far it is, and so goes on from there."""

    def __init__(
        self,
        chat: ChatRenderer,
        turns: int,
        summary: str = "<think>So far.</think>\nI am at step {}.",
        window: int = CONTEXT,
    ) -> None:
        self.chat, self.turns, self.summary, self.window = chat, turns, summary, window
        self.requests: list[SampleRequest] = []

    async def sample(self, request: SampleRequest) -> Completion:
        self.requests.append(request)
        if len(request.prompt_ids) > self.window:
            raise ContextOverflow("too long")
        text = self.chat.tokenizer.decode(list(request.prompt_ids), skip_special_tokens=False)
        at = 1 + max(int(part.split(".")[0]) for part in text.split("tep ")[1:]) if "tep " in text else 0
        if text.rstrip().endswith(f"{REQUEST}<|im_end|>\n<|im_start|>assistant"):
            message = self.summary.format(at - 1)
        elif at == 0:
            message = f"Step {at}.\n{EDIT}"
        else:
            message = read(at) if at < self.turns else "Done."
        whole = (*self.chat.encode(message), self.chat.end_id)
        ids = whole[: request.max_tokens]
        return Completion(ids, (-0.5,) * len(ids), (0,) * len(ids), "stop" if ids == whole else "length")


def play_in(in_sandbox: Callable[..., Any], sampler: Any, chat: ChatRenderer, look: Any = None) -> SessionResult:
    async def scenario(sandbox: Sandbox) -> SessionResult:
        result = await run_session(TASK, sandbox, sampler, chat, CONFIG, LIMITS, session_id="s", seed=5)
        if look:
            await look(sandbox, result)
        return result

    return in_sandbox(scenario, FILES)


def texts_of(chat: ChatRenderer, ids: Sequence[int]) -> str:
    return chat.tokenizer.decode(list(ids), skip_special_tokens=False)


@pytest.mark.timeout(200)
def test_a_session_ten_times_its_context(in_sandbox: Callable[..., Any], chat: ChatRenderer) -> None:
    histories: list[str] = []

    async def look(sandbox: Sandbox, result: SessionResult) -> None:
        for number in range(1, result.usage["summaries"] + 1):
            histories.append((await sandbox.read_file(history_path(number))).decode())

    sampler = Worker(chat, turns=120)
    result = play_in(in_sandbox, sampler, chat, look)
    assert result.stop == "finished" and result.usage["turns"] == 121
    total = sum(result.usage[name] for name in ("sampled_tokens", "observed_tokens"))
    assert total > 10 * CONTEXT and result.usage["summaries"] >= 10

    *cut, last = result.segments
    assert [segment.kind for segment in cut] == ["summary"] * result.usage["summaries"] and last.kind == "turns"
    assert all(len(segment.token_ids) <= CONTEXT for segment in result.segments)
    assert sum(segment.sampled.sum() for segment in result.segments) == result.usage["sampled_tokens"]
    prefixes = {
        tuple(segment.token_ids[:at].tolist()) for segment in result.segments for at in _starts(segment.sampled)
    }
    assert prefixes == {request.prompt_ids for request in sampler.requests}, "a request had other ids than its segment"
    assert len({request.seed for request in sampler.requests}) == len(sampler.requests)

    summaries = [event.data for event in result.events if event.kind == "summary"]
    for number, (segment, event) in enumerate(zip(cut, summaries, strict=True), 1):
        ending = texts_of(chat, segment.token_ids[_starts(segment.sampled)[-1] :])
        assert ending == f"<think>So far.</think>\n{event['text']}<|im_end|>" and event["number"] == number
        opening = result.segments[number].token_ids[: _starts(result.segments[number].sampled)[0]].tolist()
        assert event["after"] == len(opening) < event["before"] and event["reason"] == "context"
        text = texts_of(chat, opening)
        for carried in (system_prompt(TOOLS), TASK, event["text"], "Files changed so far: a.py", history_path(number)):
            assert carried in text
        assert ("once" if number == 1 else f"{number} times") in text
    read_files = "".join(histories)
    assert all(read_files.count(f"## turn {turn}\n") == 1 for turn in range(1, summaries_end(result) + 1))


def _starts(sampled: Any) -> list[int]:
    return [at for at in range(1, len(sampled)) if sampled[at] and not sampled[at - 1]]


def summaries_end(result: SessionResult) -> int:
    """The last turn that a summary covers."""
    kinds = [event.kind for event in result.events]
    last = len(kinds) - 1 - kinds[::-1].index("summary_asked")
    return max(event.data["turn"] for event in result.events[:last] if event.kind == "completion")


def test_without_the_config_a_session_ends_with_its_context(in_sandbox: Callable[..., Any], chat: ChatRenderer) -> None:
    async def scenario(sandbox: Sandbox) -> SessionResult:
        config = HarnessConfig()
        return await run_session(TASK, sandbox, Worker(chat, 90), chat, config, LIMITS, session_id="s", seed=5)

    result = in_sandbox(scenario, FILES)
    assert result.stop == "context" and len(result.segments) == 1 and result.usage["summaries"] == 0


class Killed(BaseException):
    pass


def open_session(
    home: Path,
    sampler: Any,
    chat: ChatRenderer,
    kill_at: int = -1,
    config: HarnessConfig = CONFIG,
    limits: Limits = LIMITS,
) -> tuple[Session, list[Event]]:
    """A session on disk that is killed when it has committed its event number `kill_at`."""
    heard: list[Event] = []

    def listener(event: Event) -> None:
        heard.append(event)
        if len(heard) == kill_at:
            raise Killed

    workspace = home / "workspace"
    workspace.mkdir(parents=True, exist_ok=True)
    for name, data in FILES.items():
        if not (workspace / name).exists():
            (workspace / name).write_bytes(data)
    dialogue = TokenDialogue(sampler, chat, config.chosen(), session_id="s", seed=5)
    log = EventLog(listener, Journal(home / "events.jsonl"))
    return Session(DirectorySandbox(workspace), dialogue, config, limits, log), heard


@pytest.mark.timeout(200)
def test_killed_after_any_event_it_goes_on_to_the_same_end(tmp_path: Path, chat: ChatRenderer) -> None:
    config = HarnessConfig(summary=SummaryConfig(trigger_tokens=1300, max_tokens=200))
    whole, heard = open_session(tmp_path / "whole", Worker(chat, turns=12), chat, config=config)
    assert asyncio.run(whole.prompt(TASK)) == "finished"
    ids = whole.dialogue.seal("turns").token_ids.tolist()
    assert whole.state.usage["summaries"] >= 2
    edit = next(at for at, event in enumerate(heard, 1) if event.kind == "tool_started")
    for kill_at in range(1, len(heard)):
        if kill_at == edit:
            continue  # an edit that was interrupted is told so: another session
        home = tmp_path / str(kill_at)
        killed, _ = open_session(home, Worker(chat, turns=12), chat, kill_at, config)
        with pytest.raises(Killed):
            asyncio.run(killed.prompt(TASK))
        killed.log.journal.close()
        resumed, _ = open_session(home, Worker(chat, turns=12), chat, config=config)
        assert asyncio.run(resumed.resume()) == "finished"
        assert resumed.dialogue.seal("turns").token_ids.tolist() == ids, f"killed after {heard[kill_at - 1]}"
        assert resumed.state.usage == whole.state.usage
        assert (home / history_path(1).lstrip("/")).exists()
        resumed.log.journal.close()
    whole.log.journal.close()


def test_by_command_and_a_prompt_after_it(tmp_path: Path, chat: ChatRenderer) -> None:
    sampler = Worker(chat, turns=3)
    session, heard = open_session(tmp_path, sampler, chat)

    async def scenario() -> None:
        with pytest.raises(ConfigError, match="nothing to summarise"):
            await session.compact()
        assert await session.prompt(TASK) == "finished"
        await session.compact()
        with pytest.raises(ConfigError, match="nothing to summarise"):
            await session.compact()
        sampler.turns = 5
        assert await session.prompt("Now the others.") == "finished"

    asyncio.run(scenario())
    [summary] = [event.data for event in heard if event.kind == "summary"]
    assert summary["reason"] == "command" and summary["after"] < summary["before"]
    text = texts_of(chat, session.dialogue.seal("turns").token_ids)
    assert text.count("<|im_start|>user") == 3, "the opening holds the prompt; the other two are results"
    assert f"{TASK}\n\nThen you were asked:\nNow the others.\n\n[Your context was cut once. Your own summary:]" in text
    session.log.journal.close()
    with pytest.raises(ConfigError, match=r"set harness\.summary\.trigger_tokens"):
        asyncio.run(open_session(tmp_path, sampler, chat, config=HarnessConfig())[0].compact())


def test_a_result_too_long_for_the_context_is_cut_to_fit(tmp_path: Path, chat: ChatRenderer) -> None:
    session, heard = open_session(tmp_path, Worker(chat, turns=3), chat)
    (tmp_path / "workspace" / "b1.py").write_bytes(b"z = 3\n" * 2000)
    assert asyncio.run(session.prompt(TASK)) == "finished"
    [long] = [event.data for event in heard if event.kind == "tool_result" and "z = 3" in event.data["text"]]
    assert len(long["text"]) > 10_000, "the log has what the tool said"
    assert all(event.data["context"] <= CONTEXT for event in heard if event.kind == "completion")
    session.log.journal.close()


@pytest.mark.parametrize("answer", ["", "<think>hm</think>", "x" * 3000, read(3)])
def test_a_poor_summary_is_gone_on_from(tmp_path: Path, chat: ChatRenderer, answer: str) -> None:
    session, heard = open_session(
        tmp_path, Worker(chat, turns=8, summary=answer), chat, limits=replace(LIMITS, max_turns=20)
    )
    assert asyncio.run(session.prompt(TASK)) in ("finished", "turns")
    assert [event.kind for event in heard].count("summary_asked") == session.state.usage["summaries"] >= 1
    session.log.journal.close()


def test_a_model_with_less_context_than_told_goes_on_without_a_summary(tmp_path: Path, chat: ChatRenderer) -> None:
    worker = Worker(chat, turns=90, window=1400)
    session, heard = open_session(tmp_path, worker, chat, limits=replace(LIMITS, max_turns=15))
    assert asyncio.run(session.prompt(TASK)) == "turns" and session.state.contexts >= 2
    assert "summary" not in [event.kind for event in heard] and session.state.usage["summaries"] == 0
    reasons = [event.data.get("no_summary") for event in heard if event.kind == "segment_sealed"]
    assert reasons == ["too long"] * session.state.contexts
    assert history_path(2) in texts_of(chat, session.dialogue.seal("turns").token_ids)
    session.log.journal.close()


def test_words() -> None:
    assert summary_in("<think>a\n</think>\n\nb <i>c</i>\n") == "b <i>c</i>"
    assert summary_in("b\n" + render_call("grep", {"pattern": "x"})) == "b"
    text = continuation(["one", "x" * 9000, "two"], "", ["fact"], 3)
    assert text.startswith("one\n\nThen you were asked:\nx") and "bytes cut" in text and len(text) < 3000
    assert "Then you were asked:\ntwo\n\n[Your context was cut 3 times. Your own summary:]\n(nothing)\n\nfact" in text


def test_a_tool_config_of_training_stays_as_it_is() -> None:
    """The quickstart's sessions are not summarised: what its model sees must not change."""
    assert HarnessConfig().summary is None and HarnessConfig(tool=ToolConfig()).summary is None
