"""A session in a process of its own, to be killed at any moment and run again on what it left."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from directory_sandbox import DirectorySandbox
from tokenizers import Tokenizer

from etude.harness.config import HarnessConfig
from etude.harness.dialogue import TokenDialogue
from etude.harness.events import EventLog
from etude.harness.journal import Journal
from etude.harness.prompt import render_call, render_calls
from etude.harness.sampler import Completion, SampleRequest
from etude.harness.session import Session
from etude.models.chat import ChatRenderer
from etude.records import Event, Limits

LIMITS = Limits(max_turns=100, max_context_tokens=100_000, max_sampled_tokens=100_000, wall_s=60)
TURNS = 8


def command(number: int) -> str:
    """It tells the ledger when it starts and when it ends."""
    return f"echo start {number} >> ledger; sleep 0.0{number % 3}; echo end {number} >> ledger; echo ran {number}"


def message(number: int) -> str:
    """What the model says in its turn `number`: a command, one beside a read, two in order, or words."""
    if number >= TURNS:
        return "Done."
    calls = [("run_terminal_cmd", {"command": command(number)})]
    if number % 3 == 1:
        calls.append(("read_file", {"path": "ledger"}))
    if number % 3 == 2:
        calls.append(("run_terminal_cmd", {"command": command(100 + number)}))
    return f"Step {number}.\n" + (render_calls(calls) if len(calls) > 1 else render_call(*calls[0]))


class FromContext:
    """A model that knows only its context, as an engine does: it says `script(how many messages it has written)`."""

    def __init__(self, chat: ChatRenderer, script: Callable[[int], str] = message) -> None:
        self.chat, self.script = chat, script
        self.header = chat.reply

    async def sample(self, request: SampleRequest) -> Completion:
        written = _count(list(request.prompt_ids), self.header) - 1
        ids = (*self.chat.encode(self.script(written)), self.chat.end_id)
        kept = ids[: request.max_tokens]
        logprobs = tuple(-0.1 - written - at / 7 for at in range(len(kept)))
        return Completion(kept, logprobs, (written,) * len(kept), "stop" if kept == ids else "length")


def _count(ids: list[int], part: list[int]) -> int:
    return sum(ids[at : at + len(part)] == part for at in range(len(ids) - len(part) + 1))


def open_session(home: Path, listener: Callable[[Event], None] | None = None) -> Session:
    chat = ChatRenderer(Tokenizer.from_file(str(home / "tokenizer.json")))
    config = HarnessConfig()
    dialogue = TokenDialogue(FromContext(chat), chat, config.chosen(), session_id="k", seed=3)
    log = EventLog(listener, Journal(home / "events.jsonl"))
    return Session(DirectorySandbox(home / "workspace"), dialogue, config, LIMITS, log)


async def play(session: Session) -> str:
    """Begin the session, or go on with it; to its end."""
    if session.state.prompts:
        return await session.resume()
    if not session.state.begun:
        session.begin(id="k", seed=3)
    return await session.prompt("Work.")


def main(home: str, ready: Connection) -> None:
    """Tell a file of each event that counts, once it does; and `ready` that the clock of this life runs."""
    ready.send(None)
    told = os.open(Path(home) / "told", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def listener(event: Event) -> None:
        os.write(told, f"{event.kind} {event.at:.6f}\n".encode())

    asyncio.run(play(open_session(Path(home), listener)))
