"""`etude train --dry-run`: each recipe for machines that are not here, what does not fit, and what is said of it."""

import json
from pathlib import Path

import pytest

from etude.cli.main import main
from etude.config import load_recipe
from etude.errors import ConfigError
from etude.rollouts.config import RunConfig
from etude.rollouts.plan.dry_run import dry_run, lines_of
from etude.rollouts.plan.machines import KNOWN, Machine, fitted, machine_named, this_computer
from etude.trainer.mesh.counting import Link, Traffic, Work

ROOT = Path(__file__).parents[2]
H100 = KNOWN["h100"]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)  # recipes name their models from there


def dry(recipe, machine=H100, *sets):
    return dry_run(load_recipe(ROOT / f"recipes/{recipe}.toml", RunConfig, list(sets)), machine)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("recipe", "ranks", "links"), [
    ("one-gpu", 1, set()),
    ("mesh", 4, {"gathers", "reduce-scatters", "experts"}),
    ("eight-gpus", 8, {"gathers", "reduce-scatters", "experts"}),
    ("cluster", 256, {"gathers", "reduce-scatters", "experts", "context"}),
])  # fmt: skip
def test_each_recipe_fits_the_machines_it_is_for(recipe, ranks, links):
    run = dry(recipe)
    found = run.as_json()
    assert found["ranks"] == ranks and run.fault is None and found["fits"]
    sent = {kind.partition(",")[0] for kind in found["links"]["a piece"]}
    assert links <= sent <= links | {"figures"}
    held = found["bytes"]["in_pieces"]
    assert {"parameters", "masters", "moments", "activations", "logits"} <= held.keys()
    assert sum(held.values()) + found["bytes"]["engines"] <= found["bytes"]["needed"] <= found["bytes"]["usable"]
    assert 0 < found["tokens_per_s"] < ranks * 10**6 and found["trainer"]["step_s"] > 0
    peak = found["flops_per_piece"] / run.piece_s / H100.flops
    assert 0.01 * (recipe != "mesh") < peak < 0.6, "no faster than products alone could be"
    between = any("between" in kind for kind in found["links"]["a piece"])
    assert between == (ranks > 8)
    said = "\n".join(lines_of(run))
    assert f"{ranks} ranks" in said and said.endswith("has to give")


@pytest.mark.parametrize(("sets", "change"), [
    (["trainer.parity_tokens=1024"], "set trainer.parity_tokens = 0"),
    ([], 'trainer.optimizer.format = "bf16"'),
])  # fmt: skip
def test_what_does_not_fit_is_one_sentence_that_says_what_to_change(sets, change):
    """A change that is proposed makes it fit, and no smaller machine is asked for."""
    as_it_was = dry("mesh", H100, "trainer.optimizer.format=fp32", *sets)
    kinds = as_it_was.rehearsal.fullest
    saved = sum(kinds.get(kind, 0) for kind in ("newest version", "older versions")) if sets else kinds["moments"] // 2
    small = machine_with(as_it_was.needed - saved // 2)
    run = dry("mesh", small, "trainer.optimizer.format=fp32", *sets)
    assert not run.fits and change in run.fault and run.fault.count(". ") == 0
    assert dry("mesh", small, change.removeprefix("set ").replace(" ", ""), *(() if sets else sets)).fits


def machine_with(usable):
    return Machine("small", int(usable / 0.92) + 1, 1e12, 1e11, 1e10, 1e9, 8)


def test_more_ranks_are_asked_for_where_nothing_else_helps():
    run = dry("one-gpu", KNOWN["rtx-4090"], "model.path=recipes/shapes/Qwen3-30B-A3B")
    assert "does not fit: a rank needs" in run.fault
    assert "trainer.ranks = {fsdp =" in run.fault or "a piece alone takes" in run.fault


def test_the_command_says_it_and_ends_with_1_where_it_does_not_fit(capsys):
    assert main(["train", "recipes/mesh.toml", "--dry-run", "--on", "h100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["machine"] == "h100" and found["fault"] is None
    huge = ["--set", "trainer.piece_tokens=8000000"]
    assert main(["train", "recipes/mesh.toml", "--dry-run", "--on", "h100", *huge]) == 1
    assert "does not fit" in capsys.readouterr().out
    assert main(["train", "recipes/mesh.toml", "--on", "h100"]) == 42
    assert "--dry-run" in capsys.readouterr().err
    assert not (ROOT / "runs/mesh-0").exists()


def test_a_name_that_no_machine_has_is_refused_with_those_that_there_are():
    with pytest.raises(ConfigError, match="--on tpu: no such accelerator is known; there are rtx-4090, a100"):
        machine_named("tpu")


def test_this_computer_is_measured_and_shared():
    alone, shared = this_computer(), this_computer(64)
    assert 1e8 < shared.flops < alone.flops < 1e14 and alone.memory == pytest.approx(64 * shared.memory, rel=0.01)
    assert 1e7 < shared.inside <= 1e12 and not alone.overlaps


def work(flops, touched, calls, sent, exchanges, ranks=(0, 1)):
    return Work(flops, touched, calls, {Link("experts", ranks): Traffic(sent, exchanges)})


def test_a_machine_is_fitted_to_what_was_timed():
    """It says of other work what the machine that was timed would take."""
    true = Machine("true", 1, 2e10, 3e9, 1e9, 1e9, 8, call_s=2e-5, exchange_s=3e-4, overlaps=False)
    shapes = [(1e9, 1e8, 900, 1e6, 20), (3e9, 2e8, 1100, 4e7, 10), (2e9, 8e8, 4000, 1e6, 90), (9e9, 1e9, 800, 2e7, 40),
              (1e8, 1e7, 9000, 1e5, 5), (5e9, 3e8, 300, 9e7, 300)]  # fmt: skip
    timed = [(work(*shape), true.seconds(work(*shape))) for shape in shapes]
    found = fitted("found", timed, true)
    other = work(4e9, 5e8, 2500, 3e7, 60)
    assert found.seconds(other) == pytest.approx(true.seconds(other), rel=0.01)


def test_exchanges_between_computers_cost_more_and_what_overlaps_costs_nothing_beside_products():
    inside, outside = work(0, 0, 0, 1e9, 1), work(0, 0, 0, 1e9, 1, tuple(range(16)))
    assert H100.seconds(outside) > 5 * H100.seconds(inside)
    gathers = Work(1e14, 0, 0, {Link("gathers", (0, 1)): Traffic(10**9, 1)})
    assert H100.seconds(gathers) == pytest.approx(H100.seconds(Work(1e14, 0, 0, {})))
