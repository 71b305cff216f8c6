"""Sessions killed with -9 at random moments: no committed event is lost, and no command runs twice."""

from __future__ import annotations

import asyncio
import collections
import multiprocessing
import os
import random
import time
from multiprocessing import forkserver
from pathlib import Path

import killed_session
import pytest
from proofs import often

from etude.harness.events import read_events
from etude.harness.turns import INTERRUPTED
from etude.models.chat import ChatRenderer

KILLS = often(24, 120)
MOST_LIVES = 80


@pytest.fixture(scope="module")
def processes():
    """Each life is a fresh process, forked from one that has everything imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["killed_session"])
    with pytest.MonkeyPatch.context() as patch:
        here = Path(__file__).parent
        patch.setenv("PYTHONPATH", os.pathsep.join([str(here), str(here.parents[1])]))
        forkserver.ensure_running()
    return context


def new_home(parent: Path, number: int, chat: ChatRenderer) -> Path:
    home = parent / str(number)
    (home / "workspace").mkdir(parents=True)
    (home / "workspace" / "ledger").touch()
    chat.tokenizer.save(str(home / "tokenizer.json"))
    return home


def live(processes, home: Path, seconds: float) -> bool:
    """One life of the session; whether it ended by itself. What was told to a listener must be in the log."""
    before = whole(home)
    ready, theirs = processes.Pipe()
    process = processes.Process(target=killed_session.main, args=(str(home), theirs))
    process.start()
    assert ready.poll(120), "the process did not start in 120 s"
    process.join(seconds)
    killed = process.is_alive()
    process.kill()
    process.join(120)
    assert killed or process.exitcode == 0, "the session failed by itself"
    after = whole(home)
    assert after[: len(before)] == before, "the log lost what it held"
    told = (home / "told").read_bytes().decode().splitlines() if (home / "told").exists() else []
    logged = [f"{event.kind} {event.at:.6f}" for event in events_of(home)]
    assert told == logged or told == logged[:-1], "a listener knew more than the log, or the log more than one step"
    with (home / "told").open("wb") as file:  # a kill may fall between the log's line and the listener's
        file.writelines(f"{line}\n".encode() for line in logged)
    return not killed


def whole(home: Path) -> bytes:
    path = home / "events.jsonl"
    data = path.read_bytes() if path.exists() else b""
    return data[: data.rfind(b"\n") + 1]


def events_of(home: Path):
    return read_events(home / "events.jsonl") if (home / "events.jsonl").exists() else []


def check(home: Path, chat: ChatRenderer) -> int:
    """Everything a session that has ended must be, however often it was killed; how many commands were interrupted."""
    events = events_of(home)
    assert [event.kind for event in events].count("prompt") == 1
    said = [event.data["text"] for event in events if event.kind == "completion"]
    assert said == [killed_session.message(number) for number in range(killed_session.TURNS + 1)]
    ledger = collections.Counter((home / "workspace" / "ledger").read_text().splitlines())
    assert max(ledger.values()) == 1, f"a command ran twice: {ledger}"
    results = collections.Counter((e.data["turn"], e.data["index"]) for e in events if e.kind == "tool_result")
    calls = {(e.data["turn"], e.data["index"]): e.data for e in events if e.kind == "tool_call"}
    assert set(results) == set(calls) and max(results.values()) == 1
    interrupted = 0
    for event in events:
        if event.kind == "tool_result" and event.data["name"] == "run_terminal_cmd":
            number = calls[event.data["turn"], event.data["index"]]["arguments"]["command"].split()[2]
            if event.data["text"] == INTERRUPTED:
                interrupted += 1
            else:
                assert event.data["text"] == f"ran {number}" and ledger[f"end {number}"] == 1
    assert_context_follows(home, chat)
    return interrupted


def assert_context_follows(home: Path, chat: ChatRenderer) -> None:
    """The context brought back from the log is the one a model would be given, token by token."""
    session = killed_session.open_session(home)
    session.log.journal.close()
    segment = session.dialogue.seal("turns")
    texts = [event.data for event in events_of(home) if event.kind == "completion"]
    assert chat.decode(segment.token_ids[segment.sampled].tolist()) == "".join(data["text"] for data in texts)
    assert sorted(set(segment.versions[segment.sampled].tolist())) == list(range(len(texts)))
    assert (segment.logprobs[segment.sampled] < 0).all() and not segment.logprobs[~segment.sampled].any()
    assert len(segment.token_ids) == texts[-1]["context"]


@pytest.mark.timeout(240)
def test_a_session_survives_being_killed_at_a_hundred_random_moments(
    tmp_path: Path, chat: ChatRenderer, processes
) -> None:
    seed = time.time_ns()
    random_ = random.Random(seed)
    kills = interrupted = sessions = 0
    while kills < KILLS:
        home = new_home(tmp_path, sessions, chat)
        lives = 0
        while not live(processes, home, 60 if lives > MOST_LIVES else random_.expovariate(1 / 0.12)):
            lives += 1
        interrupted += check(home, chat)
        kills, sessions = kills + lives, sessions + 1
    print(f"{kills} kills, {sessions} sessions, {interrupted} commands interrupted (seed {seed})")
    assert interrupted, "no kill met a running command: the commands are too short"


def test_two_processes_cannot_have_one_session(tmp_path: Path, chat: ChatRenderer) -> None:
    home = new_home(tmp_path, 0, chat)
    session = killed_session.open_session(home)
    with pytest.raises(Exception, match="another process has this session open"):
        killed_session.open_session(home)
    session.log.journal.close()
    killed_session.open_session(home).log.journal.close()


def test_a_prompt_after_a_kill_leaves_the_open_turn_at_that(tmp_path: Path, chat: ChatRenderer) -> None:
    home = new_home(tmp_path, 0, chat)

    class Killed(BaseException):
        pass

    def listener(event) -> None:
        if event.kind == "tool_started" and event.data["turn"] == 3:
            raise Killed

    killed = killed_session.open_session(home, listener)
    with pytest.raises(Killed):
        asyncio.run(killed_session.play(killed))
    killed.log.journal.close()
    session = killed_session.open_session(home)
    turn = session.state.turn
    assert turn.number == 3 and turn.started == {0} and not turn.results
    assert asyncio.run(session.prompt("Never mind.")) == "finished"
    texts = [e.data["text"] for e in session.log.events if e.kind == "tool_result" and e.data["turn"] == 3]
    assert texts[0] == INTERRUPTED and texts[1].startswith("error: not run")
    [*_, prompt] = [event for event in session.log.events if event.kind == "prompt"]
    assert prompt.data["user"] == "Never mind." and session.state.prompts == ["Work.", "Never mind."]
    session.log.journal.close()
