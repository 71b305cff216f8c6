"""On-policy distillation: a student plays, and comes to say what its teacher would."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from etude.cli.main import main
from etude.errors import Exit
from etude.models.checkpoint import load_checkpoint, save_checkpoint
from etude.trainer.distil import divergences, token_divergences

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models/etude-tiny"


def pretrain(out, student, *sets):
    given = [
        f'model="{student}"', f'source.teacher="{MODEL}"', "threads=1", "rungs=[1]", "sessions=3",
        "optimizer.lr=0.01", "tokens_per_step=1000", *sets,
    ]  # fmt: skip
    overrides = [part for each in given for part in ("--set", each)]
    return main(["pretrain", str(ROOT / "recipes/distillation-start.toml"), "--out", str(out), "--json", *overrides])


@pytest.fixture(scope="module")
def student(tmp_path_factory):
    """The teacher, with every weight a little off."""
    place = tmp_path_factory.mktemp("student") / "model"
    decoder, tokenizer = load_checkpoint(MODEL)
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for each in decoder.parameters():
            each += 0.3 * each.std(correction=0) * torch.randn(each.shape, generator=noise)
    save_checkpoint(decoder, place, tokenizer, like=MODEL)
    return place


def told(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def lines_of(out):
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def test_the_reverse_divergence_and_its_gradient_at_golden_numbers():
    rng = np.random.default_rng(0)
    teacher, student = rng.normal(size=(2, 5, 7))
    p, q = (np.exp(x - np.log(np.exp(x).sum(-1, keepdims=True))) for x in (teacher, student))
    given = torch.tensor(student, requires_grad=True)
    kl = token_divergences(torch.log_softmax(torch.tensor(teacher), -1), torch.log_softmax(given, -1), reverse=True)
    kl.mean().backward()
    each = (q * (np.log(q) - np.log(p))).sum(-1)
    np.testing.assert_allclose(kl.detach().numpy(), each, rtol=1e-12)
    wanted = q * (np.log(q) - np.log(p) - each[:, None]) / 5
    np.testing.assert_allclose(given.grad.numpy(), wanted, rtol=1e-9, atol=1e-12)


def test_only_the_tokens_that_are_meant_are_compared(student):
    ours, theirs = load_checkpoint(student)[0], load_checkpoint(MODEL)[0]
    contexts = [np.arange(40, 60, dtype=np.int32), np.arange(100, 130, dtype=np.int32)]
    places = [np.asarray([3, 4, 19]), np.asarray([1, 29])]
    both = (contexts, places)
    found = divergences(ours, theirs, both, both, 1.0, reverse=True)
    apart = [
        divergences(ours, theirs, ([ids], [np.asarray([at])]), ([ids], [np.asarray([at])]), 1.0, reverse=True)
        for ids, at in [(contexts[0], 3), (contexts[0], 4), (contexts[0], 19), (contexts[1], 1), (contexts[1], 29)]
    ]
    torch.testing.assert_close(found, torch.cat(apart), rtol=1e-4, atol=1e-6)
    assert (divergences(theirs, theirs, both, both, 1.0, reverse=True).abs() < 1e-6).all()


@pytest.mark.timeout(600)
def test_the_student_comes_nearer_on_its_own_sessions_and_a_second_command_goes_on(tmp_path, student, capsys):
    assert pretrain(tmp_path / "a", student, "source.steps=8") == 0
    said, lines = told(capsys), lines_of(tmp_path / "a")
    assert said["steps"] == 8 and said["played"] == 24 and said["tokens"] == sum(line["tokens"] for line in lines)
    found = [line["divergence"] for line in lines]
    assert found[0] > 0.1 and said["divergence"] == found[-1]
    assert sum(found[-3:]) < 0.8 * sum(found[:3]), found
    assert pretrain(tmp_path / "b", student, "source.steps=5") == 0
    assert pretrain(tmp_path / "b", student, "source.steps=8") == 0
    assert lines_of(tmp_path / "b") == lines, "as if it had never stopped"
    first, second = (load_file(tmp_path / each / "model/model.safetensors") for each in "ab")
    assert all(torch.equal(each, second[name]) for name, each in first.items())
    assert pretrain(tmp_path / "b", student, "source.steps=9", "source.temperature=0.5") == Exit.BAD_INPUT
    assert "was made with another `source`" in capsys.readouterr().err


def test_a_teacher_with_other_tokens_is_refused_and_so_are_keys_that_do_nothing(tmp_path, student, capsys):
    decoder, tokenizer = load_checkpoint(MODEL)
    tokenizer.add_tokens(["anothertoken"])
    save_checkpoint(decoder, tmp_path / "teacher", tokenizer, like=MODEL)
    assert pretrain(tmp_path / "a", student, f'source.teacher="{tmp_path}/teacher"') == Exit.BAD_INPUT
    assert "has other tokens than" in capsys.readouterr().err
    assert pretrain(tmp_path / "a", student, "tokens=9") == Exit.BAD_INPUT
    assert "tokens: has no effect with a source that has steps" in capsys.readouterr().err
