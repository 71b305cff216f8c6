"""A model's directory brought in and taken out: what others open, what is added, and that nothing is left half done."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from sick_disk import mounted
from test_families import DEEPSEEK, MODELS, logits, publish, publish_with_a_further_token, tensors

from etude.cli.main import main
from etude.errors import CheckpointError, ConfigError
from etude.host.lock import hold
from etude.models.chat import open_chat
from etude.models.chat_template import Message
from etude.models.checkpoint import INDEX, load_checkpoint, save_checkpoint
from etude.models.shipped import shipped_model
from etude.models.tokenizer import load_tokenizer, save_tokenizer
from etude.models.transfer import export_model, import_model

transformers = pytest.importorskip("transformers", reason="parity needs the dev extra")
TALK = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "x"}]


def rounded(directory):
    """A random model whose weights bf16 holds, so that a copy in bf16 is the same model."""
    decoder, tokenizer = load_checkpoint(directory)
    save_checkpoint(decoder, directory, tokenizer)


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_directory_of_every_family_goes_in_and_out_with_the_same_logits(name, shards, tmp_path):
    theirs = type(publish(name, tmp_path / "theirs"))
    rounded(tmp_path / "theirs")
    some = {"shard_bytes": 20_000} if shards else {}
    import_model(tmp_path / "theirs", tmp_path / "in", **some)
    export_model(tmp_path / "in", tmp_path / "out", **some)
    assert (tmp_path / "in" / INDEX).exists() == (tmp_path / "out" / INDEX).exists() == shards
    before, after = tensors(tmp_path / "theirs"), tensors(tmp_path / "out")
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    ids = torch.arange(100)
    of = [theirs.from_pretrained(tmp_path / each, dtype=torch.float32)(ids[None]).logits for each in ("theirs", "out")]
    assert torch.equal(*of)
    torch.testing.assert_close(logits(load_checkpoint(tmp_path / "out")[0], ids), of[0][0], atol=1e-5, rtol=0)


def test_the_layer_for_a_further_token_goes_along(tmp_path):
    publish_with_a_further_token(tmp_path / "theirs")
    export_model(tmp_path / "theirs", tmp_path / "out")
    assert load_checkpoint(tmp_path / "out")[0].config.further_token
    assert any(
        name.startswith(f"model.layers.{DEEPSEEK['num_hidden_layers']}.eh_proj") for name in tensors(tmp_path / "out")
    )


@torch.no_grad()
def test_the_shipped_model_is_opened_by_transformers_and_talked_to_as_etude_does(tmp_path):
    """It has no chat template of its own: the copy says which frame Etude puts a conversation in."""
    written = export_model(shipped_model(), tmp_path / "out")
    assert written.chat_template and written.remarks == ()
    chat = open_chat(shipped_model())
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    expected = chat.conversation([Message(each["role"], each["content"]) for each in TALK])
    assert theirs.apply_chat_template(TALK, add_generation_prompt=True, return_dict=False) == expected
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert model.generation_config.eos_token_id == [chat.end_id, *sorted(chat.stop_ids - {chat.end_id})]
    ours, _ = load_checkpoint(shipped_model())
    ids = torch.tensor(expected)
    torch.testing.assert_close(model(ids[None]).logits[0], logits(ours, ids), atol=1e-4, rtol=0)


def test_files_that_say_how_a_model_is_talked_to_come_along_as_they_were(tmp_path):
    publish("qwen3", tmp_path / "theirs")
    shutil.copy(shipped_model() / "tokenizer.json", tmp_path / "theirs")
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    template += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    own = {"tokenizer_class": "Qwen2Tokenizer", "model_max_length": 7, "chat_template": template}
    (tmp_path / "theirs/tokenizer_config.json").write_text(json.dumps(own))
    (tmp_path / "theirs/generation_config.json").write_text('{"eos_token_id": [2, 0], "temperature": 0.7}')
    import_model(tmp_path / "theirs", tmp_path / "out")
    kept = json.loads((tmp_path / "out/tokenizer_config.json").read_text())
    assert own.items() <= kept.items() and kept["eos_token"] == "<|im_end|>"
    assert json.loads((tmp_path / "out/generation_config.json").read_text()) == {
        "eos_token_id": [2, 0],
        "temperature": 0.7,
    }
    assert not (tmp_path / "out/chat_template.jinja").exists()


def test_a_model_that_nobody_can_talk_to_is_taken_with_a_remark(tmp_path):
    publish("qwen3", tmp_path / "theirs")  # its tokenizer is empty, and no token ends a message
    written = import_model(tmp_path / "theirs", tmp_path / "out")
    assert len(written.remarks) == 1 and "no eos_token_id says what ends a message" in written.remarks[0]
    assert f"note: {written.remarks[0]}" in written.text()


def test_a_frame_whose_marks_the_tokens_have_not_is_a_remark(tmp_path):
    shutil.copytree(shipped_model(), tmp_path / "theirs")
    (tmp_path / "theirs/chat_template.jinja").unlink(missing_ok=True)
    assert import_model(tmp_path / "theirs", tmp_path / "known").remarks == ()
    said = (tmp_path / "theirs/tokenizer.json").read_text()
    (tmp_path / "theirs/tokenizer.json").write_text(said.replace("<|im_start|>", "<|begins|>"))
    [remark] = import_model(tmp_path / "theirs", tmp_path / "out").remarks
    assert "has no chat template, and none of its tokens is the <|im_start|>" in remark


def test_a_runs_directory_gives_its_newest_model(tmp_path):
    shutil.copytree(shipped_model(), tmp_path / "run/model")
    export_model(tmp_path / "run", tmp_path / "out")
    assert tensors(tmp_path / "out").keys() == tensors(shipped_model()).keys()


# --- what is refused --------------------------------------------------------------------------------------------------


def test_what_is_there_already_is_never_written_over(tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for out in ("out", "link"):
        for act in (import_model, export_model):
            with pytest.raises(ConfigError, match=f"{out}: there is something already"):
                act(shipped_model(), tmp_path / out)
    assert main(["models", "export", str(shipped_model()), str(tmp_path / "out")]) == 42
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_where_nobody_may_write_is_told_in_one_line(capsys):
    assert main(["models", "import", str(shipped_model()), "/sys/out"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "not permitted" in said


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"model.safetensors": "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"}, "run `git lfs pull`"),
        ({"model.safetensors": None, "pytorch_model.bin": "x"}, "Other files than safetensors are not read"),
        ({"config.json": None, "adapter_config.json": "{}"}, "an adapter without its model"),
        ({"tokenizer.json": None, "vocab.json": "{}"}, "AutoTokenizer.from_pretrained"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_a_download_often_is_instead_is_told(files, said, tmp_path, capsys):
    publish("qwen3", tmp_path / "theirs")
    for name, text in files.items():
        (tmp_path / "theirs" / name).unlink(missing_ok=True)
        if text is not None:
            (tmp_path / "theirs" / name).write_text(text)
    assert main(["models", "import", str(tmp_path / "theirs"), str(tmp_path / "out")]) != 0
    assert said in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_disk_without_room_is_told_before_anything_is_written(tmp_path):
    with mounted(tmp_path / "disk", "1m") as disk:
        with pytest.raises(CheckpointError, match=r"needs 0\.1 GB in bf16, and there are 0\.0 GB free"):
            import_model(shipped_model(), disk.at / "out")
        assert list(disk.at.iterdir()) == []


def test_a_disk_that_fills_up_meanwhile_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("etude.models.transfer._BESIDE", -(1 << 30))  # nobody asked before
    with mounted(tmp_path / "disk", "1m") as disk:
        with pytest.raises(CheckpointError, match=r"cannot be written .*make room there"):
            import_model(shipped_model(), disk.at / "out")
        assert list(disk.at.iterdir()) == []


def test_what_a_killed_command_left_is_cleared_away_and_a_living_ones_is_not(tmp_path):
    publish("qwen3", tmp_path / "theirs")
    for name in ("torn", "living"):
        (tmp_path / f".out-{name}.partial" / "model").mkdir(parents=True)
    handle = os.open(tmp_path / ".out-living.partial", os.O_RDONLY)
    hold(handle)
    import_model(tmp_path / "theirs", tmp_path / "out")
    os.close(handle)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out-living.partial", "out", "theirs"]


def test_what_is_no_directory_of_its_own_is_let_be(tmp_path):
    publish("qwen3", tmp_path / "theirs")
    (tmp_path / "precious").mkdir()
    (tmp_path / ".out-link.partial").symlink_to("precious")
    (tmp_path / ".out-gone.partial").symlink_to("nowhere")
    (tmp_path / ".out-file.partial").write_text("")
    before = {path.name for path in tmp_path.iterdir()}
    import_model(tmp_path / "theirs", tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {*before, "out"}


@pytest.mark.parametrize("out", ["a" * 245, "a" * 300, "a" * 300 + "/b", "a/" * 3000 + "b"])
def test_a_name_that_no_disk_holds_is_told_in_one_line(out, tmp_path, capsys):
    assert main(["models", "import", str(shipped_model()), str(tmp_path / out)]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "a name is longer than the file system holds" in said
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(("number", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_command_that_is_stopped_leaves_nothing(number, code, tmp_path):
    publish("qwen3", tmp_path / "theirs")
    stop = (
        "import os, signal, sys; from etude.cli.main import main; from etude.models import transfer\n"
        f"transfer.save_tokenizer = lambda *_: os.kill(os.getpid(), signal.{number})\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    words = ["models", "import", str(tmp_path / "theirs"), str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", stop, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("etude models: stopped before the model was whole") and done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


def test_tokens_without_a_row_of_the_embeddings_are_a_remark(tmp_path):
    shutil.copytree(shipped_model(), tmp_path / "theirs")
    tokenizer = load_tokenizer(tmp_path / "theirs")
    tokenizer.add_tokens([f"more\n{n}" for n in range(5)])
    save_tokenizer(tokenizer, tmp_path / "theirs")
    [remark] = import_model(tmp_path / "theirs", tmp_path / "out").remarks
    assert "its embeddings have 1,024 rows, and its tokenizer tokens behind them: 'more\\n0' (1024), " in remark
    assert "'more\\n2' (1026) and 2 more; " in remark


def test_an_end_of_text_that_no_token_is_is_a_remark(tmp_path):
    shutil.copytree(shipped_model(), tmp_path / "theirs")
    (tmp_path / "theirs" / "generation_config.json").write_text('{"eos_token_id": 99999}')
    said = " ".join(import_model(tmp_path / "theirs", tmp_path / "out").remarks)
    assert "eos_token_id = 99999 (no tokens of tokenizer.json), which is not followed" in said


def test_weights_that_are_no_numbers_are_not_taken(tmp_path):
    publish("qwen3", tmp_path / "theirs")
    stored = tensors(tmp_path / "theirs")
    stored["model.norm.weight"][3] = torch.nan
    save_file(stored, tmp_path / "theirs" / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight holds what is no number"):
        import_model(tmp_path / "theirs", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "does more than one may"),
        ("{{ cycler.__init__.__globals__ }}", "refuses these messages"),
        ("{% if", "is no Jinja template"),
        ("{{ raise_exception('no') }}", "refuses these messages"),
        ("{{ raise_exception('no\nnote: yes') }}", "refuses these messages: no note: yes"),
        ("x" * (1 << 18), "a chat template of 262,144 characters"),
    ],
    ids=["endless", "reaching", "torn", "raising", "raising lines", "long"],
)
def test_a_template_that_nobody_can_use_is_a_remark(template, said, tmp_path):
    publish("qwen3", tmp_path / "theirs")
    (tmp_path / "theirs" / "chat_template.jinja").write_text(template)
    [remark] = import_model(tmp_path / "theirs", tmp_path / "out").remarks
    assert remark.startswith("chat_template.jinja: ") and said in remark


def test_a_head_that_is_said_to_be_tied_and_is_not_is_refused(tmp_path):
    publish("qwen3", tmp_path / "theirs")
    stored = tensors(tmp_path / "theirs")
    stored["lm_head.weight"] = stored["model.embed_tokens.weight"] + 1
    save_file(stored, tmp_path / "theirs/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="tie_word_embeddings is true"):
        import_model(tmp_path / "theirs", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_path_with_lines_in_it_is_told_in_one(tmp_path, capsys):
    assert main(["models", "import", str(tmp_path / "no\nsuch"), str(tmp_path / "out")]) == 42
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "no␊such" in said


def test_the_command_says_what_it_wrote(tmp_path, capsys):
    assert main(["models", "export", str(shipped_model()), str(tmp_path / "out"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["directory"] == str(tmp_path / "out") and said["architecture"] == "Qwen3MoeForCausalLM"
    assert said["bytes"] == sum(each.stat().st_size for each in Path(said["directory"]).iterdir())
    assert main(["models", "import", str(tmp_path / "out"), str(tmp_path / "in")]) == 0
    assert "Qwen3MoeForCausalLM" in capsys.readouterr().out
