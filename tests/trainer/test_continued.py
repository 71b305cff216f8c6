"""Mid-training from a checkpoint: what it reads, how it is measured, killed and gone on with, and a longer context."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from corpora import MIT, module, repository
from safetensors.torch import load_file

from etude.cli.main import main
from etude.errors import ConfigError, Exit
from etude.made_by import alone
from etude.models.chat import open_chat
from etude.models.checkpoint import load_checkpoint
from etude.trainer.continued import conversations
from etude.trainer.documents import Document
from etude.trainer.supervised import nll, supervised_loss

ROOT = Path(__file__).parents[2]
TALK = {
    "messages": [
        {"role": "system", "content": "You are brief."},
        {"role": "user", "content": "What is in cart.py? <|im_end|>"},
        {"role": "assistant", "content": "A function."},
        {"role": "tool", "content": "def cart_1(): ..."},
        {"role": "assistant", "content": "It is called cart_1."},
    ]
}


@pytest.fixture
def recipe(tmp_path):
    """Two repositories, one of them held out, and conversations."""
    repository(tmp_path / "src/shop", {"LICENSE": MIT, **{f"{name}.py": module(name) for name in ("cart", "stock")}})
    repository(tmp_path / "src/mill", {"LICENSE": MIT, "mill.py": module("mill", 30)})
    (tmp_path / "talks.jsonl").write_text(f"{json.dumps(TALK)}\n" * 3)
    written = tmp_path / "recipe.toml"
    written.write_text(f"""
kind = "continued"
model = "{ROOT}/models/etude-tiny"
held_out_tokens = 2000
[corpus.code]
directories = ["{tmp_path}/src"]
held_out = {{ repositories = ["mill"] }}
[sessions]
talks = ["{tmp_path}/talks.jsonl"]
[midtraining]
stages = [{{ tokens = 8000, mixture = {{ code = 0.8, talks = 0.2 }} }}]
optimizer = {{ name = "adamw", lr = 1e-3 }}
tokens_per_step = 1000
warmup_steps = 2
checkpoint_every = 3
""")
    return written


def run(recipe, out, *sets):
    return main(["pretrain", str(recipe), "--out", str(out), *(part for each in sets for part in ("--set", each))])


def lines(out):
    found = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "cpu_s"} for line in found]


def test_a_checkpoint_reads_a_corpus_and_says_what_came_of_it(recipe, tmp_path, capsys):
    assert run(recipe, tmp_path / "out") == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["corpus"]["code"]["files"] == 2 and told["corpus"]["code"]["dropped"] == {"language": 2}
    assert told["sessions"]["talks"] == {"conversations": 3, "dropped": {"secret": 0}}
    assert told["drawn"]["code"] > 0 and told["drawn"]["talks"] > 0
    assert told["held_out"]["code"] < told["held_out_before"]["code"] - 0.1, "the other repository is like it"
    logged = lines(tmp_path / "out")
    assert [line["step"] for line in logged] == list(range(told["steps"] + 1))
    measured = [line["step"] for line in logged if "held_out" in line]
    assert measured == [0, *range(3, told["steps"], 3), told["steps"]]
    curves = [line["said_by_source"] for line in logged[1:]]
    assert {"code", "talks"} == set().union(*curves) and all(each["code"] > 0 for each in curves)
    assert any(line["said_by_source"].get("talks") != line["said_by_source"]["code"] for line in logged[1:])
    files = [json.loads(line) for line in (tmp_path / "out/corpus/code/files.jsonl").read_text().splitlines()]
    assert {(each["repository"], each["path"]): each["fate"] for each in files} == {
        ("mill", "mill.py"): "held_out", ("mill", "LICENSE"): "language", ("shop", "LICENSE"): "language",
        ("shop", "cart.py"): "train", ("shop", "stock.py"): "train",
    }  # fmt: skip
    manifest = json.loads((tmp_path / "out/corpus/code/manifest.json").read_text())
    assert manifest["train"]["by_licence"] == {"MIT": 2} and manifest["held_out"]["files"] == 1
    before = load_file(ROOT / "models/etude-tiny/model.safetensors")
    after = load_file(tmp_path / "out/model/model.safetensors")
    assert before.keys() == after.keys() and any(not torch.equal(before[name], after[name]) for name in before)


def test_killed_and_gone_on_with_equals_undisturbed(recipe, tmp_path):
    assert run(recipe, tmp_path / "straight") == 0
    out = tmp_path / "killed"
    words = [sys.executable, "-m", "etude.cli.main", "pretrain", str(recipe), "--out", str(out)]
    kills = 0
    for least in (5, 7):
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        log, deadline = out / "log.jsonl", time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if log.exists() and log.read_bytes().count(b"\n") > least:
                process.kill()
        kills += process.wait(120) == -signal.SIGKILL
    assert kills, "it was never killed in the middle"
    assert run(recipe, out) == 0
    assert lines(out) == lines(tmp_path / "straight")
    one, other = (load_file(each / "model/model.safetensors") for each in (out, tmp_path / "straight"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_two_commands_do_not_write_one_directory(recipe, tmp_path, capsys):
    with alone(tmp_path / "out"):
        assert main(["pretrain", str(recipe), "--out", str(tmp_path / "out")]) == Exit.BAD_INPUT
    assert f"another command writes there (process {os.getpid()}); wait for it" in capsys.readouterr().err
    assert not [*(tmp_path / "out").iterdir()]


def test_another_recipe_in_the_same_place_is_refused(recipe, tmp_path, capsys):
    assert run(recipe, tmp_path / "out", "midtraining.stages=[{tokens=500, mixture={code=1.0, talks=1.0}}]") == 0
    assert run(recipe, tmp_path / "out", "seed=7") == 42
    assert "was made with another `seed`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("midtraining.stages=[{tokens=500, mixture={code=1.0}}]", "no mixture draws from talks"),
        ('sessions.code=["x"]', "a corpus has this name already"),
        ("corpus.code.languages=[\"go\"]", "none is left to train on (5 language)"),
        ("max_context=1024", "the model's context is 1024 already"),
        ('sessions.talks=["gone.jsonl"]', "gone.jsonl: cannot be read"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence(recipe, tmp_path, capsys, change, said):
    assert run(recipe, tmp_path / "out", change) == 42
    assert said in capsys.readouterr().err


def test_of_a_conversation_the_assistants_words_alone_are_learnt(tmp_path):
    chat = open_chat(ROOT / "models/etude-tiny", load_checkpoint(ROOT / "models/etude-tiny")[1])
    (tmp_path / "a.jsonl").write_text(json.dumps(TALK) + "\n\n")
    [document] = conversations((tmp_path / "a.jsonl",), chat).documents
    assert chat.decode(document.token_ids[document.sampled].tolist()) == "A function.It is called cart_1."
    whole = chat.decode(document.token_ids.tolist())
    assert "You are brief." in whole and "def cart_1()" in whole
    assert (document.token_ids == chat.end_id).sum() == 5, "a spelt token ends no message"
    half = r'{"messages": [{"role": "user", "content": "\ud800"}]}'
    no_answer = '{"messages": [{"role": "user", "content": "a"}]}'
    for wrong in ("{}", "[", "[" * 100_000, half, '{"messages": []}', no_answer):
        (tmp_path / "a.jsonl").write_text(f"{json.dumps(TALK)}\n{wrong}\n")
        with pytest.raises(ConfigError, match=r"a\.jsonl:2: "):
            conversations((tmp_path / "a.jsonl",), chat)


def test_a_conversation_with_a_secret_is_left_out_and_counted(recipe, tmp_path, capsys):
    chat = open_chat(ROOT / "models/etude-tiny")
    key = f"AKIA{'QRSTUVWXYZ234567'}"
    told = [
        {"messages": [{"role": "user", "content": f"The key is {key}"}, {"role": "assistant", "content": "Good."}]},
        {"messages": [{"role": "user", "content": "The key?"}, {"role": "assistant", "content": f"It is {key}"}]},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, [told[0], TALK, told[1]])))
    found = conversations((tmp_path / "a.jsonl",), chat)
    assert len(found.documents) == 1 and found.secret == 2
    (tmp_path / "b.jsonl").write_text(json.dumps(told[0]))
    assert run(recipe, tmp_path / "out", f"sessions.talks=[{json.dumps(str(tmp_path / 'b.jsonl'))}]") == 42
    assert "sessions.talks: no conversation is left (1 hold a secret)" in capsys.readouterr().err


def test_a_conversation_is_a_line_whatever_characters_it_holds(tmp_path):
    chat = open_chat(ROOT / "models/etude-tiny")
    for name, plainly in (("a", True), ("b", False)):
        talk = {"messages": [*TALK["messages"], {"role": "user", "content": "a\u2028b\x85c"}, TALK["messages"][-1]]}
        (tmp_path / name).write_text(json.dumps(talk, ensure_ascii=plainly) + "\n")
    [one], [other] = (conversations((tmp_path / name,), chat).documents for name in "ab")
    assert one.token_ids.tolist() == other.token_ids.tolist()


def test_what_is_held_out_is_measured_as_the_loss_measures_it():
    decoder, _ = load_checkpoint(ROOT / "models/etude-tiny")
    ids = np.random.default_rng(0).integers(50, 900, (3, 40)).astype(np.int32)
    documents = [Document(each, np.arange(40) >= 8 * at) for at, each in enumerate(ids)]
    total, count = nll(decoder, documents, 50)
    losses = supervised_loss(decoder, documents, 0.0, 0.0)
    assert count == 39 + 32 + 24 and total / count == pytest.approx(float(losses.next_token), rel=1e-5)
    named = [Document(*each[:2], "ab"[at > 0]) for at, each in enumerate(documents)]
    by_source = supervised_loss(decoder, named, 0.0, 0.0).by_source
    assert {name: float(each) for name, each in by_source.items()} == {
        name: pytest.approx(nll(decoder, part, 500)[0] / nll(decoder, part, 500)[1], rel=1e-5)
        for name, part in (("a", documents[:1]), ("b", documents[1:]))
    }


def test_a_longer_context_is_in_the_saved_checkpoint(recipe, tmp_path):
    assert (
        run(
            recipe,
            tmp_path / "out",
            "max_context=4096",
            "midtraining.stages=[{tokens=4200, mixture={code=1.0, talks=1.0}}]",
        )
        == 0
    )
    decoder, _ = load_checkpoint(tmp_path / "out/model")
    assert decoder.config.max_context == 4096 and decoder.config.yarn.factor == 4.0
    documents = np.load(tmp_path / "out/corpus/code/held_out.npz")["lengths"]
    assert documents.max() > 1024, "pieces are as long as the new context"
