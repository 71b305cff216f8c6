"""Sessions with a model behind an endpoint: a real HTTP server drives every tool, and every fault of calls there is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from proofs import one_of_each
from scripted_openai import Json, Reply, ScriptedServer

from etude.environments.base import Sandbox
from etude.errors import ConfigError
from etude.harness.config import HarnessConfig, SummaryConfig
from etude.harness.endpoint import CallDelta, Delta, Endpoint, EndpointConfig, TextDelta
from etude.harness.endpoint.dialogue import EndpointDialogue
from etude.harness.events import EventLog
from etude.harness.journal import Journal
from etude.harness.prompt import PERSONA, parse_results, render_call, render_calls
from etude.harness.session import Session
from etude.harness.summary import REQUEST
from etude.harness.tools import TOOLS
from etude.records import Event, Limits

FILES = {"a.py": b"x = 1\n", "b/c.py": b"y = 2\n"}
LIMITS = Limits(max_turns=20, max_context_tokens=100_000, max_sampled_tokens=100_000, wall_s=60)
READ = ("read_file", {"path": "a.py"})
EVERY = [
    ("read_file", {"path": "a.py", "start": 1}),
    ("list_dir", {}),
    ("grep", {"pattern": "y", "path": "b"}),
    ("edit_file", {"path": "a.py", "old": "x = 1", "new": "x = 7"}),
    ("write_file", {"path": "new.txt", "content": "é\n"}),
    ("run_terminal_cmd", {"command": "cat a.py new.txt"}),
]
SAID = ["x = 1\n", "a.py\nb/", "b/c.py:1:y = 2", "ok", "ok", "x = 7\né"]
BOTH = pytest.mark.parametrize("dialect", ["chat", "responses"])
Play = Callable[..., "Played"]


class Played:
    """A session that has ended, and what the server was asked."""

    def __init__(self, server: ScriptedServer, events: tuple[Event, ...], stops: list[str], told: list[Delta]) -> None:
        self.bodies, self.events, self.stops, self.told = server.bodies, events, stops, told

    @property
    def results(self) -> list[str]:
        return [event.data["text"] for event in self.events if event.kind == "tool_result"]

    @property
    def calls(self) -> list[tuple[str, Any]]:
        return [(e.data["name"], e.data.get("arguments")) for e in self.events if e.kind == "tool_call"]


@pytest.fixture
def play(in_sandbox: Callable[..., Any]) -> Play:
    def run(
        script: Iterable[Reply] | Callable[[Json], Reply],
        prompts: Iterable[str] = ("Fix it.",),
        config: HarnessConfig | None = None,
        limits: Limits = LIMITS,
        journal: Path | None = None,
        **endpoint: Any,
    ) -> Played:
        told: list[Delta] = []

        async def scenario(sandbox: Sandbox) -> tuple[tuple[Event, ...], list[str]]:
            model = Endpoint(EndpointConfig(**{"url": server.url, "model": "m", **endpoint}))
            chosen = config or HarnessConfig()
            log = EventLog(journal=Journal(journal) if journal else None)
            dialogue = EndpointDialogue(model, chosen.chosen(), session_id="s", on_delta=told.append)
            session = Session(sandbox, dialogue, chosen, limits, log)
            try:
                if not session.state.begun:
                    session.begin(id="s")
                stops = [await session.prompt(prompt) for prompt in prompts]
                return log.events, list(map(str, stops))
            finally:
                await model.close()
                if log.journal is not None:
                    log.journal.close()

        with ScriptedServer(script) as server:
            events, stops = in_sandbox(scenario, FILES)
            return Played(server, events, stops, told)

    return run


def results_in(body: Json) -> list[str]:
    """The results that the last message's calls were answered with."""
    items = body.get("messages") or body["input"]
    native = [item["content"] for item in items if item.get("role") == "tool"]
    return native + [item["output"] for item in items if item.get("type") == "function_call_output"]


@BOTH
@pytest.mark.parametrize("stream", [True, False])
def test_every_tool_in_one_message(play: Play, dialect: str, stream: bool) -> None:
    assert {name for name, _ in EVERY} == {tool.name for tool in TOOLS}
    played = play([Reply("All at once.", EVERY, "Hm."), Reply("Done.")], dialect=dialect, stream=stream)
    assert played.stops == ["finished"] and played.calls == EVERY
    assert results_in(played.bodies[1]) == SAID and sorted(played.results) == sorted(SAID)
    assert {tool.get("name") or tool["function"]["name"] for tool in played.bodies[0]["tools"]} == {
        tool.name for tool in TOOLS
    }
    end = played.events[-1].data["usage"]
    assert (end["turns"], end["tool_calls"], end["parallel_turns"], end["sampled_tokens"]) == (2, 6, 1, 20)
    assert "".join(each.text for each in played.told if isinstance(each, TextDelta) and each.kind == "text") == (
        "All at once.Done."
    )
    assert {each.name for each in played.told if isinstance(each, CallDelta)} == {name for name, _ in EVERY}


AGENTS = [
    ("read_file", {"path": "b/c.py"}),
    ("list_dir", {"path": "b"}),
    ("glob", {"pattern": "*.py"}),
    ("grep", {"pattern": "y = ", "path": "b"}),
    ("codebase_search", {"query": "where y is set"}),
    ("read_lints", {"path": "a.py"}),
    ("todo_write", {"todos": [{"content": "Edit.", "status": "in_progress"}]}),
    ("edit_file", {"path": "a.py", "old": "x = 1", "new": "x = 7"}),
    ("write_file", {"path": "new.txt", "content": "é"}),
    ("run_terminal_cmd", {"command": "cat a.py new.txt"}),
]
IN_THEM = ["y = 2", "c.py", "b/c.py", "y = 2", "c.py", "", "[>] Edit.", "", "", "x = 7\né"]


@BOTH
def test_the_agents_ten_tools(play: Play, dialect: str) -> None:
    config = HarnessConfig(toolset="agent")
    assert {name for name, _ in AGENTS} == set(config.chosen())
    played = play([Reply("", AGENTS), Reply("Done.")], dialect=dialect, config=config)
    assert played.stops == ["finished"] and played.calls == AGENTS
    results = results_in(played.bodies[1])
    assert len(results) == 10 and all(part in result for part, result in zip(IN_THEM, results, strict=True)), results
    sent = {tool.get("name") or tool["function"]["name"]: tool for tool in played.bodies[0]["tools"]}
    todo = sent["todo_write"].get("parameters") or sent["todo_write"]["function"]["parameters"]
    assert todo["properties"]["todos"]["items"]["required"] == ["content", "status"]  # endpoints refuse bare arrays


@BOTH
def test_a_tool_a_turn_and_a_second_prompt(play: Play, dialect: str) -> None:
    script = [Reply("", [call]) for call in EVERY]
    script[3:3] = [Reply("Half way.")]
    played = play([*script, Reply("Done.")], prompts=["One.", "Two."], dialect=dialect)
    assert played.stops == ["finished", "finished"] and played.results == SAID
    key = "messages" if dialect == "chat" else "input"
    for before, after in zip(played.bodies, played.bodies[1:], strict=False):
        assert after[key][: len(before[key])] == before[key], "the conversation was rewritten"
    users = [item["content"] for item in played.bodies[-1][key] if item.get("role") == "user"]
    assert users == ["One.", "Two."]


@BOTH
def test_native_calls_that_are_wrong_are_answered(play: Play, dialect: str) -> None:
    wrong = [
        ("reed", '{"path": "a.py"}'),
        ("read_file", '{"file": "a.py"}'),
        ("read_file", "{}"),
        ("read_file", '{"path": "a.py", "start": "two"}'),
        ("read_file", '{"path": "a.p'),
        ("read_file", '["a.py"]'),
    ]
    played = play([Reply("", wrong), Reply("Done.")], dialect=dialect)
    assert played.stops == ["finished"]
    reasons = ["no tool reed; there are", "no parameter file; it is read_file(path", "parameter path is missing",
               "start must be an integer, not 'two'", "not a JSON object", "not a JSON object"]  # fmt: skip
    for result, reason in zip(results_in(played.bodies[1]), reasons, strict=True):
        assert result.startswith("error: ") and reason in result
    raws = [event.data["raw"] for event in played.events if event.kind == "tool_call"]
    assert raws == [f"{name}({arguments})" for name, arguments in wrong], "the raw text is lost"


NEARLY = [
    (dialect, arguments)
    for arguments in ['{"path": "a.py", "start": 1.0}', '{"path": "a.py", "start": "1"}', '"{\\"path\\": \\"a.py\\"}"',
     "{'path': 'a.py'}", '{"path": "a.py", "end": null}', '{}{"path": "a.py"}', '{"path": "a.py",}']
    for dialect in ("chat", "responses")
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "arguments"), one_of_each(0.3, NEARLY, lambda dialect, arguments: arguments))
def test_native_calls_that_are_nearly_right_are_run(play: Play, dialect: str, arguments: str) -> None:
    played = play([Reply("", [("functions.read_file", arguments)]), Reply("Done.")], dialect=dialect)
    assert results_in(played.bodies[1]) == ["x = 1\n"]


BODY = "<function=read_file>\n<parameter=path>\na.py\n</parameter>\n</function>"
FAULTS = {
    "sound": render_call(*READ),
    "no block": BODY,
    "no end of block": f"<tool_call>\n{BODY}",
    "no end of function": render_call(*READ).replace("</function>\n", ""),
    "no end of value": render_call(*READ).replace("</parameter>\n", ""),
    "no end at all": "<tool_call>\n<function=read_file>\n<parameter=path>\na.py",
    "one line": render_call(*READ).replace("\n", ""),
    "after words": f"I look.{render_call(*READ)}",
    "quoted names": render_call(*READ).replace("=read_file", '="read_file"'),
    "carriage returns": render_call(*READ).replace("\n", "\r\n"),
    "a float for an integer": render_call("read_file", {"path": "a.py", "start": "1.0"}),
    "JSON in a block": '<tool_call>\n{"name": "read_file", "arguments": {"path": "a.py"}}\n</tool_call>',
    "JSON without an end": '<tool_call>{"name": "read_file",\n "parameters": {"path": "a.py"}\n}',
    "null for what is left out": render_call("read_file", {"path": "a.py", "end": "null"}),
}


READERS = [(fault, calls) for fault in FAULTS for calls in ("text", "native")]


@pytest.mark.parametrize(
    ("fault", "calls"),
    one_of_each(0.3, READERS, lambda fault, calls: fault if calls == "text" else calls),
)
def test_calls_in_the_text_are_read_whatever_is_wrong_with_them(play: Play, fault: str, calls: str) -> None:
    """In `native` they stand there because the server's own reader missed them."""
    played = play([Reply(FAULTS[fault], piece=5), Reply("Done.")], calls=calls)
    assert played.stops == ["finished"] and played.results == ["x = 1\n"]
    [*_, said, results] = played.bodies[1]["messages"]
    assert said == {"role": "assistant", "content": FAULTS[fault]}
    assert results["role"] == "user" and parse_results(results["content"]) == ["x = 1\n"]


@BOTH
def test_calls_in_the_text(play: Play, dialect: str) -> None:
    several = render_calls([READ, READ]).replace("\n</tool_call>\n<tool_call>", "")
    wrong = "\n".join([render_call("reed", {}), render_call("read_file", {"file": "a"}), render_call("read_file", {})])
    played = play([Reply(f"Look.\n{several}"), Reply(wrong), Reply("Done.")], calls="text", dialect=dialect)
    first = played.bodies[0]
    system = (first.get("messages") or first["input"])[0]["content"]
    assert "tools" not in first and "<function=NAME>" in system and "read_file(path" in system
    assert played.results[:2] == ["x = 1\n"] * 2
    assert [result.split(";")[0] for result in played.results[2:]] == [
        "error: no tool reed", "error: no parameter file", "error: parameter path is missing",
    ]  # fmt: skip
    words = "".join(each.text for each in played.told if isinstance(each, TextDelta))
    assert "Look.\n" in words and "<function" not in words, "a user saw a call as words"


def test_who_writes_about_calls_makes_none(play: Play) -> None:
    text = "A call begins with\n<tool_call>\nand then has a <function=read_file> line."
    played = play([Reply(text)])
    assert played.stops == ["finished"] and played.calls == []


@BOTH
def test_a_message_cut_off(play: Play, dialect: str) -> None:
    """Half a call is not run, and a whole one before it is; words alone are told so."""
    half = [READ, ("write_file", '{"path": "new.txt", "content": "half of')]
    script = [Reply("", half, finish="length"), Reply("I was", finish="length"), Reply("Done.")]
    played = play(script, dialect=dialect)
    whole, cut = results_in(played.bodies[1])
    assert played.stops == ["finished"] and whole == "x = 1\n" and "cut off inside" in cut
    key = "messages" if dialect == "chat" else "input"
    assert "cut off after" in played.bodies[2][key][-1]["content"]


def test_a_system_prompt_says_no_more_than_it_must(play: Play) -> None:
    played = play([Reply("Done.")])
    assert played.bodies[0]["messages"][0]["content"] == PERSONA


@BOTH
def test_a_session_longer_than_its_context(play: Play, dialect: str) -> None:
    key = "messages" if dialect == "chat" else "input"

    def model(body: Json) -> Reply:
        said = json.dumps(body[key])
        size = len(said) // 3
        if REQUEST.split(".")[0] in json.dumps(body[key][-1]):
            return Reply("I am at step two.", prompt_tokens=size)
        if "step two" in said:
            return Reply("Done.", prompt_tokens=size)
        return Reply("", [READ, ("run_terminal_cmd", {"command": "seq 600"})], prompt_tokens=size)

    config = HarnessConfig(summary=SummaryConfig(trigger_tokens=3000, max_tokens=200))
    played = play(model, config=config, dialect=dialect)
    assert played.stops == ["finished"]
    [summary] = [event.data for event in played.events if event.kind == "summary"]
    assert summary["text"] == "I am at step two." and summary["before"] > summary["after"]
    opening = played.bodies[-1][key]
    assert opening[0] == played.bodies[0][key][0], "the system prompt changed"
    assert "Fix it." in opening[1]["content"] and "I am at step two." in opening[1]["content"]


@BOTH
def test_a_session_goes_on_from_its_log(play: Play, dialect: str, tmp_path: Path) -> None:
    """What is sent after a restart is, byte for byte, what would have been sent without one."""
    log, key = tmp_path / "events.jsonl", "messages" if dialect == "chat" else "input"
    script = [Reply("", [READ, ("list_dir", {})], "Hm."), Reply("One done.")]
    rest = [Reply("", [READ]), Reply("Two done.")]
    whole = play([*script, *rest], prompts=["One.", "Two."], dialect=dialect)
    first = play(script, prompts=["One."], journal=log, dialect=dialect)
    # another server counts its calls anew
    second = play(
        [Reply("", [READ], ids=["call_3"]), Reply("Two done.")], prompts=["Two."], journal=log, dialect=dialect
    )
    assert [*first.bodies, *second.bodies] == whole.bodies
    assert second.bodies[0][key][: len(first.bodies[-1][key])] == first.bodies[-1][key]


def test_a_context_that_overflows_ends_the_session(play: Play) -> None:
    long = Reply(status=400, body={"error": {"message": "x", "code": "context_length_exceeded"}})
    assert play([Reply("", [READ]), long]).stops == ["context"]
    with pytest.raises(ConfigError, match="very first message does not fit the model's context"):
        play([long])


LOOP = "I look at the file once more.\n"


@BOTH
@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_became_a_loop_is_cut_and_the_model_goes_on(play: Play, dialect: str, stream: bool) -> None:
    script = [Reply("First: " + LOOP * 4000, piece=100), Reply("I stop that.")]
    played = play(script, dialect=dialect, stream=stream)
    assert played.stops == ["finished"]
    cut, last = (event.data for event in played.events if event.kind == "completion")
    assert (cut["finish"], cut["text"], last["finish"]) == ("repetition", "First: " + LOOP * 2, "stop")
    assert cut["repeated"].startswith("the same 30 characters 4") and 3000 < cut["tokens"] < 5000
    *_, kept, told = played.bodies[-1].get("messages") or played.bodies[-1]["input"]
    assert kept == {"role": "assistant", "content": "First: " + LOOP * 2}, "a loop in the context calls for more"
    assert told["role"] == "user" and f"it repeated {cut['repeated']}, and no call in it was run" in told["content"]
    [end] = (event.data for event in played.events if event.kind == "end")
    assert end["usage"]["cut_messages"] == 1 and end["usage"]["tool_calls"] == 0
    if stream:
        assert sum(len(each.text) for each in played.told if isinstance(each, TextDelta)) < 14_000, "it was not read on"


@BOTH
@pytest.mark.parametrize("where", ["text", "reasoning", "arguments", "calls", "text calls"])
def test_the_second_loop_ends_the_prompt_and_the_next_may_have_its_own(play: Play, dialect: str, where: str) -> None:
    call = ("read_file", {"path": "a.py"})
    written = "<tool_call>\n<function=read_file>\n<parameter=path>\na.py\n</parameter>\n</function>\n</tool_call>\n"
    loop = {
        "text": Reply(LOOP * 4000, piece=100),
        "reasoning": Reply("Well.", reasoning=LOOP * 4000, piece=100),
        "arguments": Reply("", [call, ("write_file", '{"path": "b.py", "content": "' + "x = 1\\n" * 9000)], piece=100),
        "calls": Reply("", [call] * 1000),
        "text calls": Reply(written * 400, piece=100),
    }[where]
    as_text = {"calls": "text"} if where == "text calls" else {}
    script = [loop, loop, loop, Reply("Done.")]
    played = play(script, ("Fix it.", "And now?"), dialect=dialect, **as_text)
    assert played.stops == ["repetition", "finished"] and played.calls == [], "no call of a loop is run"
    told = json.dumps(played.bodies[-1])
    assert told.count("the answer was cut off, because it repeated the same") == 3 and len(told) < 40_000


def test_a_loop_may_be_let_go_on(play: Play) -> None:
    played = play([Reply(LOOP * 1000, piece=100)], repetition="allow")
    assert played.stops == ["finished"]
    assert [event.data["text"] for event in played.events if event.kind == "completion"] == [LOOP * 1000]


def test_a_loop_is_taken_up_from_the_log_as_it_was(play: Play, tmp_path: Path) -> None:
    loop = Reply(LOOP * 4000, piece=100)
    first = play([loop, loop], journal=tmp_path / "log")
    again = play([Reply("Done.")], ("Go on.",), journal=tmp_path / "log")
    assert (first.stops, again.stops) == (["repetition"], ["finished"])
    whole = play([loop, loop, Reply("Done.")], ("Fix it.", "Go on."))
    assert again.bodies[-1]["messages"] == whole.bodies[-1]["messages"]
