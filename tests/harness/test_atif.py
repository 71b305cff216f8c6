"""Sessions as trajectories in ATIF: every form of message, undo, summaries, and token ids as they were sampled."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from atif_form import Trajectory, accepted
from directory_sandbox import DirectorySandbox
from killed_session import FromContext
from scripted_openai import Reply, ScriptedServer

from etude.errors import ConfigError
from etude.harness.atif import encoded, trajectory
from etude.harness.config import HarnessConfig, SummaryConfig
from etude.harness.dialogue import TokenDialogue
from etude.harness.endpoint import Endpoint, EndpointConfig
from etude.harness.endpoint.dialogue import EndpointDialogue
from etude.harness.events import EventLog
from etude.harness.prompt import render_call, render_calls
from etude.harness.session import Session
from etude.harness.store import SessionStore
from etude.harness.summary import REQUEST
from etude.models.chat import ChatRenderer
from etude.records import Limits

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
LIMITS = Limits(max_turns=50, max_context_tokens=50_000, max_sampled_tokens=50_000, wall_s=60)
BEGAN = "2026-01-01T00:00:00+00:00"


class Place:
    """A workspace, a store and one session, `s`."""

    def __init__(self, root: Path) -> None:
        self.workspace, self.store = root / "workspace", SessionStore(root / "home")
        self.workspace.mkdir()

    def session(self, dialogue: Any, config: HarnessConfig, new: bool = True) -> Session:
        log = EventLog(journal=self.store.open("s", new=new))
        shadow = self.store.shadow("s", self.workspace)
        session = Session(DirectorySandbox(self.workspace), dialogue, config, LIMITS, log, snapshots=shadow)
        if new:
            session.begin(id="s", workspace=str(self.workspace), time=BEGAN, model="m", version="7")
        return session

    def exported(self) -> Trajectory:
        return accepted(encoded(trajectory(self.store.events("s"), "0")))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def play(place: Place, script: list[Reply], scenario: Callable[[Session], Any], new: bool = True) -> Trajectory:
    config = HarnessConfig(toolset="agent", summary=SummaryConfig(trigger_tokens=40_000))

    async def whole() -> None:
        with ScriptedServer(script) as server:
            endpoint = Endpoint(EndpointConfig(url=server.url, model="m"))
            session = place.session(EndpointDialogue(endpoint, config.chosen(), session_id="s"), config, new)
            try:
                await scenario(session)
            finally:
                await endpoint.close()
                assert session.log.journal is not None
                session.log.journal.close()

    asyncio.run(whole())
    return place.exported()


WRITE = ("write_file", {"path": "a.txt", "content": "one\n"})


def test_every_form_of_message(place: Place) -> None:
    lone = ("write_file", {"path": "b.txt", "content": "\udc80"})
    script = [
        Reply("Both.", [WRITE, ("list_dir", {})], reasoning="I think.", prompt_tokens=90, cached_tokens=40),
        Reply("", [("no_such_tool", {"x": 1}), lone, ("read_file", "{broken")]),
        Reply("I was cu", finish="length", completion_tokens=9),
        Reply("Done."),
    ]
    told = play(place, script, lambda session: session.prompt("Write."))
    assert [step.source for step in told.steps] == ["system", "user", *["agent"] * 4]
    both, wrong, cut, done = told.steps[2:]
    assert both.message == "Both." and both.reasoning_content == "I think." and both.model_name == "m"
    assert [call.tool_call_id for call in both.tool_calls] == ["1.0", "1.1"]
    assert both.tool_calls[0].arguments == WRITE[1] and both.timestamp[:16] == BEGAN[:16]
    assert [result.source_call_id for result in both.observation.results] == ["1.0", "1.1"]
    assert (both.metrics.prompt_tokens, both.metrics.cached_tokens, both.metrics.completion_tokens) == (90, 40, 10)
    assert wrong.tool_calls[0].extra["malformed"].startswith("no_such_tool(") and wrong.observation.results[0].extra
    assert wrong.tool_calls[1].arguments["content"] == "?", "a lone surrogate is no UTF-8"
    assert cut.extra["cut_off"] and "cut off after 9 tokens" in cut.observation.results[0].content
    assert done.message == "Done." and done.tool_calls is None and done.extra == {"context": 1, "turn": 4}
    assert told.final_metrics.total_prompt_tokens == 390 and told.final_metrics.total_cached_tokens == 40
    assert told.final_metrics.extra["malformed_calls"] == 2 and told.final_metrics.total_steps == 6
    assert told.agent.version == "7" and told.agent.model_name == "m"
    names = [tool["function"]["name"] for tool in told.agent.tool_definitions]
    assert names == list(HarnessConfig(toolset="agent").tools) and told.extra["events_undone"] == 0


def test_a_message_that_was_cut_for_repeating_itself(place: Place) -> None:
    script = [Reply("Wait, I look. " * 2000, piece=200), Reply("Done.")]
    cut, done = play(place, script, lambda session: session.prompt("Look.")).steps[2:]
    assert cut.message == "Wait, I look. " * 2 and cut.extra["cut_off"] and done.message == "Done."
    assert f"it repeated {cut.extra['repeated']}" in cut.observation.results[0].content


def test_what_was_undone_is_left_out_and_another_process_has_its_own_clock(place: Place) -> None:
    async def one_too_many(session: Session) -> None:
        await session.prompt("First.")
        await session.prompt("Second.")
        session.state.commit("model", model="another")
        await session.checkpoints.undo()

    first = play(place, [Reply("", [WRITE]), Reply("One."), Reply("Two.")], one_too_many)
    assert [step.message for step in first.steps[1:]] == ["First.", "", "One."] and first.extra["events_undone"] >= 4
    second = play(place, [Reply("Three.")], lambda session: session.prompt("Third."), new=False)
    assert [step.message for step in second.steps[1:]] == ["First.", "", "One.", "Third.", "Three."]
    assert [step.model_name for step in second.steps if step.source == "agent"] == ["m", "m", "another"]
    assert second.steps[-3].timestamp[:10] == BEGAN[:10] < second.steps[-2].timestamp[:10]


def test_a_summary_begins_a_context_that_is_copied(place: Place) -> None:
    async def summarised(session: Session) -> None:
        await session.prompt("Begin.")
        await session.compact()
        await session.prompt("Go on.")

    told = play(place, [Reply("One."), Reply("I have begun."), Reply("Two.")], summarised)
    system, *copied_system = [step for step in told.steps if step.source == "system" and step.message != REQUEST]
    assert [step.message for step in copied_system] == [system.message]
    asked = next(step for step in told.steps if step.message == REQUEST)
    assert asked.source == "system" and asked.extra["asked_because"] == "command"
    assert [step.extra["context"] for step in told.steps] == [1, 1, 1, 1, 1, 2, 2, 2, 2]
    summary, _, opening, prompt, last = told.steps[4:]
    assert summary.message == "I have begun." and summary.extra["summary"]["number"] == 1 and summary.metrics
    assert opening.is_copied_context and "I have begun." in opening.message and opening.message.startswith("Begin.")
    assert (prompt.message, prompt.is_copied_context, last.message) == ("Go on.", None, "Two.")


def test_token_ids_are_those_that_were_sampled(place: Place, chat: ChatRenderer) -> None:
    config, calls = HarnessConfig(), [("list_dir", {}), ("list_dir", {"path": "."})]

    def script(number: int) -> str:
        return [render_call("list_dir", {}), render_calls(calls), "Done."][number]

    dialogue = TokenDialogue(FromContext(chat, script), chat, config.chosen(), session_id="s", seed=1)
    session = place.session(dialogue, config)
    assert asyncio.run(session.prompt("Look.")) == "finished"
    whole = dialogue.seal("turns")
    steps = [step for step in place.exported().steps if step.source == "agent"]
    assert [len(step.tool_calls or ()) for step in steps] == [1, 2, 0]
    sampled = [id for step in steps for id in step.metrics.completion_token_ids]
    assert sampled == whole.token_ids[whole.sampled].tolist()
    last = steps[-1].metrics
    assert [*last.prompt_token_ids, *last.completion_token_ids] == whole.token_ids.tolist()
    assert last.logprobs == pytest.approx(whole.logprobs[-len(last.logprobs) :].tolist())
    assert last.extra == {"versions": whole.versions[-len(last.logprobs) :].tolist()}
    session.log.journal.close()


def test_a_session_that_is_not_there(place: Place) -> None:
    with pytest.raises(ConfigError, match="is not in"):
        place.store.events("gone")
