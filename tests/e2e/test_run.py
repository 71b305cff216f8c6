"""The whole loop at small size: it trains, and survives kill -9."""

import json
import re
import signal
import subprocess
import time

import pytest
from killing import RESTARTS, Victim
from small import ROOT, archived, command, left, lines, run, steps, variables, waiting

from etude.engine.served import export_served
from etude.models.checkpoint import load_checkpoint
from etude.records import Version
from etude.weights.chain import Chain
from etude.weights.manifest import root_of
from etude.weights.opening import open_store

TABLE = """
class Table:
    def start(self, run):
        self.run = run

    def log(self, figures, step):
        with (self.run.directory / "table.csv").open("a") as file:
            for name, figure in figures.items():
                print(self.run.id, step, name, figure, sep=",", file=file)

    def finish(self, figures):
        self.log(figures, "last")
        return "table.csv"
"""
pytestmark = pytest.mark.timeout(420)


def all_happened(out, summary):
    """Rollouts, rewards, updates and swaps, in a run of three steps; returns the deliveries to its engine."""
    counters = summary["counters"]
    for feature in (
        "tool_calls", "parallel_turns", "session_cache_tokens", "prefix_hit_tokens", "routes_given",
        "deltas_published", "deltas_applied", "delta_bytes_applied", "roots_verified", "swaps",
    ):  # fmt: skip
        assert counters[feature] > 0, feature
    assert summary["steps"] == 3
    assert counters["infra_failed"] == 0
    assert 0 <= summary["base_pass1"] <= 1
    trained = steps(out)
    assert [(line["step"], line["version"]) for line in trained] == [(1, 1), (2, 2), (3, 3)]
    delivered = lines(out, "delivery")
    versions = [line["version"] for line in delivered]
    assert counters["deltas_published"] == versions[-1] == 3
    assert versions == sorted(set(versions)) and len({line["root"] for line in delivered}) == len(versions)
    assert all(line["lag_ms"] > line["publish_ms"] > 0 < line["pause_ms"] for line in delivered)
    assert summary["delivery"]["publish_stall_ms"] == 0.0 < summary["delivery"]["snapshot_ms"]
    assert trained[0]["matched_tokens"] == trained[0]["trained_tokens"]
    assert trained[0]["max_abs_dlogp"] == 0.0
    assert all(sum(line["parts"].values()) == pytest.approx(line["reward"]) for line in trained)
    assert all(line["max_age"] <= 4 for line in trained)
    report = (out / "report.html").read_text()
    held = json.loads(report.partition('id="answers">')[2].partition("</script>")[0])
    results = next(answer for name, answer in held.items() if name.endswith("/results"))
    assert results["policies"] == ["base", "after"] and results["examples"]
    assert len([name for name in held if "/tokens" in name]) > 3 == len([name for name in held if "/steps/" in name])
    assert left() == []
    assert len(archived(out)) >= counters["archived"] > 0 < counters["marked_tokens"]
    again = run(out)
    assert (again.returncode, "--resume" in again.stderr) == (42, True)
    return delivered


def killed_after_a_step(out, limits, *options, recipe="quickstart", **paths):
    """A run whose controller is killed once it has made a step, and scored a sample that a later one may train on."""
    process = subprocess.Popen(
        [*command(out, *limits, recipe=recipe), *options],
        cwd=ROOT, env=variables(**paths), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    deadline = time.monotonic() + 300
    while not steps(out) or not waiting(out):
        assert process.poll() is None, process.stderr.read()[-2000:]
        assert time.monotonic() < deadline, "a step, and a sample scored beside it, within 300 s"
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.proof(75)
def test_rollouts_rewards_updates_and_swaps_all_happen(tmp_path):
    """Undisturbed, each version reaches the engine; the rest is always asked of the run below."""
    done = run(tmp_path / "run", "rollouts.max_steps=3", "rollouts.max_minutes=5")
    assert done.returncode == 0, done.stderr[-2000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    delivered = all_happened(tmp_path / "run", summary)
    assert [line["version"] for line in delivered] == [1, 2, 3]
    assert sum(line["delta_bytes"] for line in delivered) == summary["counters"]["delta_bytes_published"]


@pytest.mark.proof(25)
def test_a_run_multiplies_its_experts_in_low_precision(tmp_path):
    """And two ranks train it, each of which uploads its part of the codes and scales that the engine serves."""
    limits = ("rollouts.max_steps=2", "rollouts.max_minutes=5")
    done = run(tmp_path / "run", "model.expert_format=mxfp8", "trainer.ranks=2", *limits)
    assert done.returncode == 0, done.stderr[-2000:]
    counters = json.loads(done.stdout.splitlines()[-1])["counters"]
    assert min(counters["low_precision_rows_trained"], counters["low_precision_rows_sampled"]) > 0
    assert counters["deltas_published"] == 2 <= counters["roots_verified"]
    version = Chain(open_store(tmp_path / "run" / "weights")).manifest(Version(2))
    assert {tensor.dtype for tensor in version.tensors} == {"bf16", "e4m3", "e8m0"}
    assert len(version.packs) == 2
    first = steps(tmp_path / "run")[0]
    assert first["matched_abs_dlogp"] < 1e-3  # the mean: a code at a tie may fall otherwise


@pytest.mark.proof(25)
def test_a_run_computes_with_torchs_operations(tmp_path):
    """Trainer and engine alike, each told by the variable; what they compute is near, and no longer the same bits."""
    limits = ("rollouts.max_steps=2", "rollouts.max_minutes=5", "trainer.ranks=2")
    done = run(tmp_path / "run", *limits, ETUDE_KERNELS="torch")
    assert done.returncode == 0, done.stderr[-2000:]
    counters = json.loads(done.stdout.splitlines()[-1])["counters"]
    assert counters["deltas_published"] == 2 <= counters["roots_verified"]
    assert min(counters["routes_given"], counters["session_cache_tokens"], counters["prefix_hit_tokens"]) > 0
    first = steps(tmp_path / "run")[0]
    assert 0 < first["max_abs_dlogp"] < 1e-3 and first["matched_tokens"] == first["trained_tokens"]


def test_the_recipe_of_a_mesh_runs_to_its_end_though_a_rank_is_killed(tmp_path):
    """With two steps: four ranks train on real rollouts, publish and save, each its own part. One of them is killed
    after the first step; all start anew from what they saved, and nothing is lost or trained twice.
    """
    out = tmp_path / "run"
    with Victim(out, "rollouts.max_steps=2", "rollouts.max_minutes=10", *RESTARTS, recipe="mesh") as run:
        run.wait(lambda: steps(out), "a step")
        assert len(run.processes("rank")) == 3
        run.kill("rank")
        summary = json.loads(run.end().splitlines()[-1])
    assert (summary["steps"], summary["lost"], summary["trained_twice"]) == (2, 0, 0)
    assert summary["restarts"]["trainer"] == 1
    [why] = [line["why"] for line in lines(out, "restart")]
    assert re.match(r"rank [123] of the trainer", why)
    checkpoints = sorted((out / "checkpoints").iterdir())
    kept = [path.name.partition("-")[2].rstrip("0123456789abcdef") for path in checkpoints]
    assert kept == ["00000001.ckpt", "00000001.shards-", "00000002.ckpt", "00000002.shards-"]
    version = Chain(open_store(out / "weights")).manifest(Version(2))
    assert len(version.packs) == 4
    assert root_of(export_served(load_checkpoint(out / "model")[0])) == version.root
    assert [line["step"] for line in steps(out)] == [1, 2]
    for line in steps(out):
        assert 0 < line["max_abs_dlogp"] < 1e-3 and line["matched_tokens"] <= line["trained_tokens"]
        assert min(line["routes_given"], line["grad_norm"]) > 0


@pytest.mark.proof(40)
def test_a_run_is_trained_by_a_mesh_of_four(tmp_path):
    """The recipe that turns a mesh on: each rank holds its share of the weights and of the experts, and publishes and
    saves it; the run is killed and goes on from what they saved.
    """
    limits = ("rollouts.max_steps=2", "rollouts.max_minutes=10")
    killed_after_a_step(tmp_path / "run", limits, recipe="mesh")
    done = run(tmp_path / "run", *limits, resume=True, recipe="mesh")
    assert done.returncode == 0, done.stderr[-2000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["steps"] == 2 and (summary["lost"], summary["trained_twice"]) == (0, 0)
    assert summary["counters"]["roots_verified"] > 0 < summary["counters"]["routes_given"]
    version = Chain(open_store(tmp_path / "run" / "weights")).manifest(Version(2))
    assert len(version.packs) == 4
    first = steps(tmp_path / "run")[0]
    assert 0 < first["max_abs_dlogp"] < 1e-3 and first["matched_tokens"] == first["trained_tokens"]


@pytest.mark.proof(25)
def test_a_run_trains_adapters_and_serves_them_merged(tmp_path):
    """And two ranks train them, each of which uploads its part of the version."""
    limits = ("rollouts.max_steps=2", "rollouts.max_minutes=5", 'trainer.optimizer={name="adamw", lr=1e-3}')
    lora = ("trainer.lora={attention=4, experts=4}", 'trainer.frozen=[":2"]', "trainer.ranks=2")
    done = run(tmp_path / "run", *lora, *limits)
    assert done.returncode == 0, done.stderr[-2000:]
    counters = json.loads(done.stdout.splitlines()[-1])["counters"]
    matrices = 2 * (4 + 2)
    assert counters["adapters_moved"] == 2 * matrices
    assert counters["adapters_merged"] == matrices * counters["roots_verified"] > 0
    assert counters["frozen_weights"] > 0 < counters["routes_given"]
    first = steps(tmp_path / "run")[0]
    assert (first["max_abs_dlogp"], first["matched_tokens"]) == (0.0, first["trained_tokens"])
    assert len(Chain(open_store(tmp_path / "run" / "weights")).manifest(Version(2)).packs) == 2


def test_a_killed_run_goes_on_where_it_was(tmp_path):
    """Its life before the kill is a whole run's, too: it began with nothing. Both tell one sink, as one run."""
    out = tmp_path / "run"
    limits = ("rollouts.max_steps=3", "rollouts.max_minutes=10")
    (tmp_path / "table.py").write_text(TABLE)
    paths = {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    killed_after_a_step(out, limits, "--report-to", "table:Table", **paths)
    done = run(out, *limits, resume=True, **paths)
    assert done.returncode == 0, done.stderr[-2000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    all_happened(out, summary)
    told = [line.split(",") for line in (out / "table.csv").read_text().splitlines()]
    assert [step for _, step, name, _ in told if name == "step/grad_norm"] == ["1", "2", "3"]
    assert len({run_id for run_id, *_ in told}) == 1 and "summary/pass1" in {name for _, _, name, _ in told}
    counters, samples = summary["counters"], summary["samples"]
    assert counters["trained_rollouts"] == sum(line["trained_rollouts"] for line in steps(out)) == samples["trained"]
    assert counters["samples_restored"] > 0
    assert (summary["lost"], summary["trained_twice"]) == (0, 0)
    assert samples["samples"] == samples["trained"] + sum(samples["dropped"].values())
