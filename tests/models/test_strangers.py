"""A checkpoint that a stranger made works, or is refused by one sentence that says what to do."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from etude.cli.main import main
from etude.errors import CheckpointError, ConfigError, InvalidRequest
from etude.models import files
from etude.models.chat import open_chat
from etude.models.checkpoint import MOST_FILES, MOST_TENSORS, check_checkpoint, load_checkpoint
from etude.models.generation import copy_companions, read_generation
from etude.models.shipped import model_at, shipped_model
from etude.models.tokenizer import decode, load_tokenizer

HERE = Path(__file__)
MODELS = HERE.parents[2] / "etude/models"
NAMES = ("config.json", "tokenizer.json", "model.safetensors")
EXTRA = ("generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


@pytest.fixture
def model(tmp_path):
    """A copy of the shipped model: whole files, with the small ones that it has not."""
    made = tmp_path / "model"
    made.mkdir()
    for name in NAMES:
        shutil.copyfile(shipped_model() / name, made / name)
    return made


def opened(directory):
    """All that reads a checkpoint, as a server does."""
    _, tokenizer = load_checkpoint(directory)
    open_chat(directory, tokenizer)
    return read_generation(directory, tokenizer)


def refusal(directory, read=opened):
    with pytest.raises(CheckpointError) as caught:
        read(directory)
    said = str(caught.value)
    assert "\n" not in said and len(said) < 1500, said
    return said


def edit(path, **changes):
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | changes))


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*NAMES, *EXTRA, files.INDEX])
@pytest.mark.parametrize("what", ["pipe", "directory", "circle", "nowhere", "outside", "device"])
def test_what_is_no_regular_file_of_the_directory_is_refused_and_nothing_waits_for_it(name, what, model, tmp_path):
    path = model / name
    path.unlink(missing_ok=True)
    (tmp_path / "other").write_text("{}")
    match what:
        case "pipe":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "circle":
            path.symlink_to(path)
        case "nowhere":
            path.symlink_to("gone")
        case "outside":
            path.symlink_to("../other")
        case "device":
            path.symlink_to("/dev/zero")
    assert str(path) in refusal(model)


BROKEN = {
    "list": b"[1]",
    "deep": b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "unclosed": b"[" * 100_000,
    "no number": b'{"a": NaN}',
    "infinite": b'{"a": 1e999}',
    "huge": b'{"a": ' + b"9" * 5000 + b"}",
    "not UTF-8": b'{"a": "\xff"}',
    "half a character": b'{"a": "\\ud800"}',
    "cut off": b'{"a": ',
    "empty": b"",
}


@pytest.mark.parametrize("name", ["config.json", files.INDEX, *EXTRA[:3]])
@pytest.mark.parametrize("what", BROKEN)
def test_what_is_no_table_is_refused_by_the_files_name(name, what, model):
    (model / name).write_bytes(BROKEN[what])
    said = refusal(model)
    assert said.startswith(f"{model / name}: ") and "copy it anew from the model's source" in said


def test_a_file_that_is_too_large_is_not_read(model):
    with (model / "generation_config.json").open("wb") as file:
        file.truncate(files.SMALL + 1)
    assert "generation_config.json: cannot be read (is larger than" in refusal(model)


def test_a_template_that_is_no_text_is_named(model):
    (model / "chat_template.jinja").write_bytes(b"\xff")
    assert "chat_template.jinja: not UTF-8 at byte 0" in refusal(model)


def test_links_into_hugging_faces_cache_and_inside_the_directory_work(model, tmp_path):
    snapshot, blobs = tmp_path / "hub/models--a--b/snapshots/main", tmp_path / "hub/models--a--b/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for name in NAMES:
        (model / name).rename(blobs / f"hash-of-{name}")
        (snapshot / name).symlink_to(f"../../blobs/hash-of-{name}")
    opened(snapshot)
    (model / "chat").mkdir()
    for name in NAMES:
        shutil.copyfile(blobs / f"hash-of-{name}", model / "chat" / name)
        (model / name).symlink_to(f"chat/{name}")
    opened(model)
    (tmp_path / "named").symlink_to(model)
    opened(tmp_path / "named")


def test_a_trained_checkpoint_takes_nothing_of_the_users_along(model, tmp_path):
    (tmp_path / "secret").write_text("{}")
    (model / "special_tokens_map.json").symlink_to("../secret")
    assert "special_tokens_map.json: leads out of the directory" in refusal(
        model, lambda origin: copy_companions(origin, tmp_path)
    )


def test_only_one_module_opens_files_of_a_checkpoint():
    """But for weights, which safetensors opens where `files.located` found them, and what is written."""
    opening = {"read_text", "read_bytes", "open", "from_file", "copyfile", "exists", "is_file", "load_file"}
    for path in sorted(MODELS.rglob("*.py")):
        if path.name == "files.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                owner, _, called = ast.unparse(node.func).rpartition(".")
                assert owner == "files" or called not in opening, f"{path.name}:{node.lineno}"


def hub(directory):
    return Path("Qwen/Qwen3-0.6B")


def gguf_inside(directory):
    (directory / "a.gguf").write_bytes(b"GGUF")
    return directory


def gguf_itself(directory):
    return gguf_inside(directory) / "a.gguf"


def some_file(directory):
    (directory / "a.bin").write_bytes(b"")
    return directory / "a.bin"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (gguf_inside, "a.gguf: this file holds weights as llama.cpp .*docs/models.md#from-a-gguf"),
        (gguf_itself, "a.gguf: this file holds weights as llama.cpp .*docs/models.md#from-a-gguf"),
        (some_file, "a.bin: this is no directory; give the one"),
        (hub, "there is no directory Qwen/Qwen3-0.6B; .*hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B"),
        (lambda directory: directory / "no", "there is no directory .*/no; give one that holds config.json"),
        (lambda directory: directory, "no config.json there; a model directory holds it"),
    ],
)
def test_what_is_no_checkpoints_directory_is_told_what_it_is(place, said, tmp_path):
    given = place(tmp_path)
    for read, error in (
        (load_checkpoint, CheckpointError),
        (check_checkpoint, CheckpointError),
        (model_at, ConfigError),
    ):
        with pytest.raises(error, match=said):
            read(given)


@pytest.mark.parametrize("command", [["serve"], ["play", "--model"]])
def test_commands_say_so_in_one_line(command, tmp_path, capfd):
    assert main([*command, str(gguf_inside(tmp_path))]) == 42
    said = capfd.readouterr().err
    assert "docs/models.md#from-a-gguf" in said and len(said.strip().splitlines()) == 1


# --- weights ----------------------------------------------------------------------------------------------------------


def shards(model, **named):
    (model / files.INDEX).write_text(json.dumps({"weight_map": named or {"a": "model.safetensors"}}))


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/hostname", "sub/../../other.safetensors"])
def test_an_index_names_files_of_its_directory_only(name, model, tmp_path):
    shutil.copyfile(model / "model.safetensors", tmp_path / "other.safetensors")
    (model / "sub").mkdir()
    shards(model, a=name)
    assert "leads out of the directory" in refusal(model)


def test_shards_that_are_missing_are_counted(model):
    shards(model, **{str(n): f"{n}.safetensors" for n in range(5)})
    assert "no such file: 0.safetensors, 1.safetensors, 2.safetensors and 2 more; download" in refusal(model)
    shards(model, a=5)
    assert "weight_map names no files" in refusal(model)


def change_weights(model, change):
    path = model / "model.safetensors"
    stored = load_file(path)
    change(stored)
    save_file(stored, path, metadata={"format": "pt"})


def test_tensors_that_do_not_fit_are_named_and_counted(model):
    change_weights(model, lambda stored: stored.update({f"a.{n}": torch.zeros(1) for n in range(5)}))
    assert "a.0, a.1, a.2 and 2 more" in refusal(model)
    change_weights(model, lambda stored: [stored.pop(name) for name in list(stored) if name.startswith("a.")])
    edit(model / "config.json", head_dim=64)
    assert "self_attn.k_norm.weight has shape (32,) where config.json says (64,), model.layers" in refusal(model)
    assert " more; take the config.json that was published with these weights" in refusal(model)


def test_nothing_is_allocated_before_config_and_headers_agree(model):
    """The shape that is asked for here would take a terabyte."""
    edit(model / "config.json", hidden_size=100_000, vocab_size=1_000_000)
    assert "model.embed_tokens.weight has shape (1024, 128) where" in refusal(model)


def test_more_tensors_and_files_than_any_model_has_are_not_looked_at(model):
    weights = model / "model.safetensors"
    one = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({f"a.{n}": one for n in range(MOST_TENSORS + 1)}).encode()
    weights.write_bytes(len(header).to_bytes(8, "little") + header)
    assert "model.safetensors: more than 200,000 tensors" in refusal(model)
    shards(model, **{str(n): f"{n}.safetensors" for n in range(MOST_FILES + 1)})
    assert "index.json: names 10,001 files; at most 10,000 are read" in refusal(model)


@pytest.mark.parametrize("data", [b"", b"\xff" * 8, (100).to_bytes(8, "little") + b"{", b"\x02" + b"\0" * 7 + b"[]"])
def test_a_header_that_is_none_is_refused(data, model):
    (model / "model.safetensors").write_bytes(data)
    assert "model.safetensors: cannot be read" in refusal(model)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", 10**9), ("hidden_size", -1), ("hidden_size", 128.5), ("num_hidden_layers", "4"),
        ("num_hidden_layers", 10**9), ("vocab_size", 0), ("vocab_size", 10**400), ("num_attention_heads", 0),
        ("num_experts", 10**6), ("num_experts_per_tok", 0), ("num_experts_per_tok", True), ("head_dim", 0),
        ("rms_norm_eps", "small"), ("rope_theta", 1), ("tie_word_embeddings", "yes"), ("moe_intermediate_size", [96]),
        ("max_position_embeddings", -5), ("decoder_sparse_step", 0),
    ],
)  # fmt: skip
def test_a_number_that_no_model_has_is_refused_by_its_key(key, value, model):
    edit(model / "config.json", **{key: value})
    said = refusal(model)
    assert f"config.json: {key} is " in said and "it must be" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_experts_per_tok": 9}, "experts_per_token must be between 1 and experts"),
        ({"num_experts": 16_000, "num_hidden_layers": 1000}, "experts are more than 131072 in all"),
        ({"architectures": "Qwen3MoeForCausalLM"}, "architectures is 'Qwen3MoeForCausalLM'"),
        ({"architectures": 5}, "architectures is 5"),
        ({f"key{n}": 1 for n in range(99)}, "keys key0, key1, key10, .* and 79 more are unknown"),
        *(({"mlp_only_layers": only}, "mlp_only_layers is .*; it must be a list of layers, and there are 4$")
          for only in (5, [-1], [4], ["x"], [1e99], [True], [[]], {"0": 1})),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8, "original_max_position_embeddings": 64,
                           "low_freq_factor": 4, "high_freq_factor": 4}}, r"fast \(4.0\) must be more than slow"),
    ],
)  # fmt: skip
def test_a_config_whose_parts_do_not_go_together_is_refused(changes, said, model):
    edit(model / "config.json", **changes)
    with pytest.raises(CheckpointError, match=said):
        opened(model)


# --- tokens -----------------------------------------------------------------------------------------------------------

FILLED = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}


@pytest.mark.parametrize(
    "left_over",
    [
        {"truncation": {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}},
        {"truncation": {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 5}},
        {"padding": FILLED | {"strategy": {"Fixed": 64}}},
    ],
)
def test_what_a_trainer_left_in_the_tokenizer_neither_cuts_a_prompt_nor_fills_it(left_over, model):
    expected = open_chat(shipped_model()).encode("def add(a, b): return a + b")
    edit(model / "tokenizer.json", **left_over)
    assert 8 < len(expected) < 64 and open_chat(model).encode("def add(a, b): return a + b") == expected


def test_padding_beyond_all_memory_is_not_done(model):
    """In a process of its own, with little memory: it would end it."""
    edit(model / "tokenizer.json", padding=FILLED | {"strategy": {"Fixed": 4_000_000_000}})
    code = (
        "import resource, sys; from pathlib import Path; from etude.models.chat import open_chat\n"
        "resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30)); open_chat(Path(sys.argv[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(model)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "rules",
    [
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}},
        {"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "a"}},
    ],
    ids=["a search without end", "an empty pattern"],
)
def test_rules_at_which_the_library_panics_refuse_the_text(rules, model):
    edit(model / "tokenizer.json", **rules)
    with pytest.raises(
        InvalidRequest, match=r"tokenizer\.json cannot make tokens of a text of \d+ characters \(.*source$"
    ):
        open_chat(model).encode("a" * 28 + "!")


def test_ids_that_no_tokenizer_decodes_are_refused():
    with pytest.raises(InvalidRequest, match=r"tokenizer\.json cannot make text of 1 tokens"):
        decode(load_tokenizer(shipped_model()), [-1])


# --- how it is sampled ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("eos_token_id", "</s>"), ("eos_token_id", [1.5]), ("eos_token_id", True), ("eos_token_id", -1),
        ("eos_token_id", [None]), ("eos_token_id", {"a": 1}),
        ("temperature", "hot"), ("temperature", -1), ("temperature", 10**400),
        ("top_p", 2), ("top_p", [0.9]), ("top_k", 0.5), ("top_k", -2), ("min_p", -0.1), ("repetition_penalty", "x"),
    ],
)  # fmt: skip
def test_a_value_of_sampling_that_makes_no_sense_is_refused_by_its_key(key, value, model):
    edit(model / "generation_config.json", **{key: value})
    assert f"generation_config.json: {key} " in refusal(model)


def test_a_stop_token_of_config_json_is_refused_by_that_file(model):
    edit(model / "config.json", eos_token_id="</s>")
    assert "/config.json: eos_token_id holds '</s>', which is no token id" in refusal(model)


def test_stop_tokens_that_the_tokenizer_has_not_are_passed_over_with_a_word(model):
    edit(model / "generation_config.json", eos_token_id=[2, 5000, 2**40])
    found = opened(model)
    assert found.eos_ids == (2,)
    assert found.unfollowed == {"eos_token_id": "5000, 1099511627776 (no tokens of tokenizer.json)"}
