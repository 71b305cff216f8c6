"""`etude train --dry-run`: each recipe for machines that are not here, what does not fit, and what is said of it."""

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from etude.cli.main import main
from etude.config import load_recipe
from etude.errors import ConfigError, Exit
from etude.rollouts.config import RunConfig
from etude.rollouts.plan.dry_run import dry_run
from etude.rollouts.plan.dry_run_lines import lines_of
from etude.rollouts.plan.machines import GIB, HERE, KNOWN, USABLE, Machine, fitted, machine_named, this_computer
from etude.rollouts.plan.remedies import STATE
from etude.trainer.mesh.counting import Link, Traffic, Work
from etude.weights.publisher import KEPT_SETS

ROOT = Path(__file__).parents[2]
H100 = KNOWN["h100"]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)  # recipes name their models from there


def dry(recipe, machine=H100, *sets):
    return dry_run(load_recipe(ROOT / f"recipes/{recipe}.toml", RunConfig, list(sets)), machine)


FOR_MACHINES = {
    "one-gpu": (1, set()),
    "mesh": (4, {"gathers", "reduce-scatters", "experts"}),
    "eight-gpus": (8, {"gathers", "reduce-scatters", "experts"}),
    "cluster": (256, {"gathers", "reduce-scatters", "experts", "context"}),
}
PASSES = 4
"""Over what is multiplied in parts: forward, the same again in the backward, and by each of the two factors."""
TOKENS, SAMPLED, WIDTH, VOCABULARY, EXPERTS, LAYERS = 8192, 4096, 2048, 151_936, 128, 48
IN_FP32 = 2 * PASSES * WIDTH * (SAMPLED * VOCABULARY + TOKENS * EXPERTS * LAYERS)
"""Of a piece of eight-gpus: logits of the sampled half, and routers. Attention is in bf16, its backward too."""
PARAMETERS = {"one-gpu": 596_049_920, "eight-gpus": 30_532_122_624, "cluster": 671_026_404_352}
"""As they are published, or counted from the published shape."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("recipe", FOR_MACHINES)
def test_each_recipe_fits_the_machines_it_is_for(recipe):
    ranks, links = FOR_MACHINES[recipe]
    run = dry(recipe)
    found = run.as_json()
    assert found["ranks"] == ranks and run.fault is None and found["fits"]
    sent = {kind.partition(",")[0] for kind in found["links"]["a piece"]}
    assert links <= sent <= links | {"figures"}
    held, on_host = found["bytes"]["in_pieces"], found["bytes"]["on_host"]
    assert {"parameters", "masters", "activations"} <= held.keys()
    assert ("moments" in held, "moments on the host" in on_host) == (recipe != "one-gpu", recipe == "one-gpu")
    assert on_host["a checkpoint's copy"] > held["masters"]
    assert on_host["published versions"] >= KEPT_SETS * 2 * found["parameters"] / ranks
    if recipe in PARAMETERS:  # each rank has its share of all: fp32 masters and gradients, two moments of bf16
        share = 4 * PARAMETERS[recipe] / ranks
        assert held["masters"] == pytest.approx(share, rel=0.002)
        assert found["bytes"]["in_optimizer"]["gradients"] == pytest.approx(share, rel=0.05)
        moments = held.get("moments") or on_host["moments on the host"]
        assert moments == pytest.approx(share, rel=0.002)
    assert {"logits", "gradients"} <= found["bytes"]["most"].keys()
    assert sum(held.values()) + found["bytes"]["engines"] <= found["bytes"]["needed"] <= found["bytes"]["usable"]
    assert 0 < found["tokens_per_s"] < ranks * 10**6 and found["trainer"]["step_s"] > 0
    peak = found["flops_per_piece"] / run.piece_s / H100.flops
    assert 0.01 * (recipe != "mesh") < peak < 0.6, "no faster than products alone could be"
    in_fp32 = found["fp32_flops_per_piece"] / found["flops_per_piece"]
    if recipe in ("one-gpu", "mesh"):
        assert in_fp32 == 1 and run.piece_s > found["flops_per_piece"] / H100.fp32
    else:
        assert 0 < in_fp32 < 0.05, "logits and routers, of a mesh that computes in bf16"
    if recipe == "eight-gpus":
        assert found["fp32_flops_per_piece"] == IN_FP32
        sent = found["links"]["a version"]["a version, inside a computer"]["bytes"]
        assert sent == pytest.approx(2 * PARAMETERS[recipe] / 8 * 7 / 8, rel=0.002), "an eighth stays where it is"
    together = min(ranks, 8)
    one = sum(on_host.values()) - on_host["published versions"]
    assert together * one < found["bytes"]["on_computer"] <= together * sum(on_host.values())
    if recipe == "cluster":  # 58 ranks have 70 GiB: five sets of a stack; most others have far less
        assert sum(run.rehearsal.published) < 0.5 * ranks * max(run.rehearsal.published)
        assert run.rate.step_s > H100.seconds(run.rehearsal.optimizer) + run.rehearsal.version_received / H100.between
    between = any("between" in kind for kind in found["links"]["a piece"])
    assert between == (ranks > 8)
    said = "\n".join(lines_of(run))
    assert f"{ranks} rank{'s' * (ranks > 1)} (" in said and "in the host's memory, of the rank that has most" in said
    assert "\nfits: " in said and said.endswith(found["caveats"][-1])
    on_cpus = "the ranks of a mesh compute on CPUs today, also where there are GPUs (docs/limits.md)"
    assert found["caveats"][0].startswith(on_cpus) == (recipe != "one-gpu")
    assert ("ETUDE_KERNELS=torch" in found["caveats"][0]) == (recipe == "one-gpu")


MADE = {"agent": "recipes/shapes/Qwen3-0.6B", "longhorizon": "models/etude-tiny"}
"""Recipes whose model an earlier command makes, with a shape in its place."""
OF_RUNS = [path.stem for path in sorted(ROOT.glob("recipes/*.toml")) if "rollouts" in tomllib.loads(path.read_text())]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("recipe", [each for each in OF_RUNS if each not in FOR_MACHINES])
def test_every_other_recipe_of_a_run_is_rehearsed_too(recipe, capsys):
    made = ["--set", f"model.path={MADE[recipe]}"] if recipe in MADE else []
    before = sorted(ROOT.glob("runs/*"))
    assert main(["train", f"recipes/{recipe}.toml", "--dry-run", "--on", "h100", "--json", *made]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fault"] is None and found["tokens_per_s"] > 0 and found["bytes"]["in_pieces"]["masters"] > 0
    assert sorted(ROOT.glob("runs/*")) == before


def test_what_a_run_would_not_find_is_told_and_what_it_needs_first_is_asked_for_first(capsys):
    sets = ("model.path=models/etude-tiny", "trainer.lora={ attention = 8 }")
    made = [word for each in (*sets, 'rollouts.tasks=["recipes/planted", "tasks/nowhere"]') for word in ("--set", each)]
    main(["train", "recipes/agent.toml", "--dry-run", *made])
    absent = "not there yet, and a run needs it: tasks/nowhere, runs/agent-judge.token"
    assert capsys.readouterr().out.strip().endswith(absent)
    assert main(["train", "recipes/agent.toml", "--out", "/nowhere/run", "--unsupervised", *made]) == Exit.BAD_INPUT
    assert "endpoint.key_file: runs/agent-judge.token cannot be read" in capsys.readouterr().err


def test_no_recipe_of_a_run_is_left_out():
    assert set(FOR_MACHINES) < set(OF_RUNS)
    for path in ROOT.glob("recipes/*.toml"):
        if path.stem not in OF_RUNS:
            with pytest.raises(ConfigError, match="unknown key"):
                load_recipe(path, RunConfig)


FIXED = ("trainer.piece_tokens=64", "engine.cache_tokens=4096")


def machine_with(usable):
    return Machine("small", int(usable / USABLE) + 1, 1e12, 1e12, 1e11, 1e10, 1e9, 8)


@pytest.mark.parametrize(("set_to", "change", "kinds"), [
    ("trainer.parity_tokens=1024", "trainer.parity_tokens=0", {"newest version": 1, "older versions": 1}),
    ("trainer.parity_tokens=0", 'trainer.optimizer.format="bf16"', {"moments": 0.5}),
])  # fmt: skip
def test_what_does_not_fit_is_one_sentence_that_says_what_to_change(set_to, change, kinds):
    """And that change makes it fit."""
    as_it_was = dry("mesh", H100, *FIXED, set_to)
    saved = sum(as_it_was.rehearsal.fullest[kind] * share for kind, share in kinds.items())
    small = machine_with(as_it_was.needed - int(saved / 2))
    run = dry("mesh", small, *FIXED, set_to)
    assert not run.fits and run.fault.startswith("does not fit: a rank needs") and ". " not in run.fault
    assert run.fault.endswith("set " + change.replace("=", " = "))
    key = change.partition("=")[0]
    assert dry("mesh", small, *FIXED, *([] if set_to.startswith(key) else [set_to]), change).fits


def test_more_ranks_are_asked_for_where_nothing_else_helps():
    sets = ("trainer.piece_tokens=8", FIXED[1], "trainer.parity_tokens=0", "trainer.optimizer.format=bf16")
    as_it_was = dry("mesh", H100, *sets)
    state = sum(as_it_was.rehearsal.fullest.get(kind, 0) for kind in STATE)
    small = machine_with(as_it_was.needed - int(0.4 * state))
    run = dry("mesh", small, *sets)
    found = re.search(r"use \d+ ranks: (trainer.ranks) = (\{fsdp = \d+, ep = 2\})$", run.fault)
    assert found and dry("mesh", small, *sets, f"{found[1]}={found[2]}").fits
    run = dry("mesh", machine_with(as_it_was.needed - state - 1), *sets)
    assert "no single key makes it fit (" in run.fault and "take a larger accelerator" in run.fault


def test_a_piece_is_not_blamed_for_what_the_optimizer_and_the_engine_hold():
    """No shorter piece helps one-gpu on an RTX 4090: the update of its embeddings is its fullest moment, and the engine
    has most."""
    small = KNOWN["rtx-4090"]
    run = dry("one-gpu", small)
    found = re.search(r"set (engine.cache_tokens) = (\d+)$", run.fault)
    assert found and dry("one-gpu", small, f"{found[1]}={found[2]}").fits
    assert not dry("one-gpu", small, f"{found[1]}={int(found[2]) + 2048}").fits, "and no smaller than it must be"


def test_this_computer_is_given_no_advice_that_needs_more_of_it():
    """Further ranks share the memory that there is."""
    here = replace(machine_with(1 << 20), name=HERE)
    fault = dry("mesh", here).fault
    assert "no single key makes it fit" in fault and "--on" in fault and "ranks:" not in fault


def test_the_hosts_memory_is_judged_of_all_ranks_of_a_computer(capsys):
    command = ["train", "recipes/mesh.toml", "--dry-run", "--on", "h100"]
    needed = dry("mesh").on_computer
    assert main([*command, "--host-memory", str(1.01 * needed / USABLE / GIB)]) == 0
    assert main([*command, "--host-memory", str(0.9 * needed / USABLE / GIB)]) == 1
    said = capsys.readouterr().out
    assert "does not fit: the ranks of a computer keep" in said and "in its host's memory, which has" in said
    assert main(["train", "recipes/mesh.toml", "--host-memory", "1"]) == 42


def test_kernels_that_a_run_from_here_would_take_are_told_where_they_are_not_those_played(monkeypatch):
    run = dry("mesh")
    monkeypatch.setenv("ETUDE_KERNELS", "triton")
    assert "with ETUDE_KERNELS=triton, as it is set here, a run with a mesh is refused" in run.caveats
    monkeypatch.setenv("ETUDE_KERNELS", "torch")
    assert len(run.caveats) == 1 and replace(run, machine=replace(H100, name=HERE)).caveats == []


def test_small_amounts_can_be_read():
    said = "\n".join(lines_of(dry("quickstart", H100)))
    assert "1.51 million parameters" in said and "gigaflop" in said and "; 1 rank (" in said
    assert re.search(r"\b0\.0 [KMGTgt]", said) is None and "it sends nothing to others" in said


def test_the_command_says_it_and_ends_with_1_where_it_does_not_fit(capsys):
    assert main(["train", "recipes/mesh.toml", "--dry-run", "--on", "h100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["machine"] == "h100" and found["fault"] is None
    huge = ["--set", "trainer.piece_tokens=2000000"]
    assert main(["train", "recipes/mesh.toml", "--dry-run", "--on", "rtx-4090", *huge]) == 1
    assert "does not fit" in capsys.readouterr().out
    assert main(["train", "recipes/mesh.toml", "--on", "h100"]) == 42
    assert "--dry-run" in capsys.readouterr().err
    assert not (ROOT / "runs/mesh-0").exists()


def test_a_name_that_no_machine_has_is_refused_with_those_that_there_are():
    with pytest.raises(ConfigError, match="--on tpu: no such accelerator is known; there are rtx-4090, a100"):
        machine_named("tpu")
    with pytest.raises(ConfigError, match=r"--on H100: .* \(did you mean h100\?\)"):
        machine_named("H100")


def test_this_computer_is_measured_and_shared():
    alone, shared = this_computer(), this_computer(64)
    assert 1e8 < shared.flops < alone.flops < 1e14 and alone.memory == pytest.approx(64 * shared.memory, rel=0.2)
    assert alone.memory < psutil.virtual_memory().total, "what others have is not there"
    assert 1e7 < shared.inside <= 1e12 and not alone.overlaps


def work(flops, touched, calls, sent, exchanges, ranks=(0, 1)):
    return Work(flops, touched, calls, {Link("experts", ranks): Traffic(sent, exchanges)})


def test_a_machine_is_fitted_to_what_was_timed():
    """It says of other work what the machine that was timed would take."""
    true = Machine("true", 1, 2e10, 2e10, 3e9, 1e9, 1e9, 8, call_s=2e-5, exchange_s=3e-4, overlaps=False)
    shapes = [(1e9, 1e8, 900, 1e6, 20), (3e9, 2e8, 1100, 4e7, 10), (2e9, 8e8, 4000, 1e6, 90), (9e9, 1e9, 800, 2e7, 40),
              (1e8, 1e7, 9000, 1e5, 5), (5e9, 3e8, 300, 9e7, 300)]  # fmt: skip
    timed = [(work(*shape), true.seconds(work(*shape))) for shape in shapes]
    found = fitted("found", timed, true)
    other = work(4e9, 5e8, 2500, 3e7, 60)
    assert found.seconds(other) == pytest.approx(true.seconds(other), rel=0.01)


def test_products_in_fp32_are_priced_as_such():
    """An H100 makes 15 times as many of bf16 a second; torch rounds no fp32 operand unless it is told to."""
    rounded, exact = (Work(1e15, 0, 0, {}, fp32_flops) for fp32_flops in (0, 1e15))
    assert H100.seconds(exact) == pytest.approx(989 / 67 * H100.seconds(rounded))


def test_exchanges_between_computers_cost_more_and_what_overlaps_costs_nothing_beside_products():
    inside, outside = work(0, 0, 0, 1e9, 1), work(0, 0, 0, 1e9, 1, tuple(range(16)))
    assert H100.seconds(outside) > 5 * H100.seconds(inside)
    gathers = Work(1e14, 0, 0, {Link("gathers", (0, 1)): Traffic(10**9, 1)})
    assert H100.seconds(gathers) == pytest.approx(H100.seconds(Work(1e14, 0, 0, {})))
