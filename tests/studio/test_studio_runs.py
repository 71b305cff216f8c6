"""Runs as the studio finds and follows them: over files that real writers make, cut, replace and remove."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from made_run import ROOT, Studio, add_steps, archive, make_run, step_line, studio

from etude.config import load_recipe
from etude.rollouts.claim import claim
from etude.rollouts.config import RunConfig
from etude.rollouts.lines import note
from etude.rollouts.stats import RunStats
from etude.serving.wire import dump
from etude.studio.columns import Columns, buckets, figures_of
from etude.studio.files import LONGEST_LINE, Directory, Tail
from etude.studio.run import Run


def run_of(path: Path) -> Run:
    run = Run("r", Directory(path))
    run.refresh()
    return run


# --- curves -----------------------------------------------------------------------------------------------------------


def test_no_value_vanishes_in_a_bucket() -> None:
    x = np.arange(10_000.0)
    values = np.sin(x / 50)
    values[4321], values[777], values[5000] = 99.0, -99.0, np.nan
    found = buckets(x, values, 100, 0, 9999)
    assert len(found["x"]) == len(found["last"]) == 100
    assert max(found["max"]) == 99.0 and min(found["min"]) == -99.0
    assert found["last"][-1] == pytest.approx(values[-1], rel=1e-6) and found["x"][-1] == 9999
    part = buckets(x, values, 400, 4300, 4340)
    assert part["x"] == [*map(float, range(4300, 4341))] and part["min"] == part["max"] == part["last"]
    assert buckets(x, values, 10, 20_000, 30_000) == {"x": [], "min": [], "max": [], "last": []}


def test_columns_grow_and_a_figure_that_comes_later_is_not_there_before() -> None:
    columns = Columns()
    for step in range(1000):
        columns.add(step, {"a": step, **({"b": 1.0} if step >= 500 else {})})
    assert columns.names == ["a", "b"] and np.isnan(columns["b"][:500]).all() and columns["b"][500:].sum() == 500
    assert columns["a"].tolist() == list(range(1000)) and np.isnan(columns["none"]).all()
    line = {"kind": "step", "a": {"b": {"c": 1, "d": "x"}}, "t": True, "n": None, "inf": float("inf"), "big": 10**400}
    assert figures_of(line, ("kind",)) == {"a.b.c": 1.0, "t": 1.0}


def test_curves_cost_their_new_lines_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(make_run(tmp_path / "run", 50))
    read = 0
    real = Run._line

    def counted(self: Run, row: dict, offset: int) -> None:
        nonlocal read
        read += 1
        real(self, row, offset)

    monkeypatch.setattr(Run, "_line", counted)
    run.refresh()
    assert read == 0
    add_steps(tmp_path / "run", [51, 52])
    run.refresh()
    assert read == 4 and run.last_step == 52
    assert run.step_line(51) == {"kind": "step", **step_line(51)} | {"at": run.step_line(51)["at"]}
    assert run.step_line(99) is None
    assert run.failures == {"sandbox": 1} and run.notes[0].data == {"process": "engine", "why": "signal 9"}


def test_a_line_that_is_cut_and_one_without_an_end(tmp_path: Path) -> None:
    metrics = make_run(tmp_path / "run", 2) / "metrics.jsonl"
    directory = Directory(tmp_path / "run")
    tail = Tail(directory, "metrics.jsonl")
    assert len(tail.read().lines) > 3
    with metrics.open("ab") as file:
        file.write(b'{"kind": "step", "step": 3')
    assert tail.read().lines == []
    run = run_of(tmp_path / "run")
    assert run.last_step == 2
    add_steps(tmp_path / "run", [3])  # ends what was cut
    run.refresh()
    assert run.last_step == 3
    with metrics.open("ab") as file:
        file.write(b"x" * (3 * LONGEST_LINE))
    assert tail.read().lines and tail.read().lines == []
    with metrics.open("ab") as file:
        file.write(b"x\n")
    add_steps(tmp_path / "run", [4])
    run.refresh()
    assert run.last_step == 4


# --- a run that is resumed --------------------------------------------------------------------------------------------


def test_steps_that_are_taken_back_are_told(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", 6)
    run = run_of(path)
    old = run.cursor()
    RunStats(path / "metrics.jsonl", {"steps": 3, "counters": {}}, step_line(4, life=1))
    run.refresh()
    assert run.cuts == [3] and run.last_step == 4, "the fourth is another life's"
    assert run.place_after(old) is None
    add_steps(path, [5], life=1)
    run.refresh()
    assert run.cuts == [3] and run.figures(4).step == 5


def test_a_stream_goes_on_after_its_cursors(tmp_path: Path) -> None:
    """Through a server that is killed; and is told of steps that a run took back meanwhile."""
    path = archive_run(tmp_path)
    topic, kept = None, None
    with studio(tmp_path / "home", tmp_path / "runs") as served:
        topic, kept = f"run/{served.id('first')}/steps", f"run/{served.id('first')}/trajectories"
        with served.stream({topic: "0.0", kept: None}) as events:
            told = [next(events) for _ in range(5)]
            assert [data for _, _, data in told[:2]] == [{"opened": True}] * 2
            assert [data["step"]["step"] for _, _, data in told[2:]] == [1, 2, 3]
            assert told[2][2]["step"]["figures"]["parts.tests"] == 0.5
            add_steps(path, [4])
            assert next(events)[2]["step"]["step"] == 4
            add_steps(path, [5])
            cursors = {name: id for name, id, _ in told if id} | {topic: next(events)[1]}
            port = served.port
            served.process.kill()
        served.process.wait()
        add_steps(path, [6, 7])
        archive_more(path)
    with studio(tmp_path / "home", tmp_path / "runs", port=port) as again:
        assert again.token == served.token, "tabs stay in"
        with again.stream(cursors) as events:
            told = [next(events) for _ in range(5)]
        assert [data["step"]["step"] for name, _, data in told if name == topic and "step" in data] == [6, 7]
        [rows] = [data for name, _, data in told if name == kept and "rows" in data]
        assert [row["id"] for row in rows["rows"]] == ["g9/0"] and rows["anew"] is False
        RunStats(path / "metrics.jsonl", {"steps": 4, "counters": {}}, step_line(5, life=1))
        with again.stream({topic: next(id for name, id, _ in reversed(told) if name == topic)}) as events:
            assert next(events)[2] == {"reset": True}
        with again.stream({topic: None}) as events:
            assert next(events)[2] == {"opened": True}
            add_steps(path, [6], life=1)
            assert next(events)[2]["step"]["step"] == 6
            RunStats(path / "metrics.jsonl", {"steps": 4, "counters": {}}, step_line(5, life=2))
            assert next(events)[2] == {"cut": 4}
            assert next(events)[2]["step"]["step"] == 5


def archive_run(root: Path) -> Path:
    path = make_run(root / "runs" / "first", 3)
    archive(path)
    return path


def archive_more(path: Path) -> None:
    from made_run import kept

    from etude.archive.writer import ArchiveWriter

    with ArchiveWriter(path) as writer:
        writer.keep(kept("g9/0"))


# --- runs that are found ----------------------------------------------------------------------------------------------

LIVING = """
import sys
from pathlib import Path
from made_run import ROOT
from etude.config import load_recipe
from etude.rollouts.claim import claim
from etude.rollouts.config import RunConfig
config = load_recipe(ROOT / "recipes/quickstart.toml", RunConfig, ["name=made"])
held = claim(Path(sys.argv[1]), config, resume=True)
print("held", flush=True)
sys.stdin.read()
"""


def test_what_state_a_run_is_in(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    make_run(runs / "ended", 2, summary=True)
    for name in ("stopped", "running"):
        make_run(runs / "deep" / name, 2)
    shutil.copytree(runs / "deep" / "stopped", runs / "copied")
    (runs / "no run").mkdir()
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}"}
    line = [sys.executable, "-c", LIVING, str(runs / "deep" / "running")]
    alive = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert alive.stdout is not None and alive.stdout.readline() == "held\n"
        with studio(tmp_path / "home", runs) as served:
            rows = {row["name"]: row for row in served.get("/runs")["runs"]}
            assert {name: row["state"] for name, row in rows.items()} == {
                name: name for name in ("ended", "stopped", "running", "copied")
            }
            assert rows["ended"]["figures"]["pass1"] == 0.4 and rows["ended"]["steps"] == 2
            assert served.get("/runs?text=deep&limit=1")["total"] == 2
            with served.stream({"runs": None}) as events:
                first = next(events)
                assert {row["name"] for row in first[2]["runs"]} == rows.keys()
                alive.send_signal(signal.SIGKILL)
                changed = next(events)[2]
                assert [(row["name"], row["state"]) for row in changed["changed"]] == [("running", "stopped")]
                make_run(runs / "new", 1)
                names = set[str]()
                while "new" not in names:
                    name, cursor, data = next(events)
                    names |= {row["name"] for row in data["changed"]}
                shutil.rmtree(runs / "new")
                gone = False
                while not gone:
                    _, cursor, data = next(events)
                    gone = bool(data["gone"])
            with served.stream({"runs": cursor}) as events:
                assert next(events)[2] == {"opened": True}
            assert served.get("/runs/nothing-here", 404)["error"]["kind"] == "not_found"
            gone = "run/nothing-here/steps"
            with served.stream({gone: None, "runs": None}) as events:  # who follows it is told, and of all else as ever
                told = {name: data for name, _, data in islice(events, 2)}
                assert "nothing-here" in told[gone]["failed"] and told["runs"]["runs"]
            assert served.http.post("/api/stream", json={"topics": {gone: None}}).status_code == 404
    finally:
        alive.kill()
        alive.communicate()


def test_a_run_in_full(tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs" / "first", 40)
    note(path / "metrics.jsonl", "step", {**step_line(41), "loss": float("inf"), "reward": float("nan")})
    with studio(tmp_path / "home", path) as served:
        id = served.id("first")
        detail = served.get(f"/runs/{id}")
        assert detail["keys"]["groups.size"] == 8 and detail["recipe"] == "made" and detail["summary"] is None
        assert [phase["name"] for phase in detail["phases"]] == ["training"] and detail["steps"] == 41
        assert detail["notes"][0]["kind"] == "restart" and detail["notes"][0]["at"] > 1e9
        curves = served.get(f"/runs/{id}/curves?names=reward,loss,delivery.lag_ms,none&buckets=10&from=1&to=41")
        assert curves["x"] == [1, 41] and {"reward", "parts.tests", "delivery.pause_ms"} <= set(curves["names"])
        assert len(curves["series"]["reward"]["x"]) == 10 and curves["series"]["none"]["x"] == []
        assert curves["series"]["loss"]["x"][-1] == 40, "what is infinite is no point"
        assert curves["series"]["delivery.lag_ms"]["max"] == [5.0] * 10
        with served.stream({f"run/{id}/steps": curves["cursor"]}) as events:
            assert next(events)[2] == {"opened": True}
            add_steps(path, [42])
            assert next(events)[2]["step"]["step"] == 42, "curves and stream fit each other"
        live = served.get(f"/runs/{id}/live")
        assert (live["state"], live["phase"], live["busy"]) == ("stopped", "training", None)
        assert live["failures"] == {"sandbox": 1, "zero_variance": 42}
        versions = served.get(f"/runs/{id}/versions?after=39&limit=1")
        assert versions["rows"][0]["version"] == 40 and versions["total"] == 42 and versions["next"] == 40
        assert versions["rows"][0]["deliveries"][0]["engine"] == "engine 0"
        assert served.get(f"/runs/{id}/versions?limit=1")["rows"][0]["kind"] == "base"
        said = served.get(f"/runs/{id}/plan", 400)["error"]["message"]
        assert "too few to learn rates from" in said
        for wrong in ("buckets=0&from=x", "names=" + ",".join(["a"] * 65), "unknown=1", "buckets=99999"):
            assert served.get(f"/runs/{id}/curves?{wrong}", 400)["error"]["kind"] == "invalid"


class Answers(threading.Thread):
    """A run's socket that answers as it is told, on a loop of its own."""

    def __init__(self, directory: Path, told: dict) -> None:
        super().__init__(daemon=True)
        self.directory, self.told = directory, told
        self.ready, self.done = threading.Event(), threading.Event()

    def run(self) -> None:
        import asyncio

        from etude.rollouts.live import ControlSocket

        async def answer(request: dict) -> str:
            assert request == {"command": "watch"}
            return json.dumps(self.told)

        async def serve() -> None:
            async with ControlSocket(self.directory, answer):
                self.ready.set()
                while not self.done.is_set():
                    await asyncio.sleep(0.01)

        asyncio.run(serve())


def test_what_a_living_run_tells(tmp_path: Path) -> None:
    """It is asked by its own socket; what is no answer of a run's is left out."""
    path = make_run(tmp_path / "runs" / "first", 2)
    config = load_recipe(ROOT / "recipes/quickstart.toml", RunConfig, ["name=made"])
    told = {
        "phase": "training", "elapsed_s": 3.5, "left_s": 60.0, "evaluated": 0, "to_evaluate": 0, "sandboxes": 4,
        "busy": {"engine": 0.5, "trainer": 0.25}, "throughput": {"samples_per_s": 2.0, "tokens_per_s": 900.0},
        "states": {"running": 4}, "figures": {},
        "slots": [{"id": "g1/0", "state": "running", "since": 1.0, "task": "t", "worker": "here/1"}],
        "watched": {"id": "g1/0", "instruction": "Fix.", "calls": [
            {"name": "grep", "arguments": "x", "result": "", "failed": None}]},
    }  # fmt: skip
    with claim(path, config, resume=True).file, studio(tmp_path / "home", path) as served:
        id = served.id("first")
        assert served.get(f"/runs/{id}/live")["busy"] is None, "it does not answer yet"
        answers = Answers(path, told)
        answers.start()
        assert answers.ready.wait(60)
        try:
            live = served.get(f"/runs/{id}/live")
            assert live["state"] == "running" and live["watched"] == told["watched"] and live["slots"] == told["slots"]
            with served.stream({f"run/{id}/live": None}) as events:
                assert next(events)[2] == {"opened": True}
                assert next(events)[2]["live"]["sandboxes"] == 4
                told["sandboxes"] = 5
                assert next(events)[2]["live"]["sandboxes"] == 5
            told["busy"] = "very"
            assert served.get(f"/runs/{id}/live")["busy"] is None
        finally:
            answers.done.set()
            answers.join()


def test_listeners_have_a_bound_and_are_let_go_at_the_end(tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs" / "first", 1)
    with studio(tmp_path / "home", path, more=["--set", "max_streams=1"]) as served:
        topic = {f"run/{served.id('first')}/steps": None}
        with served.stream(topic) as events:
            next(events)
            refused = served.http.post("/api/stream", json={"topics": topic})
            assert refused.status_code == 429 and "max_streams" in refused.json()["error"]["message"]
            served.process.send_signal(signal.SIGTERM)
            assert list(events) == [], "the stream ends by itself"
        assert served.process.wait(100) == 0
    assert isinstance(served, Studio)


def test_numbers_that_json_does_not_have_are_null() -> None:
    assert dump({"a": float("inf"), "b": (float("nan"), 1.5), "c": "NaN"}) == b'{"a":null,"b":[null,1.5],"c":"NaN"}'
