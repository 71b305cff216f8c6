"""What the server takes: for the streams of eight agents at work, and in memory after an hour of a run.

An agent's model here says what a script tells it to, at the pace of a fast one. What the agents themselves cost is in
the same process; it is measured while nobody listens, and taken off.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
from browser import Chromium, Tab
from made_run import Studio, make_run, studio
from scripted_openai import Reply
from studying import made, watch
from test_studio_work import git, post, working

AGENTS, PIECES_PER_S = 8, 30
_START_S = 300.0
PACE = {"steps_per_s": 0.14, "rollouts_per_s": 6.2}
"""The quickstart's (docs/results.md)."""
PARTS = 120
"""Of an hour, for its replay: half a minute of events at a time."""


def stream(chromium: Chromium, place: Path, seconds: float, rounds: int) -> dict[str, Any]:
    """By turns with everybody listening (one tab on the page of all agents, and one stream of all their sessions, as
    eight tabs would have them) and with nobody."""
    root = place / "work"
    (root / "runs").mkdir(parents=True)
    project = root / "project"
    project.mkdir()
    (project / "text.txt").write_text("a line\n")
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "first")):
        git(project, *words)
    heard, alone, told = [], [], 0
    with working(root, talking) as served:
        tasks = [f"This is task {number}." for number in range(1, AGENTS + 1)]
        team = post(served, "/work", 201, directory=str(project), tasks=tasks, mode="auto")
        topics = {"work": None, "runs": None, **{f"session/{each['session']}": None for each in team["agents"]}}
        _until_all_talk(served, list(topics))
        process = psutil.Process(served.process.pid)
        for _ in range(rounds):
            alone.append(_share(process, seconds))
            with listener(served, topics) as count, watch.fresh(chromium.browser) as context:
                tab = Tab(context, served)
                tab.go("/work")
                time.sleep(2)  # what has been said before is told first
                before = count()
                heard.append(_share(process, seconds))
                told += count() - before
        served.http.delete("/".join(("/api/work", team["id"])))
    share = statistics.median(heard) - statistics.median(alone)
    return {
        "stream_cpu_share": round(share, 3), "agents_cpu_share": round(statistics.median(alone), 3),
        "stream_events_per_s": round(told / (rounds * seconds), 1),
    }  # fmt: skip


def talking(request: dict[str, Any]) -> Reply:
    """Words without an end, a few characters at a time."""
    return Reply("It may be in the parser of dates. " * 5000, piece=5, pace_s=1 / PIECES_PER_S)


def _until_all_talk(served: Studio, topics: list[str]) -> None:
    """Raises SystemExit where some agent says nothing."""
    silent = {topic for topic in topics if topic.startswith("session/")}
    ends = time.monotonic() + _START_S
    with served.stream(dict.fromkeys(topics)) as events:
        for topic, _, data in events:
            if data.get("name") == "words":
                silent.discard(topic)
            if not silent:
                return
            if time.monotonic() > ends:
                raise SystemExit(f"after {_START_S:.0f} s {len(silent)} of {AGENTS} agents have said nothing")


@contextmanager
def listener(served: Studio, topics: dict[str, None]) -> Iterator[Any]:
    """In a process of its own: a client that reads all of a stream. Gives how many events it has had so far."""
    line = [sys.executable, "-u", "-c", READER, served.url, served.token, json.dumps(topics)]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    had = [0]

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            had[0] = int(line)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield lambda: had[0]
    finally:
        process.kill()
        process.wait(30)
        thread.join(30)


READER = """
import json, sys, httpx2
url, token, topics = sys.argv[1:]
headers = {"authorization": f"Bearer {token}"}
told = 0
body = {"topics": json.loads(topics)}
with httpx2.Client(timeout=100, trust_env=False, headers=headers) as client:
    with client.stream("POST", f"{url}/api/stream", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data:"):
                told += 1
                if told % 50 == 0:
                    print(told)
"""


def _share(process: psutil.Process, seconds: float) -> float:
    """Of one core, of the server alone: its sandboxes are other processes."""
    before, began = sum(process.cpu_times()[:2]), time.monotonic()
    time.sleep(seconds)
    return (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)


# --- an hour ----------------------------------------------------------------------------------------------------------


def memory(chromium: Chromium, place: Path) -> dict[str, Any]:
    """A run tells an hour's events while a tab follows it: what both hold at the beginning and at the end."""
    run = make_run(place / "runs/hour", 0, "hour")
    with studio(place / "home", place / "runs") as served, watch.fresh(chromium.browser) as context:
        process, id = psutil.Process(served.process.pid), served.id("hour")
        tab = Tab(context, served)
        tab.page.goto(f"{served.url}/#/run/{id}")
        tab.page.wait_for_timeout(2000)
        before = _megabytes(process), watch.heap_mb(tab.page)
        began, most = time.monotonic(), 0.0
        steps = 0
        for part in range(PARTS):
            made.tell_hour(run, range(part, part + 1), PARTS, PACE)
            _look(served, f"/api/runs/{id}/trajectories?limit=200")  # whoever looks has the index filled
            most = max(most, _megabytes(process))
            steps = math.floor(3600 * PACE["steps_per_s"] * (part + 1) / PARTS)
        watch.until(tab.page, SHOWS.replace("LAST", str(steps)))
        replayed = time.monotonic() - began
        return {
            "memory_mb": round(_megabytes(process), 1), "memory_most_mb": round(most, 1),
            "memory_before_mb": round(before[0], 1), "tab_memory_mb": round(watch.heap_mb(tab.page), 1),
            "tab_memory_before_mb": round(before[1], 1), "hour_rollouts": round(3600 * PACE["rollouts_per_s"]),
            "hour_steps": steps, "hour_bytes": made.size_of(run), "hour_replayed_s": round(replayed, 1),
        }  # fmt: skip


def _look(served: Studio, path: str) -> None:
    """In a connection of its own: one that is idle is closed by the server."""
    headers = {"authorization": f"Bearer {served.token}"}
    httpx2.get(f"{served.url}{path}", headers=headers, timeout=600, trust_env=False).raise_for_status()


SHOWS = (
    "[...document.querySelectorAll('[role=img]')].some((each) => each.getAttribute('aria-label').endsWith('to LAST'))"
)


def _megabytes(process: psutil.Process) -> float:
    return process.memory_info().rss / 1e6
