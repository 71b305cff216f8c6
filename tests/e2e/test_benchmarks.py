"""Each benchmark runs, at small size, and ends with its JSON line. Their peers are not installed here."""

import json
import subprocess
import sys

import pytest
from small import ROOT, variables

from etude.tasks.ladder import RUNGS

pytestmark = pytest.mark.timeout(300)


def last_line(script, *arguments):
    command = [sys.executable, str(ROOT / "benchmarks" / script), *arguments]
    done = subprocess.run(command, cwd=ROOT, env=variables(), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.proof(50)
def test_etudes_half_of_the_trl_comparison_trains():
    figures = last_line("quickstart_vs_trl.py", "--only", "etude", "--minutes", "0.75")
    assert figures["etude_samples_per_s"] > 0
    assert figures["etude_informative_per_s"] > 0
    assert figures["ratio"] is None


@pytest.mark.proof(4)
def test_the_codecs_are_smaller_than_their_peers():
    figures = last_line("weights.py", "--synthetic", "--elements", "1048576", "--rates", "1e-6", "--repeats", "1")
    row = figures["1e-06"]
    assert 0.02 < row["changed"] < 0.06
    assert row["bits_A"] < row["bits_R"] < row["bits_xor_zstd"] < row["bits_pulse"] < row["bits_index_value"]
    assert row["bound_A"] <= row["bits_A"] <= 1.05 * row["bound_A"]
    assert figures["enc_MBps_A"] > 0


@pytest.mark.proof(27)
def test_the_codecs_on_the_updates_of_a_run():
    small = ("--rates", "1e-5", "--amortised-steps", "4", "--measured", "2", "--repeats", "1")
    figures = last_line("weights.py", *small)
    row = figures["1e-05"]
    assert 0.01 < row["changed"] < 0.5
    assert row["bound_A"] < row["bits_A"] < row["bits_R"] < row["bits_xor_zstd"]
    assert min(figures[name] for name in ("mxfp8_ratio", "amortised_ratio", "swap_pause_ms", "snapshot_ms")) > 0
    assert figures["publish_stall_ms"] == 0.0


@pytest.mark.proof(4)
def test_the_base_plays_every_rung():
    model = str(ROOT / "models" / "etude-tiny")
    figures = last_line("rungs.py", model, "--per-rung", "6")
    assert len(figures[model]["rates"]) == len(RUNGS)
    assert 0 < sum(figures[model]["rates"]) < len(RUNGS)


@pytest.mark.proof(60)
def test_arms_are_trained_evaluated_and_not_trained_again(tmp_path):
    small = (
        "--out", str(tmp_path), "--arms", "sft", "rft", "sft_masked", "--seeds", "0", "--cpu-seconds", "24",
        "--per-rung", "1", "--no-real", "--curve-per-rung", "1", "--greedy",
        "--set", "all.rollouts.concurrency=8", "--set", "rft.rounds=2",
    )  # fmt: skip
    figures = last_line("arms.py", *small)
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "records").iterdir()}
    assert sorted(path.stem for path in made) == ["base-0", "rft-0", "sft-0", "sft_masked-0"]
    for arm in ("base", "rft", "sft", "sft_masked"):
        assert figures[arm]["ladder"]["tasks"] == figures[arm]["heldout"]["tasks"] == len(RUNGS)
        assert 0 <= figures[arm]["greedy"]["ladder"]["rate"] <= 1
    assert 12 <= figures["cpu_s"]["sft"] < 24 <= figures["cpu_s"]["rft"] < 36
    assert all(count > 0 for count in figures["samples"].values())
    assert all(len(json.loads(path.read_text())["curve"]) >= 2 for path in made if path.stem != "base-0")
    assert (tmp_path / "curves.svg").read_text().count("<svg") == 1
    assert last_line("arms.py", *small) == last_line("arms.py", "--out", str(tmp_path), "--report") == figures
    assert made == {path: path.stat().st_mtime_ns for path in (tmp_path / "records").iterdir()}


@pytest.mark.proof(15)
def test_replay_brings_the_trainer_nearer_to_a_sampler_that_computes_otherwise():
    small = ("--steps", "4", "--seeds", "1", "--rollouts", "128", "--solved", "0.02", "--margin", "0.02")
    figures = last_line("replay.py", *small)
    rows = figures["table"]
    assert rows["fp32, 0, no replay"]["max"] < 1e-4
    for sampler in ("bf16", "nvfp4"):
        plain, replayed = (rows[f"{sampler}, 0, {mode}"] for mode in ("no replay", "replay"))
        assert plain["routes_differ"] > replayed["routes_differ"] == 0
        assert plain["k3"] > replayed["k3"] > 0
    assert rows["nvfp4, 4, no replay"]["routes_differ"] > rows["nvfp4, 4, filter 0.1"]["routes_differ"] > 0
    assert rows["nvfp4, 0, matched"]["k3"] < rows["nvfp4, 0, replay"]["k3"] / 100
    assert figures["curves"]["filter"]["replaced"] > figures["curves"]["replay"]["replaced"] == 0
    assert all(0 <= reward <= 1 for curve in figures["curves"].values() for reward in curve["rewards"][0])
