"""Whatever is changed in the files of a checkpoint, it is loaded or refused in one of our own sentences."""

import json
import random
import shutil

import pytest

from etude.errors import EtudeError
from etude.models.chat import open_chat
from etude.models.checkpoint import load_checkpoint
from etude.models.generation import read_generation
from etude.models.shipped import shipped_model

CASES, SEED = 200, 7
VALUES = (
    None, True, False, 0, 1, -1, 2, 4, 7, 0.5, 1e300, 10**9, 10**30, "", "4", "yes", [], [1], [[]], {}, {"a": 1}, ["x"],
    "\x00", "\ud800", "{%", "é" * 50,
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64},
    {"rope_type": "llama3", "factor": 8, "original_max_position_embeddings": 64, "low_freq_factor": 1},
)  # fmt: skip
NEW = ("rope_scaling", "rope_parameters", "num_nextn_predict_layers", "sliding_window", "num_local_experts", "mystery")
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
SMALL = {
    "config.json": json.loads((shipped_model() / "config.json").read_text()),
    "generation_config.json": {"eos_token_id": [2], "temperature": 0.7, "top_p": 0.9, "top_k": 20, "do_sample": True},
    "tokenizer_config.json": {"chat_template": [{"name": "default", "template": TEMPLATE}], "eos_token": "<|im_end|>"},
    "special_tokens_map.json": {"eos_token": {"content": "<|im_end|>"}},
    "tokenizer.json": json.loads((shipped_model() / "tokenizer.json").read_text()),
}


def mutated(value, luck):
    if isinstance(value, dict) and value and luck.random() < 0.8:
        key = luck.choice([*value, luck.choice(NEW)])
        rest = {name: each for name, each in value.items() if name != key}
        return rest if luck.random() < 0.15 else rest | {key: mutated(value.get(key), luck)}
    if isinstance(value, list) and value and luck.random() < 0.6:
        at = luck.randrange(len(value))
        return [*value[:at], mutated(value[at], luck), *value[at + 1 :]]
    if isinstance(value, str) and value and luck.random() < 0.5:
        at = luck.randrange(len(value))
        return value[:at] + luck.choice(("", "{", "{%", "}}", "\x00")) + value[at + luck.randrange(3) :]
    return luck.choice(VALUES)


def torn(data, luck):
    if luck.random() < 0.3:
        return data[: luck.randrange(len(data))]
    changed = bytearray(data)
    for _ in range(luck.randrange(1, 6)):
        changed[luck.randrange(min(len(data), 4000))] = luck.randrange(256)
    return bytes(changed)


@pytest.mark.parametrize("quarter", range(4))
def test_a_changed_checkpoint_is_loaded_or_refused_in_one_sentence(quarter, tmp_path):
    said = []
    for number in range(CASES // 4):
        luck = random.Random(f"{SEED} {quarter} {number}")
        shutil.copyfile(shipped_model() / "model.safetensors", tmp_path / "model.safetensors")
        chosen = luck.choice([*SMALL, *["config.json"] * 2])
        for name, value in SMALL.items():
            (tmp_path / name).write_text(json.dumps(mutated(value, luck) if name == chosen else value))
        if luck.random() < 0.2:
            path = tmp_path / luck.choice([*SMALL, "model.safetensors"])
            path.write_bytes(torn(path.read_bytes(), luck))
        try:
            _, tokenizer = load_checkpoint(tmp_path)
            open_chat(tmp_path, tokenizer)
            read_generation(tmp_path, tokenizer)
            said.append("")
        except EtudeError as error:
            said.append(str(error))
    assert not [each for each in said if "\n" in each or len(each) > 1500]
    assert "" in said and any(said)
