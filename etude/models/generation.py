"""What a checkpoint says beside its weights of how it is talked to and sampled.

Owns the reading of generation_config.json, tokenizer_config.json and chat_template.jinja, each of which may be absent,
and their way into a checkpoint that was trained from this one. Renders nothing (`models.chat`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from etude.errors import CheckpointError
from etude.models.chat_template import ChatTemplate

TEMPLATE, TOKENIZER_CONFIG, GENERATION = "chat_template.jinja", "tokenizer_config.json", "generation_config.json"
_COMPANIONS = (TEMPLATE, TOKENIZER_CONFIG, GENERATION, "special_tokens_map.json")
_SAMPLING = ("temperature", "top_p", "top_k", "min_p")
_ELSEWHERE = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "typical_p": 1.0}
"""Keys that would change an answer and that no engine of ours follows, with the value that changes nothing."""


@dataclass(frozen=True)
class Generation:
    """`eos_ids` end a message, the usual one first; `sampling` is what is sampled with where nobody says otherwise."""

    eos_ids: tuple[int, ...] = ()
    sampling: Mapping[str, float] = field(default_factory=dict)
    unfollowed: Mapping[str, float] = field(default_factory=dict)


def read_generation(directory: Path, tokenizer: Tokenizer) -> Generation:
    """Of a checkpoint. Raises CheckpointError naming a file or key that makes no sense."""
    path = directory / GENERATION
    said, tokens = _read(path), special_tokens(directory)
    ends = said.get("eos_token_id")
    if ends is None:
        ends = _read(directory / "config.json").get("eos_token_id")
    ids = [] if ends is None else ends if isinstance(ends, list) else [ends]
    named = tokenizer.token_to_id(tokens["eos_token"]) if "eos_token" in tokens else None
    if named is not None:
        ids = [*ids, named]
    for token in ids:
        if type(token) is not int or token < 0:
            raise CheckpointError(f"{path}: eos_token_id holds {token!r}, which is no token id")
    given = {key: said[key] for key in (*_SAMPLING, *_ELSEWHERE) if said.get(key) is not None}
    for key, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CheckpointError(f"{path}: {key} is {value!r}, which is no number")
    sampling = {key: given[key] for key in _SAMPLING if key in given}
    if said.get("do_sample") is False:
        sampling = {"temperature": 0.0}
    return Generation(
        tuple(dict.fromkeys(ids)),
        sampling,
        {key: given[key] for key, idle in _ELSEWHERE.items() if given.get(key, idle) != idle},
    )


def read_template(directory: Path) -> ChatTemplate | None:
    """A checkpoint's own chat template, if it has one."""
    tokens = special_tokens(directory)
    path = directory / TEMPLATE
    if path.exists():
        return ChatTemplate(path.read_text(encoding="utf-8"), tokens, str(path))
    path = directory / TOKENIZER_CONFIG
    said = _read(path).get("chat_template")
    if isinstance(said, list):  # several, by name
        said = next((each.get("template") for each in said if each.get("name") == "default"), None)
    return ChatTemplate(said, tokens, str(path)) if isinstance(said, str) and said else None


def special_tokens(directory: Path) -> dict[str, str]:
    """The tokens that a template may call by name, such as `bos_token`."""
    said = _read(directory / "special_tokens_map.json") | _read(directory / TOKENIZER_CONFIG)
    tokens = {key: each.get("content") if isinstance(each, dict) else each for key, each in said.items()}
    return {key: each for key, each in tokens.items() if key.endswith("_token") and isinstance(each, str)}


def copy_companions(origin: Path, directory: Path) -> None:
    """Give a checkpoint the files in which another says how it is talked to, and what its config.json alone says of
    it."""
    for name in _COMPANIONS:
        if (origin / name).exists():
            shutil.copyfile(origin / name, directory / name)
    ends = _read(origin / "config.json").get("eos_token_id")
    if ends is not None and not (origin / GENERATION).exists():
        (directory / GENERATION).write_text(json.dumps({"eos_token_id": ends}) + "\n")


def _read(path: Path) -> dict[str, Any]:
    """A file's table; empty where there is no such file."""
    if not path.exists():
        return {}
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path}: not readable JSON ({error}); copy it anew from the model's source") from None
    if not isinstance(said, dict):
        raise CheckpointError(f"{path}: should hold a table, not a {type(said).__name__}")
    return said
