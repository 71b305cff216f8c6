"""Rejection sampling as a warm start: the shipped model plays the ladder, and learns from what the verifier passed."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from etude.cli.main import main
from etude.errors import Exit
from etude.tasks.harbor import write_task
from etude.tasks.ladder import ladder_task

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models/etude-tiny"
RECIPE = ROOT / "recipes/rejection-start.toml"


def pretrain(out, *sets):
    given = [f'model="{MODEL}"', "threads=1", "tokens=3000", "tokens_per_step=800", *sets]
    overrides = [part for each in given for part in ("--set", each)]
    return main(["pretrain", str(RECIPE), "--out", str(out), "--json", *overrides])


SMALL = ("sessions=8", "rungs=[1]", "source.attempts=2", "source.rounds=2", "source.per_task=1")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A warm start of two rounds, and the lines it has kept."""
    out = tmp_path_factory.mktemp("rejection")
    assert pretrain(out, *SMALL) == 0
    head, *lines = [json.loads(line) for line in (out / "sessions.jsonl").read_text().splitlines()]
    return out, head, lines


def told(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def weights(model):
    return load_file(model / "model.safetensors")


def test_what_the_verifier_passed_is_learned_and_all_else_is_counted(made, capsys):
    out, _, lines = made
    assert pretrain(out, *SMALL) == 0  # nothing is left to do: it says once more what was done
    said = told(capsys)
    assert said["played"] == len(lines) == 16 and {line["round"] for line in lines} == {1, 2}
    solved = [line for line in lines if line["solved"]]
    assert solved and all(line["documents"] for line in solved)
    assert not any(line["documents"] for line in lines if not line["solved"])
    assert said["kept"] == len({line["task"] for line in solved}), "one of each task"
    why = {line["why"] for line in lines if not line["solved"]}
    assert sum(said["dropped"].values()) == 16 - said["kept"] and why <= said["dropped"].keys()
    assert said["segments"] >= said["kept"] and said["rounds"] == 2 and said["model"] == str(out / "model")
    assert any(not torch.equal(each, weights(MODEL)[name]) for name, each in weights(out / "model").items())


def test_the_second_round_is_played_by_what_the_first_has_made(made):
    out, _, lines = made
    assert any(not torch.equal(each, weights(MODEL)[name]) for name, each in weights(out / "round-1/model").items())
    assert {line["task"] for line in lines if line["round"] == 1}.isdisjoint(
        line["task"] for line in lines if line["round"] == 2
    ), "fresh tasks"


def test_a_second_command_plays_only_what_is_missing(made, tmp_path, capsys):
    out, _, lines = made
    text = (out / "sessions.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "sessions.jsonl").write_text("".join(text[:7]) + text[7][:40])  # killed while it wrote
    assert pretrain(tmp_path, *SMALL) == 0
    assert told(capsys)["played"] == 16
    again = [json.loads(line) for line in (tmp_path / "sessions.jsonl").read_text().splitlines()][1:]
    assert (tmp_path / "sessions.jsonl").read_text().startswith("".join(text[:7])), "what was kept stands"
    assert sorted(line["id"] for line in again) == sorted(line["id"] for line in lines)
    ours, theirs = ({line["id"]: line["documents"] for line in each} for each in (lines, again))
    assert ours == theirs, "sampling goes by the seed"
    assert all(torch.equal(each, weights(out / "model")[name]) for name, each in weights(tmp_path / "model").items())


def test_sessions_of_another_recipe_are_not_mixed_in(made, capsys):
    out, _, _ = made
    assert pretrain(out, *SMALL, "source.temperature=0.5") == Exit.BAD_INPUT
    assert "was made with another `source`; give another --out" in capsys.readouterr().err


def test_tasks_may_be_directories_and_those_for_measuring_are_left_out(tmp_path, capsys):
    for number, split in enumerate(("train", "train", "eval")):
        task = ladder_task(1, split, number)
        write_task(task, tmp_path / "tasks" / task.id)
    of = ("family=", "rungs=", "sessions=8", "source.attempts=4", "source.rounds=1")
    assert pretrain(tmp_path / "out", f'directories=["{tmp_path}/tasks"]', *of) == 0
    assert told(capsys)["played"] == 8
    lines = [json.loads(line) for line in (tmp_path / "out/sessions.jsonl").read_text().splitlines()][1:]
    assert {line["task"] for line in lines} == {ladder_task(1, "train", number).id for number in range(2)}
    measured = tmp_path / "tasks" / ladder_task(1, "eval", 2).id
    assert pretrain(tmp_path / "none", f'directories=["{measured}"]', *of) == Exit.BAD_INPUT
    assert "none of their 1 tasks is of the split train" in capsys.readouterr().err


def test_a_model_that_solves_nothing_is_told_to_take_easier_tasks(tmp_path, capsys):
    given = ("sessions=2", "rungs=[5]", "source.attempts=2", "source.rounds=1", "source.temperature=50")
    assert pretrain(tmp_path, *given) == Exit.FAILED
    assert "none of 2 sessions can be learned from (failed 2); take easier tasks" in capsys.readouterr().err
