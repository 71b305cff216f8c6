"""A real run with its studio beside it: what a tab is told while the run goes on, through deaths of both."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import psutil
import pytest
from small import command, left, steps, variables

sys.path.append(str(Path(__file__).parents[1] / "studio"))
from made_run import entered

pytestmark = pytest.mark.timeout(420)


@pytest.mark.proof(60)
def test_a_run_is_followed_through_deaths_and_does_not_notice(tmp_path: Path) -> None:
    out = tmp_path / "run"
    line = [*command(out, "rollouts.max_steps=4", "rollouts.max_minutes=15"), "--serve"]
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
        url, _, code = address.partition("/#code=")
        tab, beside = entered(url, code), _studio_of(train.pid)
        with tab.stream({"runs": None}) as events:
            run = next(row["id"] for _, _, data in events for row in data.get("runs") or data.get("changed", ()))
        topics = dict.fromkeys(f"run/{run}/{name}" for name in ("steps", "live", "trajectories"))
        kept, told, phases, deaths = set[str](), list[int](), set[str](), 0
        while len(told) < 4 or "g" not in {id[0] for id in kept}:
            try:
                with tab.stream(topics) as events:
                    for name, cursor, data in events:
                        topics[name] = cursor or topics[name]
                        told += [data["step"]["step"]] if "step" in data else []
                        kept |= {row["id"] for row in data.get("rows", ())}
                        phases |= {data["live"]["phase"]} if "live" in data else set()
                        if len(told) == 2 and not deaths:
                            deaths += 1
                            os.kill(beside, signal.SIGKILL)
                        if len(told) >= 4 and kept:
                            break
            except httpx2.TransportError:
                assert deaths, "nobody has killed it"
        assert told == [1, 2, 3, 4], "nothing is lost and nothing told twice"
        assert "training" in phases
        summary = json.loads(train.stdout.read().splitlines()[-1])
        assert train.wait(120) == 0 and summary["restarts"] == {} and summary["steps"] == 4
        assert len(steps(out)) == 4 and deaths == 1 and not psutil.pid_exists(beside)
    finally:
        train.kill()
        train.communicate()
    assert left() == []


def _studio_of(supervisor: int) -> int:
    below = psutil.Process(supervisor).children()
    return next(each.pid for each in below if "studio" in each.cmdline())
