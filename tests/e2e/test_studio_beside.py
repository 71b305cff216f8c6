"""A real run with its studio beside it: what a tab is told while the run goes on, through deaths of both."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import httpx2
import psutil
import pytest
from small import command, left, steps, variables

sys.path.append(str(Path(__file__).parents[1] / "studio"))
from made_run import entered

pytestmark = pytest.mark.timeout(1800)


@pytest.mark.proof(60)
def test_a_run_is_followed_through_deaths_and_does_not_notice(tmp_path: Path) -> None:
    out = tmp_path / "run"
    line = [*command(out, "rollouts.max_steps=1000", "rollouts.max_minutes=60"), "--serve"]
    train = subprocess.Popen(
        line,
        env=variables(ETUDE_HOME=str(tmp_path / "home")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert train.stderr is not None and train.stdout is not None
        address = next(words for said in train.stderr for words in said.split() if "/#code=" in words)
        threading.Thread(target=train.stderr.read, daemon=True).start()  # a pipe that nobody reads fills up
        url, _, code = address.partition("/#code=")
        tab, beside = entered(url, code), _below(train.pid, "studio")
        with tab.stream({"runs": None}) as events:
            run = next(row["id"] for _, _, data in events for row in data.get("runs") or data.get("changed", ()))
        topics = dict.fromkeys(f"run/{run}/{name}" for name in ("steps", "live", "trajectories"))
        kept, told, phases, deaths = set[str](), list[int](), set[str](), list[int]()
        while not _enough(told, kept, phases):
            try:
                with tab.stream(topics) as events:
                    for name, cursor, data in events:
                        topics[name] = cursor or topics[name]
                        told += [data["step"]["step"]] if "step" in data else []
                        kept |= {row["id"] for row in data.get("rows", ())}
                        phases |= {data["live"]["phase"]} if "live" in data else set()
                        if len(told) == 2 and not deaths:
                            deaths.append(_below(train.pid, "--unsupervised"))
                            os.kill(beside, signal.SIGKILL)
                        if _enough(told, kept, phases):
                            break
            except httpx2.TransportError:
                assert deaths and train.poll() is None, "nobody has killed it"
                time.sleep(0.1)
        assert told == list(range(1, len(told) + 1)), "nothing is lost and nothing told twice"
        assert "training" in {phase["name"] for phase in tab.get(f"/runs/{run}")["phases"]}
        assert deaths == [_below(train.pid, "--unsupervised")], "the run goes on as it was"
        last = len(steps(out)) + 1  # only now may it end, and its studio with it
        words = ["runs", "set", str(out), f"rollouts.max_steps={last}"]
        subprocess.run([sys.executable, "-m", "etude.cli.main", *words], env=variables(), check=True, timeout=400)
        summary = json.loads(train.stdout.read().splitlines()[-1])
        assert train.wait(300) == 0 and summary["steps"] >= last
        assert not psutil.pid_exists(beside)
    finally:
        train.kill()
        train.wait()
    assert left() == []


def _enough(told: Sequence[int], kept: Iterable[str], phases: Iterable[str]) -> bool:
    """Whether the tab was told of two steps after the death, of a rollout of training, and of what goes on now."""
    return len(told) >= 4 and "g" in {id[0] for id in kept} and any(phases)


def _below(supervisor: int, word: str) -> int:
    """The process that it has started with this word in its command."""
    below = psutil.Process(supervisor).children()
    return next(each.pid for each in below if word in each.cmdline())
