"""Run directories as a run leaves them, made by what a run writes them with; and the studio as a process over them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from etude.archive.columns import split
from etude.archive.records import FileChange, Kept, KeptTask, Marks
from etude.archive.writer import ArchiveWriter
from etude.config import load_recipe
from etude.durable import write_whole
from etude.records import Cheated, Event, Scored
from etude.rollouts.claim import claim
from etude.rollouts.config import RunConfig
from etude.rollouts.lines import note

ROOT = Path(__file__).parents[2]
Json = dict[str, Any]
TASK = KeptTask("t1", "Fix the parser of dates.", ("dates.py", "check.py"), "sh /tests/test.sh", "train", {"rung": 3})
BEGUN = 1_790_000_000.0


def step_line(step: int, life: int = 0) -> Json:
    return {
        "step": step, "elapsed_s": 2.0 * step + life, "groups": {f"g{step}": [0, 1]}, "reward": float(np.sin(step / 9)),
        "solve_rate": 0.5, "parts": {"tests": 0.5}, "age_tokens": {"0": 90, "1": 10}, "loss": -1e-3 * step,
        "entropy": 0.04, "mean_age": 0.1, "dropped": {"zero_variance": step}, "version": step, "shortened": False,
        "trained_rollouts": 2, "trained_tokens": 100, "routes_given": 0, "publish_stall_ms": 0.0, "snapshot_ms": 1.0,
        "save_stall_ms": 0.0,
        "used": {}, "max_abs_dlogp": 0.0,
    }  # fmt: skip


def add_steps(run: Path, numbers: Sequence[int], life: int = 0) -> None:
    for step in numbers:
        note(run / "metrics.jsonl", "step", step_line(step, life))
        delivered = {"version": step, "root": "ab", "delta_bytes": 10, "raw_bytes": 100, "changed_share": 0.1}
        times = {"publish_ms": 3.0, "pause_ms": 1.0, "lag_ms": 5.0, "engines": {"engine 0": 1.0}}
        note(run / "metrics.jsonl", "delivery", delivered | times)


def make_run(run: Path, steps: int = 3, name: str = "made", summary: bool = False) -> Path:
    """A run that has been claimed and let go again, with so many steps."""
    config = load_recipe(ROOT / "recipes/quickstart.toml", RunConfig, [f"name={name}"])
    claim(run, config, resume=False).file.close()
    note(run / "metrics.jsonl", "phase", {"name": "training", "tasks": 0})
    note(run / "metrics.jsonl", "rollout", {"id": "g1/0", "group": "g1", "reward": None, "failed": "sandbox"})
    add_steps(run, range(1, steps + 1))
    note(run / "metrics.jsonl", "restart", {"process": "engine", "why": "signal 9"})
    if summary:
        write_whole(run / "summary.json", json.dumps({"base_pass1": 0.2, "pass1": 0.4, "steps": steps}).encode())
    return run


def log(calls: Sequence[tuple[str, Json]], last: str, version: int, result: str) -> Iterator[tuple[Event, Json]]:
    def reply(ids: list[int], by: int) -> Json:
        return {"ids": ids, "logprobs": [-0.5] * len(ids), "versions": [by] * len(ids)}

    yield Event("session", 0.0, {"id": "s", "toolset": "small", "tools": ["read_file"]}), {}
    yield Event("prompt", 0.1, {"system": "You are.", "user": "Fix it.", "tokens": 3}), {"ids": [1, 2, 3]}
    said = "<think>Hm.</think>I look.<tool_call>\n…"
    yield Event("completion", 0.5, {"turn": 1, "text": said, "tokens": 2, "version": version}), reply([7, 8], version)
    for index, (tool, arguments) in enumerate(calls):
        yield Event("tool_call", 0.6, {"turn": 1, "index": index, "name": tool, "arguments": arguments}), {}
        yield Event("tool_started", 0.61, {"turn": 1, "index": index, "name": tool}), {}
        told = {"turn": 1, "index": index, "name": tool, "text": result, "error": index == 1}
        yield Event("tool_result", 0.9, told), {}
    yield Event("observation", 1.0, {"turn": 1, "tokens": 2}), {"ids": [20, 21]}
    about = {"turn": 2, "text": last, "tokens": 3, "version": version + 1}
    yield Event("completion", 1.9, about), reply([4, 5, 6], version + 1)
    yield Event("segment_sealed", 2.0, {"segment": "turns"}), {}
    yield Event("end", 2.0, {"stop": "finished", "usage": {"turns": 2}}), {}


SAMPLED, TOTAL = 5, 10


def kept(id: str, reward: float = 1.0, result: str = "def parse(): ...", **more: Any) -> Kept:
    calls = more.pop("calls", (("read_file", {"path": "dates.py"}), ("grep", {"pattern": "parse(date)"})))
    told: Json = {
        "task": TASK, "outcome": Scored(reward, {"tests": reward}), "findings": (), "usage": {"turns": 2},
        "conduct": {"calls": 2}, "environment": {"backend": "namespace"}, "seed": 5, "temperature": 1.0, "attempt": 1,
        "worker": "here/1", "begun_at": BEGUN, "ended_at": BEGUN + 3,
        "files": (FileChange("dates.py", b"a\nold\nb\n", b"a\nnew\nb\n"),), "verifier": "ok\n",
    }  # fmt: skip
    tokens, said = split(log(calls, more.pop("last", "Done."), more.pop("version", 3), result))
    return Kept(id=id, group_id=id.rpartition("/")[0], tokens=tokens, said=said, **(told | more))


def marks(id: str) -> Marks:
    mask = np.zeros(SAMPLED, np.uint8)
    mask[2] = 1
    nothing = np.where(mask == 1, np.float32(np.nan), np.arange(SAMPLED, dtype=np.float32))
    return Marks(id, np.full(SAMPLED, 0.5, np.float32), -nothing / 7, nothing / 3, mask)


def archive(run: Path, groups: int = 3) -> None:
    """Two trajectories a group, one solved; the last group was not trained on, and has a cheat."""
    with ArchiveWriter(run) as writer:
        for group in range(1, groups + 1):
            writer.keep(kept(f"g{group}/0", worker="here/1"))
            writer.keep(kept(f"g{group}/1", 0.0, worker="here/2", calls=(("grep", {"pattern": "date"}),)))
        cheat = Cheated("it wrote `check.py > result`")
        findings = ("it changed its verifier by 'parse(date)'",)
        writer.keep(kept(f"g{groups}/2", outcome=cheat, findings=findings))
        for group in range(1, groups):
            writer.mark(group, [marks(f"g{group}/{member}") for member in (0, 1)])


SOLVED = {"base": (), "after": ("eval-1", "eval-2", "heldout-1"), "control": ("eval-1",)}


def evaluate(run: Path) -> None:
    """What a run leaves of its evaluations, of four tasks: rates of three policies, and some of the sessions."""
    from etude.rollouts.evaluate import Judged, as_json

    usage = {"turns": 3, "tool_calls": 4, "parallel_turns": 1, "error_observations": 0, "malformed_calls": 0}
    for policy, solved in SOLVED.items():
        played = [
            Judged(task, task[:-2], int(task[-1]), task in solved, "Scored", "bug", "shape", usage, task in solved, 0)
            for task in ("eval-1", "eval-2", "heldout-1", "heldout-2")
        ]
        write_whole(run / f"evaluation-{policy}.json", json.dumps(as_json(played)).encode())
    calls = (("grep", {"pattern": "date"}), ("run_terminal_cmd", {"command": "python3 check.py"}))
    with ArchiveWriter(run) as writer:
        for id, reward, turns in (
            ("after/eval-1/0", 1.0, 1), ("after/eval-2/0", 1.0, 3), ("after/heldout-2/0", 0.0, 2),
            ("control/eval-2/0", 0.0, 2),
        ):  # fmt: skip
            task = replace(TASK, id=id.split("/")[1], split="eval")
            more = {"calls": calls} if id.startswith("after") else {}
            writer.keep(kept(id, reward, task=task, usage={"turns": turns}, **more))


class Studio:
    """The server in a process of its own, and a client that has come in by its code."""

    def __init__(self, home: Path, *places: Path | str, port: int = 0, more: Sequence[str] = ()) -> None:
        line = [sys.executable, "-m", "etude.cli.main", "studio", *map(str, places), "--port", str(port), "--json"]
        env = {**os.environ, "ETUDE_HOME": str(home)}
        self.process = subprocess.Popen(
            [*line, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        )
        assert self.process.stdout is not None
        told = self.process.stdout.readline()
        assert told, self.process.stderr.read() if self.process.stderr else ""
        self.told = json.loads(told)
        self.url, self.code = self.told["url"], self.told["open"].partition("#code=")[2]
        self.token = Path(self.told["token_file"]).read_text().strip()
        self.http = _client(self.url, self.token)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def get(self, path: str, status: int = 200) -> Json:
        answer = self.http.get(f"/api{path}")
        assert answer.status_code == status, answer.text[:2000]
        return answer.json()

    def id(self, name: str) -> str:
        return next(run["id"] for run in self.get("/runs")["runs"] if run["name"] == name)

    @contextlib.contextmanager
    def listening(self, **topics: str | None) -> Iterator[Iterator[tuple[str, str, Json]]]:
        """(topic, cursor, data) of each event, as it comes. Names of topics have __ for /."""
        asked = {name.replace("__", "/"): cursor for name, cursor in topics.items()}
        with self.stream(asked) as events:
            yield events

    @contextlib.contextmanager
    def stream(self, topics: dict[str, str | None]) -> Iterator[Iterator[tuple[str, str, Json]]]:
        with self.http.stream("POST", "/api/stream", json={"topics": topics}) as response:
            assert response.status_code == 200, response.read()
            yield _events(response)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.http.close()
        self.process.send_signal(number)
        code = self.process.wait(100)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe:
                pipe.close()
        return code


def entered(url: str, code: str) -> Studio:
    """A tab at a server that somebody else has started."""
    tab = Studio.__new__(Studio)
    answer = httpx2.post(f"{url}/api/enter", json={"code": code}, timeout=100, trust_env=False)
    assert answer.status_code == 200, answer.text
    tab.url, tab.token = url, answer.json()["token"]
    tab.http = _client(url, tab.token)
    return tab


def _client(url: str, token: str) -> httpx2.Client:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx2.Client(base_url=url, headers=headers, timeout=100, trust_env=False)


def _events(response: httpx2.Response) -> Iterator[tuple[str, str, Json]]:
    name = id = data = ""
    for line in response.iter_lines():
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if key == "event":
            name = value
        elif key == "id":
            id = value
        elif key == "data":
            data = value
        elif not line and data:
            yield name, id, json.loads(data)
            name = id = data = ""


@contextlib.contextmanager
def studio(home: Path, *places: Path | str, port: int = 0, more: Sequence[str] = ()) -> Iterator[Studio]:
    served = Studio(home, *places, port=port, more=more)
    try:
        yield served
    finally:
        if served.process.poll() is None:
            assert served.stop() == 0
