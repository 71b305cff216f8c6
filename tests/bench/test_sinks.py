"""Sinks: what of a run is told, once each, over its lives; and what the libraries themselves have of it."""

import json
import math
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from installed import pip

from etude.bench.sinks import beside
from etude.bench.sinks.beside import Beside, sinks_of
from etude.bench.sinks.export import Tail, export
from etude.cli.main import main
from etude.durable import write_whole
from etude.errors import ConfigError, DeadlineExceeded, EtudeError

ROOT = Path(__file__).parents[2]
WRITTEN = """
import json, time

class Written:
    library = ""
    def start(self, run):
        self.file = (run.directory / "written.jsonl").open("a", buffering=1)
        print(json.dumps(["start", run.id, run.name, run.recipe["seed"]]), file=self.file)
    def log(self, figures, step):
        print(json.dumps(["log", step, figures]), file=self.file)
    def finish(self, figures):
        print(json.dumps(["finish", figures]), file=self.file)
        return self.file.name

class Broken(Written):
    def log(self, figures, step):
        raise KeyError("no such panel")

class Hanging(Written):
    def finish(self, figures):
        time.sleep(600)

class Absent(Written):
    library = "nobody_has_this"
"""


def step(number, reward=0.5):
    return {
        "kind": "step", "step": number, "version": number, "reward": reward, "grad_norm": 2.0 / number,
        "parts": {"tests": 0.6, "effort": -0.1}, "groups": {f"g{number}": [0, 1]}, "max_abs_dlogp": None,
        "shortened": number == 2, "divergence": math.nan, "mean_age": math.inf,
    }  # fmt: skip


def delivery(version):
    return {"kind": "delivery", "version": version, "root": "abc", "lag_ms": 7.0}


def written(run, *lines, torn=""):
    """The run's metrics, in a file of its own, as a run that is resumed leaves them."""
    write_whole(run / "metrics.jsonl", ("".join(json.dumps(line) + "\n" for line in lines) + torn).encode())


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "told.py").write_text(WRITTEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    directory = tmp_path / "small-3"
    directory.mkdir()
    (directory / "recipe.json").write_text(json.dumps({"name": "small", "seed": 3}))
    written(directory, step(1), delivery(1), {"kind": "rollout", "reward": 1.0}, step(2), torn='{"kind": "st')
    return directory


def told(run):
    return list(map(json.loads, (run / "written.jsonl").read_text().splitlines()))


def to(run, name):
    return main(["runs", "export", str(run), "--to", name, "--json"])


def test_every_number_is_told_by_the_name_it_has_in_the_metrics(run, capsys):
    assert to(run, "told:Written") == 0
    said = json.loads(capsys.readouterr().out)
    start, first, delivered, second, finish = told(run)
    assert start == ["start", said["id"], "small-3", 3] and said["sent"] == {"step": 2, "delivery": 1}
    assert math.isnan(first[2].pop("step/divergence")) and first[1:] == [1, {
        "step/version": 1, "step/reward": 0.5, "step/grad_norm": 2.0, "step/parts/tests": 0.6,
        "step/parts/effort": -0.1, "step/shortened": 0.0, "step/mean_age": math.inf,
    }]  # fmt: skip
    assert delivered[1:] == [1, {"delivery/lag_ms": 7.0}] and second[2]["step/shortened"] == 1.0
    assert finish == ["finish", {}], "it has not come to its end"


def test_a_resumed_run_has_the_same_id_and_tells_nothing_twice(run, capsys):
    to(run, "told:Written")
    written(run, step(1), delivery(1), step(2, reward=0.9), step(3), delivery(2))  # step 2 was made again
    (run / "summary.json").write_text(json.dumps({"pass1": 0.75, "pass1_ci": [0.5, 0.9], "delivery": {"lag_ms": 8}}))
    to(run, "told:Written")
    lines = told(run)
    first, second = (line[1] for line in lines if line[0] == "start")
    assert first == second
    assert [line[1] for line in lines if line[0] == "log"] == [1, 1, 2, 3, 2]
    assert lines[-1] == ["finish", {"summary/pass1": 0.75, "summary/delivery/lag_ms": 8}]


def test_the_tail_of_a_file_goes_on_where_another_takes_its_place(tmp_path):
    path, tail = tmp_path / "metrics.jsonl", Tail(tmp_path / "metrics.jsonl")
    assert tail.rows() == []
    path.write_text('{"at": 1}\n{"at": 2')
    assert tail.rows() == [{"at": 1}]
    with path.open("a") as file:
        file.write('}\nnonsense\n{"at": 3}\n')
    assert tail.rows() == [{"at": 2}, {"at": 3}] and tail.rows() == []
    write_whole(path, b'{"at": 1}\n{"at": 4}\n')
    assert tail.rows() == [{"at": 1}, {"at": 4}]


def test_figures_come_while_the_run_goes_on_and_the_last_with_its_end(run):
    with Beside(run, ["told:Written"]):
        until(lambda: (run / "written.jsonl").exists() and len(told(run)) == 4, "what is there is told")
        with (run / "metrics.jsonl").open("a") as file:
            file.write("\n" + json.dumps(step(3)) + "\n")
        until(lambda: told(run)[-1][1] == 3, "a new step is told")
        (run / "summary.json").write_text('{"pass1": 1.0}')
    assert told(run)[-1] == ["finish", {"summary/pass1": 1.0}]
    assert '"kind": "sink"' not in (run / "metrics.jsonl").read_text()


def until(happened, what, within_s=120.0):
    end = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < end, f"{what} within {within_s} s"
        time.sleep(0.05)


def failures(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [(row["name"], row["failed"]) for row in map(json.loads, (line for line in lines if '"sink"' in line))]


def test_a_sink_that_fails_is_named_once_and_the_others_go_on(run, capsys):
    with Beside(run, ["told:Broken", "told:Written"]):
        until(lambda: '"sink"' in (run / "metrics.jsonl").read_text(), "the failure is written down")
    assert failures(run) == [("told:Broken", "etude runs: told:Broken: KeyError: 'no such panel'")]
    said = capsys.readouterr().err
    assert said.count("told:Broken gets no more figures") == 1 and f"etude runs export {run} --to told:Broken" in said
    assert ["finish", {}] in told(run)


def test_a_sink_that_does_not_end_is_ended(run, capsys, monkeypatch):
    monkeypatch.setattr(beside, "FINISH_S", 0.5)
    with Beside(run, ["told:Hanging"]):
        until(lambda: (run / "written.jsonl").exists() and len(told(run)) == 4, "what is there is told")
    [(name, why)] = failures(run)
    assert (name, why.rpartition(" s ")[2]) == ("told:Hanging", "to end") and name in capsys.readouterr().err


def test_a_sink_has_one_process_at_a_time(run, monkeypatch):
    """A second one waits for the first, which is about to end, and says so where it does not."""
    monkeypatch.setattr("etude.bench.sinks.export.FINISH_S", 0.3)
    from told import Written

    def second():
        with pytest.raises(DeadlineExceeded, match="another process to end that tells told:Written of this run"):
            export(run, "told:Written", Written(), lambda: True)
        return True

    assert export(run, "told:Written", Written(), second)["sent"] == {"step": 2, "delivery": 1}


def test_what_an_earlier_life_was_told_to_report_to_is_gone_on_with(run):
    assert sinks_of(run, [], resume=True) == []
    to(run, "told:Written")
    assert sinks_of(run, [], resume=True) == ["told:Written"]
    assert sinks_of(run, ["told:Broken"]) == ["told:Broken"]


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("wandbb", ConfigError, "there is tensorboard, trackio, wandb"),
        ("told:Absent", EtudeError, "nobody_has_this is not installed: pip install nobody_has_this"),
        ("told:json", ConfigError, "must be type"),
    ],
)
def test_a_sink_that_cannot_be_had_is_refused_before_the_run(run, name, error, said, capsys):
    recipe = str(ROOT / "recipes/quickstart.toml")
    with pytest.raises(error, match=said):
        sinks_of(run, [name])
    assert main(["train", recipe, "--out", str(run / "new"), "--report-to", name]) == (
        42 if error is ConfigError else 1
    )
    assert said in capsys.readouterr().err and not (run / "new").exists()


@pytest.mark.skipif(find_spec("wandb") is not None, reason="it is installed here")
def test_a_missing_library_is_one_line_that_names_the_extra(capsys):
    assert main(["train", str(ROOT / "recipes/quickstart.toml"), "--report-to", "wandb"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("etude train: wandb is not installed: pip install ") and line.endswith("[wandb]'")


# --- the libraries themselves -----------------------------------------------------------------------------------------

LIBRARIES = ("tensorboard", "trackio", "wandb")
TENSORBOARD = """
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1] + "/tensorboard")
events.Reload()
found = {tag: [[each.step, each.value] for each in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
"""
TRACKIO = """
import sys, trackio
from trackio.sqlite_storage import SQLiteStorage
[run] = trackio.Api().runs("etude")
found, config = {}, SQLiteStorage.get_run_config("etude", run.name)
for row in SQLiteStorage.get_logs("etude", run.name):
    for name, value in row.items():
        if "/" in name:
            found.setdefault(name, []).append([row["step"], value])
assert config["seed"] == 3, config
ids = [run.name]
"""
WANDB = """
import json, struct, sys
from pathlib import Path
from wandb.proto.wandb_internal_pb2 import Record

def records(data):
    at, whole = 7, b""  # after the file's own head, in blocks of 32 KiB, as LevelDB writes its logs
    while at < len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield Record.FromString(whole)
            whole = b""

found, ids = {}, []
for path in sorted(Path(sys.argv[1]).glob("wandb/offline-run-*/*.wandb")):
    for record in records(path.read_bytes()):
        if record.WhichOneof("record_type") == "run" and record.run.run_id not in ids:
            ids.append(record.run.run_id)
        if record.WhichOneof("record_type") == "history":
            row = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            for name in row:
                if "/" in name:
                    found.setdefault(name, []).append([row["step"], row[name]])
        for item in record.summary.update:
            name = "/".join(item.nested_key) or item.key
            if name.startswith("summary/"):
                found[name] = [[3, json.loads(item.value_json)]]
"""
SHOWN = "\nimport json\nprint(json.dumps([found, globals().get('ids', [])]))"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """The interpreter of an environment that has them beside all that this one has."""
    where = tmp_path_factory.mktemp("libraries") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(where)], check=True)
    [packages] = where.glob("lib/python*/site-packages")
    (packages / "beside.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return pip(where, *LIBRARIES)


@pytest.mark.proof(25)
@pytest.mark.parametrize(("name", "read"), [*zip(LIBRARIES, (TENSORBOARD, TRACKIO, WANDB), strict=True)], ids=LIBRARIES)
def test_a_library_has_both_lives_of_a_run_as_one(libraries, run, name, read):
    """Offline, and read back by the library's own means."""
    env = {**os.environ, "WANDB_MODE": "offline", "TRACKIO_DIR": str(run / "trackio"), "HOME": str(run)}

    def python(*words):
        done = subprocess.run([libraries, *words], env=env, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        return done.stdout

    export = ("-m", "etude.cli.main", "runs", "export", str(run), "--to", name, "--json")
    first = json.loads(python(*export))
    written(run, step(1), delivery(1), step(2), delivery(2), step(3), delivery(3))
    (run / "summary.json").write_text(json.dumps({"pass1": 0.75}))
    second = json.loads(python(*export))
    assert first["id"] == second["id"] and second["sent"] == {"step": 3, "delivery": 3}
    found, ids = json.loads(python("-c", read + SHOWN, str(run)))
    assert [at for at, _ in found["step/grad_norm"]] == [1, 2, 3]
    assert [value for _, value in found["step/grad_norm"]] == pytest.approx([2.0, 1.0, 2 / 3])
    assert found["step/parts/effort"][0] == [1, pytest.approx(-0.1)] and len(found["delivery/lag_ms"]) == 3
    assert found["summary/pass1"] == [[3, 0.75]]
    assert name == "tensorboard" or (len(ids) == 1 and first["id"] in ids[0])
