"""What the harness itself costs a turn, and what a thousand turns leave in memory.

    python benchmarks/harness.py [--turns 200] [--history 100000] [--latency-ms 100]

One session of the product's kind, in a real directory below the OS sandbox: a log that is synced to this machine's disk
before each command, a snapshot after each turn that changes files, contexts that are summarised. Its model is a script
that takes `--latency-ms` for a message; the time within it and within the sandbox is not the harness's, and all other
time between one message and the next is: the parser, the log, the waits for its disk and for snapshots, the tools'
own words, token ids in and out. Three turns of four only read; of the others one edits a file, one runs a command.

The last line is one JSON object. `mib_growth_1000_turns` is of the process's resident memory, from turn 100 on.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from etude.environments.local import open_workspace
from etude.harness.config import HarnessConfig, SummaryConfig
from etude.harness.dialogue import TokenDialogue
from etude.harness.events import EventLog
from etude.harness.prompt import render_call, render_calls
from etude.harness.sampler import Chat, Completion, SampleRequest
from etude.harness.session import Session
from etude.harness.store import SessionStore
from etude.harness.summary import REQUEST
from etude.models.chat import ChatRenderer
from etude.models.tokenizer import load_tokenizer
from etude.records import Limits

ROOT = Path(__file__).resolve().parent.parent
FILES, WARM_UP = 40, 100


class Outside:
    """A clock of the time in which somebody else is at work: the model, or the sandbox, or both."""

    def __init__(self) -> None:
        self.seconds, self._at_work, self._since = 0.0, 0, 0.0

    def __enter__(self) -> None:
        if not self._at_work:
            self._since = time.perf_counter()
        self._at_work += 1

    def __exit__(self, *_: object) -> None:
        self._at_work -= 1
        if not self._at_work:
            self.seconds += time.perf_counter() - self._since


class Timed:
    """A sandbox whose calls the clock knows of."""

    def __init__(self, sandbox: Any, outside: Outside) -> None:
        self._sandbox, self._outside = sandbox, outside

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._sandbox, name)

        async def timed(*arguments: Any, **options: Any) -> Any:
            with self._outside:
                return await method(*arguments, **options)

        return timed


class Script:
    """Writes `turns` messages, and a summary whenever it is asked for one; notes when each turn began."""

    def __init__(self, chat: Chat, turns: int, latency_s: float, outside: Outside) -> None:
        self._chat, self._turns, self.latency_s, self._outside = chat, turns, latency_s, outside
        self._request = chat.encode(REQUEST)[-40:-5]
        self.kinds: list[str] = []
        self.began: list[tuple[float, float]] = []
        """Of each turn: the time, and how much of it was the outside's until then."""
        self.memory: dict[int, float] = {}

    async def sample(self, request: SampleRequest) -> Completion:
        now, outside = time.perf_counter(), self._outside.seconds
        with self._outside:
            asked = self._is_asked(request.prompt_ids)
            if not asked:
                self.began.append((now, outside))
            if len(self.began) in (WARM_UP, self._turns):
                self.memory[len(self.began)] = resident_mib()
            await asyncio.sleep(self.latency_s)
            message = "All is well." if asked or len(self.began) > self._turns else self._message(len(self.began))
            ids = (*self._chat.encode(message), self._chat.end_id)
        return Completion(ids, (-0.5,) * len(ids), (0,) * len(ids), "stop")

    def _is_asked(self, ids: tuple[int, ...]) -> bool:
        tail, part = list(ids[-80:]), self._request
        return any(tail[at : at + len(part)] == part for at in range(len(tail) - len(part) + 1))

    def _message(self, number: int) -> str:
        path, other = f"f{number % FILES}.py", f"f{(number * 7 + 1) % FILES}.py"
        kind = ("read", "read", "read", "edit", "read", "read", "read", "command")[number % 8]
        self.kinds.append(kind)
        if kind == "edit":
            return render_call("write_file", {"path": path, "content": f"x = {number}\n" * 20})
        if kind == "command":
            return render_call("run_terminal_cmd", {"command": f"wc -l {path} {other}"})
        return "I look.\n" + render_calls([("read_file", {"path": path}), ("grep", {"pattern": "x", "path": other})])

    def overheads_ms(self) -> dict[str, list[float]]:
        """By kind of turn."""
        found: dict[str, list[float]] = {"read": [], "edit": [], "command": []}
        for kind, (start, outside), (end, later) in zip(self.kinds, self.began, self.began[1:], strict=False):
            found[kind].append(1000 * ((end - start) - (later - outside)))
        return found


def resident_mib() -> float:
    """What is in use, not what the allocator has not given back yet."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def play(home: Path, turns: int, history: int, latency_s: float) -> tuple[Script, dict[str, Any]]:
    """One session; what it counted."""
    workspace, chat = home / "workspace", ChatRenderer(load_tokenizer(ROOT / "models" / "etude-tiny"))
    workspace.mkdir()
    for number in range(FILES):
        (workspace / f"f{number}.py").write_text("x = 0\n" * 20)
    outside = Outside()
    script = Script(chat, turns, latency_s, outside)
    config = HarnessConfig(summary=SummaryConfig(trigger_tokens=history + 20_000, max_tokens=1000))
    limits = Limits(turns + 10, history + 60_000, 10**9, 10**6)
    dialogue = TokenDialogue(script, chat, config.chosen(), session_id="benchmark", seed=0)
    store = SessionStore(home / "state")
    with store.open("benchmark", new=True) as journal:
        sandbox = await open_workspace(workspace)
        try:
            shadow = store.shadow("benchmark", workspace)
            session = Session(
                Timed(sandbox, outside), dialogue, config, limits, EventLog(journal=journal), snapshots=shadow
            )
            session.begin(id="benchmark", workspace=str(workspace))
            stop = await session.prompt(text_of(chat, history))
        finally:
            await sandbox.destroy()
        kinds = [event.kind for event in session.log.events]
    assert stop == "finished" and session.state.usage["error_observations"] == 0, (stop, session.state.usage)
    return script, {
        "log_mib": round(os.path.getsize(journal.path) / 2**20, 1),
        "summaries": session.state.usage["summaries"],
        "snapshots": kinds.count("checkpoint"),
    }


def text_of(chat: Chat, tokens: int) -> str:
    """A long prompt: this repository's own source."""
    text, size = "", 0
    while size < tokens:
        for path in sorted((ROOT / "etude").rglob("*.py")):
            text += (source := path.read_text())
            size += len(chat.encode(source))
            if size >= tokens:
                break
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--turns", type=int, default=200, help="turns that are timed")
    parser.add_argument("--history", type=int, default=100_000, help="tokens of context from the first turn on")
    parser.add_argument("--latency-ms", type=float, default=100.0, help="how long a message takes the model")
    options = parser.parse_args()
    there = "/var/tmp"  # the sandbox has a /tmp of its own
    with tempfile.TemporaryDirectory(dir=there) as first, tempfile.TemporaryDirectory(dir=there) as second:
        timed, counts = asyncio.run(play(Path(first), options.turns, options.history, options.latency_ms / 1000))
        long, long_counts = asyncio.run(play(Path(second), WARM_UP + 1000, options.history, 0.0))
    by_kind = timed.overheads_ms()
    every = sorted(value for values in by_kind.values() for value in values)
    for kind, values in by_kind.items():
        print(f"{kind:8} {len(values):5} turns, overhead p50 {statistics.median(values):7.2f} ms")
    print(f"1,000 turns: {long_counts}")
    result = {
        "turn_overhead_ms_p50": round(statistics.median(every), 3),
        "turn_overhead_ms_p99": round(every[int(len(every) * 0.99)], 3),
        "writing_turn_overhead_ms_p50": round(statistics.median(by_kind["edit"] + by_kind["command"]), 3),
        "history_tokens": options.history,
        "turns": options.turns,
        "mib_growth_1000_turns": round(long.memory[WARM_UP + 1000] - long.memory[WARM_UP], 2),
        **counts,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
