"""Whole commands whose directory is on a disk that fills up while they work.

Each ends with one message that names the place and says what to do. When there is room the same command goes on, and
what had been written for good is what it goes on from.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from scripted_openai import Reply, ScriptedServer
from sick_disk import mounted
from small import ROOT, SMALL, left, lines

from etude.harness.store import SessionStore

pytestmark = pytest.mark.timeout(900)
ROOM = ("room", "space")


def etude(*words, **variables):
    command = [sys.executable, "-m", "etude.cli.main", *map(str, words)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=400)


def sets(*overrides):
    return [part for override in overrides for part in ("--set", override)]


def refused(done, place: Path) -> None:
    """What a user sees: no traceback, and at the end one line about the place and about room."""
    assert done.returncode not in (0, None), done.stdout
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("etude ") and str(place) in last and any(word in last for word in ROOM), done.stderr[-3000:]


def test_a_benchmark(tmp_path):
    place = tmp_path / "disk"
    out = place / "run"
    command = ["bench", "run", "--ladder", "1", "--solution", "1", "--attempts", "3", "--out", out, "--json"]
    with mounted(place, "32k") as disk:
        refused(etude(*command), place)
        before = (out / "attempts.jsonl").read_bytes()
        disk.remount("size=8m")
        done = etude(*command, "--resume")
        assert done.returncode == 0, done.stderr[-3000:]
        kept = before[: before.rfind(b"\n") + 1]
        assert kept and (out / "attempts.jsonl").read_bytes().startswith(kept)
        attempts = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()[1:]]
        assert len(attempts) == len({(each["task"], each["attempt"]) for each in attempts}) == 15
    assert left() == []


def agent(outer: Path, server, *more):
    words = ["agent", "--print", "--endpoint", server.url, "--model", "m", "--dir", outer / "project", *more]
    return [*words, *sets("max_turns=99")]


def writing(count: int):
    """A model that writes so many files, one a turn, and talks as it does."""

    def reply(body) -> Reply:
        n = sum(message["role"] == "tool" for message in body["messages"])
        call = ("write_file", {"path": f"{n}.txt", "content": "b" * 9_000})
        return Reply("Done.") if n == count else Reply("a" * 9_000, [call])

    return reply


def written(outer: Path) -> list[str]:
    return sorted(path.name for path in (outer / "project").glob("*.txt"))


@pytest.fixture
def project(outer):
    (outer / "project").mkdir()
    return outer


def test_a_session(tmp_path, project):
    """Each time there is a little more room it goes on from where it was. Nothing that was logged changes."""
    place = tmp_path / "disk"
    with mounted(place, "128k") as disk, ScriptedServer(writing(9)) as server:
        home = {"ETUDE_HOME": str(place / "home"), "XDG_CONFIG_HOME": str(project / "config")}
        refused(etude(*agent(project, server, "Write them."), **home), place)
        [log] = (place / "home" / "sessions").glob("*/events.jsonl")
        asked = []
        for room in range(160, 1600, 64):
            before = log.read_bytes()
            asked.append(len(server.requests))
            disk.remount(f"size={room}k")
            done = etude(*agent(project, server, "--resume", log.parent.name), **home)
            assert before and log.read_bytes().startswith(before[: before.rfind(b"\n") + 1])
            if done.returncode == 0:
                break
            refused(done, place)
        assert done.stdout == "Done.\n" and written(project) == [f"{n}.txt" for n in range(9)]
        assert len(set(asked)) > 2, "it was to be stopped before, between and after answers"
        kinds = [event.kind for event, _ in SessionStore(place / "home").events(log.parent.name)]
        assert kinds.count("completion") == kinds.count("tool_call") + 1 == 10


PRETRAINED = (
    "python_definitions=20", "tokenizer.drills=40", "recording.sessions=4", "midtraining.tokens_per_step=1024",
    'midtraining.stages=[{tokens=4096, mixture={drills=0.5, sessions=0.5}}]', "midtraining.checkpoint_every=1",
)  # fmt: skip


def test_a_base_model(tmp_path):
    place = tmp_path / "disk"
    out = place / "base"
    command = ["pretrain", ROOT / "recipes/base.toml", "--out", out, "--json", *sets(*PRETRAINED)]
    with mounted(place, "64k") as disk:
        for size in ("1m", "8m", "300m"):
            refused(etude(*command), place)
            there = {path.name: path.read_bytes() for path in out.glob("*") if path.is_file()}
            disk.remount(f"size={size}")
        done = etude(*command)
        assert done.returncode == 0, done.stderr[-3000:]
        assert there["tokenizer.json"] == (out / "tokenizer.json").read_bytes()
        assert there["sessions.npz"] == (out / "sessions.npz").read_bytes()
        logged = [json.loads(line)["step"] for line in (out / "log.jsonl").read_text().splitlines()]
        assert logged == list(range(1, json.loads(done.stdout)["steps"] + 1))
    assert left() == []


def test_a_run(tmp_path):
    """No sample is lost and none trained twice: the run's own accounting, which ends it where that is not so."""
    place = tmp_path / "disk"
    out = place / "run"
    recipe = sets(*SMALL, "rollouts.max_steps=3", "rollouts.max_minutes=6", "faults.journal=true")
    command = ["train", ROOT / "recipes/quickstart.toml", "--out", out, "--json", *recipe]
    with mounted(place, "8m") as disk:
        refused(etude(*command), place)
        trained = [line["step"] for line in lines(out, "step")]
        disk.remount("size=500m")
        done = etude(*command, "--resume")
        assert done.returncode == 0, done.stderr[-3000:]
        summary = json.loads(done.stdout.splitlines()[-1])
        assert (summary["steps"], summary["lost"], summary["trained_twice"]) == (3, 0, 0)
        assert sorted({line["step"] for line in lines(out, "step")}) == [1, 2, 3] and set(trained) <= {1, 2, 3}
    assert left() == []
