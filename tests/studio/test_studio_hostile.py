"""Directories of runs that somebody made to harm whoever looks at them: nothing elsewhere is read, nothing waits."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from made_run import Studio, add_steps, archive, kept, make_run, marks, studio
from proofs import often
from test_studio_archive import bench

from etude.archive.writer import ArchiveWriter
from etude.rollouts.lines import note
from etude.studio.files import Directory
from etude.studio.report import write_report
from etude.studio.run import Run
from etude.studio.runs import Runs
from etude.studio.stream import streamed
from etude.studio.topic import Told, Topic

SECRET = "the user's own secret"


def everything(served: Studio, id: str) -> list[tuple[int, str]]:
    """What all routes answer about a run."""
    one = "/trajectories/g1~0"
    paths = ["", "/curves?names=reward,loss", "/live", "/versions", "/plan", "/trajectories", "/trajectories/count",
             "/trajectories/values", one, f"{one}/tokens", "/groups/g1", "/steps/1"]  # fmt: skip
    answers = [served.http.get(f"/api/runs/{id}{path}") for path in paths]
    return [(answer.status_code, answer.text) for answer in answers]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """What no run's directory may lead to."""
    place = tmp_path / "outside"
    place.mkdir()
    lines = [{"kind": "step", "step": 1, "reward": 1.0, SECRET: 2.0}, {"kind": "phase", "name": SECRET, "at": 1.0}]
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in ("recipe.json", "summary.json"):
        (place / name).write_text(json.dumps({"name": SECRET, "counters": {SECRET: 1}}))
    return place


def test_links_lead_nowhere(tmp_path: Path, outside: Path) -> None:
    run = make_run(tmp_path / "runs" / "first", 2)
    for name in ("metrics.jsonl", "summary.json"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(outside / name)
    (run / "control.sock").symlink_to(outside / "recipe.json")
    (tmp_path / "runs" / "linked").symlink_to(outside)
    with studio(tmp_path / "home", tmp_path / "runs") as served:
        rows = served.get("/runs")["runs"]
        assert [row["name"] for row in rows] == ["first"], "a link below a place is no run"
        told = everything(served, rows[0]["id"])
        assert not [text for _, text in told if SECRET in text]
        assert {status for status, _ in told} <= {200, 400, 404}


@pytest.mark.parametrize("where", ["archive", "archive/chunks", "archive/index.sqlite", "archive/chunks/000001.chunk",
                                   "archive/index.lock", "archive/notes.jsonl", "ledger"])  # fmt: skip
def test_an_archive_with_a_link_in_it_is_not_read(tmp_path: Path, outside: Path, where: str) -> None:
    run = make_run(tmp_path / "runs" / "first", 2)
    archive(run)
    (run / "ledger").mkdir()
    place = run / where
    kept = tmp_path / "kept"
    if place.exists():
        shutil.move(place, kept)
    elif where.endswith(("sqlite", "lock", "jsonl")):
        kept.write_text("")
    before = kept.read_bytes() if kept.is_file() else b""
    place.symlink_to(kept)
    with studio(tmp_path / "home", run) as served:
        told = everything(served, served.id("first"))
        refused = [json.loads(text)["error"] for status, text in told if status == 409]
        assert len(refused) == 7 and all("its archive is not read" in error["message"] for error in refused)
    assert not kept.is_file() or kept.read_bytes() == before


def test_nothing_waits_for_a_pipe(tmp_path: Path) -> None:
    for number, names in enumerate([("recipe.json",), ("metrics.jsonl", "summary.json", "run.lock", "control.sock"),
                                    ("archive/chunks/000009.chunk",)]):  # fmt: skip
        run = make_run(tmp_path / "runs" / f"run{number}", 2)
        archive(run)
        for name in names:
            (run / name).unlink(missing_ok=True)
            os.mkfifo(run / name)
    (tmp_path / "runs/bench").mkdir()
    os.mkfifo(tmp_path / "runs/bench/results.jsonl")
    with studio(tmp_path / "home", tmp_path / "runs") as served:
        rows = served.get("/runs")["runs"]
        assert sorted(row["name"] for row in rows) == ["run1", "run2"]
        for row in rows:
            assert {status for status, _ in everything(served, row["id"])} <= {200, 400, 404, 409}
        assert list(served.get("/bench")["unread"]) == [str(tmp_path / "runs/bench")]


def test_a_socket_that_never_answers_holds_nobody_up(tmp_path: Path) -> None:
    from etude.config import load_recipe
    from etude.rollouts.claim import claim
    from etude.rollouts.config import RunConfig

    run = make_run(tmp_path / "run", 2)
    config = load_recipe(Path(__file__).parents[2] / "recipes/quickstart.toml", RunConfig, ["name=made"])
    with claim(run, config, resume=True).file, socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(run / "control.sock"))
        deaf.listen()
        with studio(tmp_path / "home", run) as served:
            live = served.get(f"/runs/{served.id('run')}/live")
            assert live["state"] == "running" and live["busy"] is None
            deaf.setblocking(False)
            assert deaf.accept()[0].recv(100) == b'{"command": "watch"}\n', "it was asked"


DEEP = json.loads('{"a":' * 400 + "[]" + "}" * 400)
ODD = [
    {"kind": "step"}, {"kind": "step", "step": "one"}, {"kind": "step", "step": -4}, {"kind": "step", "step": 1e300},
    {"kind": "step", "step": [1]}, {"kind": ["step"]}, {"kind": "step", "step": 3, "groups": 7, "age_tokens": [1]},
    {"kind": "delivery", "version": {}}, {"kind": "delivery", "version": 9, "root": [1], "delta_bytes": "many",
     "pause_ms": {}, "engines": [1]}, {"kind": "delivery", "version": 10, "engines": {"e" * 999: "x"}, "lag_ms": "x"},
    {"kind": "phase", "name": {"a": 1}, "at": "then"}, {"kind": "phase", "at": 1}, {"kind": "restart", "at": []},
    {"kind": "rollout", "failed": ["x" * 9999]}, {"at": {}}, {"kind": "findings", "findings": DEEP},
    {"kind": "step", "step": 4, "at": 1e308, "parts": {"a": {"b": {"c": {"d": {"e": 1}}}}}, "dropped": {"x": -1}},
]  # fmt: skip


def test_lines_of_any_shape_make_no_bug(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "first", 2)
    metrics = run / "metrics.jsonl"
    for row in ODD:
        note(metrics, row.get("kind", "odd"), row)
    many = {"kind": "step", "step": 5, **{f"name{at}": at for at in range(20_000)}}
    with metrics.open("ab") as file:
        file.write(b'{"kind": "step", "step": ' + b"9" * 10_000 + b"}\n" + b"[" * 200_000)
        file.write(b"\n\xff\xfe\0\n[]\n7\nnull\n" + json.dumps(many).encode() + b"\n")
        file.write(b'{"kind": "step", "step": 6, "' + b"n" * 500 + b'": 1}\n')
    (run / "summary.json").write_text(json.dumps({"counters": DEEP, "deep": DEEP}))
    with studio(tmp_path / "home", run) as served:
        id = served.id("first")
        told = everything(served, id)
        assert {status for status, _ in told} <= {200, 400, 404}, told
        names = served.get(f"/runs/{id}/curves")["names"]
        assert "reward" in names and len(names) < 2500 and max(map(len, names)) < 150
        with served.stream({f"run/{id}/steps": "0.0"}) as events:
            steps = [next(events)[2] for _ in range(7)]
        assert [each["step"]["step"] for each in steps[1:]] == [1, 2, 3, 4, 5, 6]
        assert served.process.poll() is None
    for name in ("recipe.json", "run.lock", "summary.json"):
        for text in (b"\xff", b"[]", b"{", b"[" * 100_000, b'{"name": ' + b"9" * 5000 + b"}"):
            (run / name).write_bytes(text)
            Runs([run]).rows()


def test_arguments_nested_as_deep_as_a_model_likes_are_shown(tmp_path: Path) -> None:
    """And what is as long as a model likes is cut; a report of it is written, too."""
    run = make_run(tmp_path / "run", 1)
    calls = (("grep", {"deep": DEEP, "long": ["x" * 100] * 100_000}), ("grep", {"list": [DEEP] * 9}))
    with ArchiveWriter(run) as writer:
        writer.keep(kept("g1/0", calls=calls))
        writer.mark(1, [marks("g1/0")])
    with studio(tmp_path / "home", run) as served:
        told = everything(served, served.id("run"))
        assert [status for status, _ in told].count(200) == len(told) - 1, "all but the plan"
        assert max(len(text) for _, text in told) < 100_000
    asyncio.run(write_report(run, tmp_path / "report.html"))


def test_results_that_are_none_are_told_of_beside_those_that_are(tmp_path: Path) -> None:
    bench(tmp_path / "runs/sound", "sound", [True, False, False, None])
    head = (tmp_path / "runs/sound/results.jsonl").read_text().partition("\n")[0]
    odd = ["[" * 100_000, "[]", "7", "", '{"schema": 1, "name": "x"}', head + "\n[]\n{}", head + '\n{"attempt": 1e999}']
    for number, text in enumerate(odd):
        (tmp_path / f"runs/odd{number}").mkdir()
        (tmp_path / f"runs/odd{number}/results.jsonl").write_text(f"{text}\n")
    with studio(tmp_path / "home", tmp_path / "runs") as served:
        told = served.get("/bench")
        assert [row["name"] for row in told["runs"]] == ["sound"] and len(told["unread"]) == len(odd)


class Ticks(Topic):
    """Counts, and falls over at the numbers that it was given."""

    every_s = 0.01

    def __init__(self, falls: Sequence[int]) -> None:
        super().__init__(None)
        self._falls, self._at = falls, 0

    async def open(self) -> Told:
        return [("", {"opened": True})]

    async def new(self) -> Told:
        self._at += 1
        if self._at in self._falls:
            raise KeyError(self._at)
        return [(str(self._at), {"tick": self._at})]


def test_a_topic_that_falls_over_leaves_the_others_of_the_tab_alone() -> None:
    async def told() -> str:
        events, stopping = streamed({"sound": Ticks([]), "odd": Ticks([2, 3])}, asyncio.Event()), 0
        text = ""
        async with asyncio.timeout(60):
            async for event in events:
                text += event.decode()
                if (stopping := stopping + 1) > 20:
                    break
        await events.aclose()
        return text

    text = asyncio.run(told())
    assert text.count("a bug of the server: KeyError") == 1, "said once"
    assert '{"tick":5}' in text.partition("a bug of the server")[2] and "id: 4\n" in text
    assert "event: odd\nid: 4" in text, "it goes on when it can"


@pytest.mark.parametrize("cursor", ["0.\ud800", "0.\n\nevent: runs\ndata: {}", "1." + "a" * 99, "-1.0", "x"])
def test_a_cursor_that_is_none_is_refused(tmp_path: Path, cursor: str) -> None:
    with studio(tmp_path / "home", make_run(tmp_path / "run", 1)) as served:
        for topic in ("steps", "trajectories"):
            asked = json.dumps({"topics": {f"run/{served.id('run')}/{topic}": cursor}})
            answer = served.http.post("/api/stream", content=asked)
            assert answer.status_code == 400 and "is no cursor" in answer.text


def test_the_plan_of_a_recipe_loads_nothing_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it names it; nor does one that would be simulated for ever keep others waiting."""
    run = make_run(tmp_path / "run", 12)
    (tmp_path / "wicked").mkdir()
    (tmp_path / "wicked/__init__.py").write_text(f"open({str(tmp_path / 'loaded')!r}, 'w')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    recipe = json.loads((run / "recipe.json").read_text())
    changes = [
        (recipe["harness"], "tools", ["read_file", "wicked.x:tool"], "names code of its own"),
        (recipe["harness"], "tools", ["read_file", "lib2to3.__main__.x:it ends the process"], "names code of its own"),
        (recipe["rollouts"], "family", "wicked:a-b", "names code of its own"),
        (recipe["rewards"], "parts", {"wicked.x:Part": 1.0}, "names code of its own"),
        (recipe["rollouts"], "groups_per_step", 10**9, "are not simulated here"),
    ]
    with studio(tmp_path / "home", run) as served:
        for table, key, value, why in changes:
            before, table[key] = table[key], value
            (run / "recipe.json").write_text(json.dumps(recipe))
            add_steps(run, [99 - len(str(value))])  # it is planned anew where there is a new step
            said = served.get(f"/runs/{served.id('run')}/plan", 400)["error"]["message"]
            assert why in said
            table[key] = before
        assert served.process.poll() is None and not (tmp_path / "loaded").exists()


def test_names_of_any_kind(tmp_path: Path) -> None:
    names = [b"a\nb", b"\xff\xfe", b"<script>", "\u202etxt.exe".encode(), b"x" * 250, b"..hidden", b"a b", b"#?&"]
    for name in names:
        make_run(Path(os.fsdecode(bytes(tmp_path) + b"/runs/" + name)), 1)
    deep = tmp_path / "runs" / "/".join(["d" * 200] * 15)
    deep.mkdir(parents=True)
    shutil.copy(tmp_path / "runs" / "a b" / "recipe.json", deep / "recipe.json")
    with studio(tmp_path / "home", tmp_path / "runs") as served:
        rows = served.get("/runs")["runs"]
        assert len(rows) == len(names) - 1, "what is hidden, or lies too deep, is not looked for"
        for row in rows:
            assert row["id"].replace("-", "").replace(".", "").replace("_", "").isalnum()
            assert served.get(f"/runs/{row['id']}")["name"] == row["name"]


def test_many_runs_are_listed(tmp_path: Path) -> None:
    """A second look costs no reading of what has not changed."""
    first, count = make_run(tmp_path / "runs" / "r0", 3), often(300, 10_000)
    for number in range(1, count):
        place = tmp_path / "runs" / f"r{number}"
        place.mkdir()
        for name in ("recipe.json", "metrics.jsonl", "run.lock"):
            os.link(first / name, place / name)
    runs = Runs([tmp_path / "runs"])
    began = time.process_time()
    assert len(runs.rows()) == count
    took = time.process_time() - began
    reads = 0
    real = Directory.last

    def counted(self: Directory, name: str, most_bytes: int) -> list[bytes]:
        nonlocal reads
        reads += 1
        return real(self, name, most_bytes)

    Directory.last = counted  # ty: ignore[invalid-assignment]
    try:
        assert len(runs.rows(0.0)) == count
        place = tmp_path / "runs" / "r7"
        (place / "metrics.jsonl").unlink()
        add_steps(place, [1])
        runs._scanned_at = -1e9
        assert next(row for row in runs.rows(0.0) if row.name == "r7").steps == 1
    finally:
        Directory.last = real  # ty: ignore[invalid-assignment]
    assert reads == 1, took


def test_a_file_that_becomes_another_is_read_anew(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", 3)
    run = Run("r", Directory(path))
    run.refresh()
    (path / "metrics.jsonl").unlink()
    run.refresh()
    assert run.last_step == 0 and run.cuts == [0]
    add_steps(path, [1])
    run.refresh()
    assert run.last_step == 1
    (path / "metrics.jsonl").write_bytes(b"")
    run.refresh()
    assert run.last_step == 0
