"""What a checkpoint says beside its weights of how it is talked to and sampled.

Owns the reading of generation_config.json, tokenizer_config.json and chat_template.jinja, each of which may be absent,
and their way into a checkpoint that was trained from this one. Renders nothing (`models.chat`).
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from etude.errors import CheckpointError
from etude.models import files
from etude.models.chat_template import ChatTemplate

TEMPLATE, TOKENIZER_CONFIG, GENERATION = "chat_template.jinja", "tokenizer_config.json", "generation_config.json"
_TOKENS_MAP = "special_tokens_map.json"
_COMPANIONS = (TEMPLATE, TOKENIZER_CONFIG, GENERATION, _TOKENS_MAP)
_ANY = (int | float, -1e6, 1e6)
_SAMPLING = {
    "temperature": (int | float, 0, 1e6), "top_p": (int | float, 0, 1), "top_k": (int, -1, 1 << 31),
    "min_p": (int | float, 0, 1),
}  # fmt: skip
"""What is sampled with, and what a value of it may be."""
_ELSEWHERE = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "typical_p": 1.0}
"""Keys that would change an answer and that no engine of ours follows, with the value that changes nothing."""


@dataclass(frozen=True)
class Generation:
    """`eos_ids` end a message, the usual one first; `sampling` is what is sampled with where nobody says otherwise."""

    eos_ids: tuple[int, ...] = ()
    sampling: Mapping[str, float] = field(default_factory=dict)
    unfollowed: Mapping[str, float | str] = field(default_factory=dict)

    def remarks(self) -> list[str]:
        return [
            f"generation_config.json asks for {key} = {value}, which is not followed"
            for key, value in self.unfollowed.items()
        ]


def read_generation(directory: Path, tokenizer: Tokenizer) -> Generation:
    """Of a checkpoint. Raises CheckpointError naming a file or key that makes no sense."""
    path = directory / GENERATION
    said, tokens = files.read_table(directory, GENERATION), special_tokens(directory)
    ends, origin = said.get("eos_token_id"), path
    if ends is None:
        ends, origin = files.read_table(directory, files.CONFIG).get("eos_token_id"), directory / files.CONFIG
    ids = [] if ends is None else ends if isinstance(ends, list) else [ends]
    named = tokenizer.token_to_id(tokens["eos_token"]) if "eos_token" in tokens else None
    if named is not None:
        ids = [*ids, named]
    if unknown := [token for token in ids if type(token) is not int or token < 0]:
        raise CheckpointError(
            f"{origin}: eos_token_id holds {reprlib.repr(unknown[0])}, which is no token id; give one, or a list"
        )
    given = {key: said[key] for key in (*_SAMPLING, *_ELSEWHERE) if said.get(key) is not None}
    for key, value in given.items():
        kind, least, most = _SAMPLING.get(key, _ANY)
        if isinstance(value, bool) or not isinstance(value, kind) or not least <= value <= most:
            wanted = f"{'no whole' if kind is int else 'no'} number from {least} to {most}"
            raise CheckpointError(f"{path}: {key} is {reprlib.repr(value)}, which is {wanted}; mend it or leave it out")
    sampling = {key: given[key] for key in _SAMPLING if key in given}
    if said.get("do_sample") is False:
        sampling = {"temperature": 0.0}
    unfollowed = {key: given[key] for key, idle in _ELSEWHERE.items() if given.get(key, idle) != idle}
    known = {token: token < 1 << 32 and tokenizer.id_to_token(token) is not None for token in ids}
    if absent := [token for token, there in known.items() if not there]:
        unfollowed["eos_token_id"] = f"{files.few(map(str, absent))} (no tokens of tokenizer.json)"
    return Generation(tuple(token for token, there in known.items() if there), sampling, unfollowed)


def read_template(directory: Path) -> ChatTemplate | None:
    """A checkpoint's own chat template, if it has one."""
    tokens = special_tokens(directory)
    text = files.read_text(directory, TEMPLATE)
    if text is not None:
        return ChatTemplate(text, tokens, str(directory / TEMPLATE))
    said = files.read_table(directory, TOKENIZER_CONFIG).get("chat_template")
    if isinstance(said, list):  # several, by name
        named = (each for each in said if isinstance(each, dict))
        said = next((each.get("template") for each in named if each.get("name") == "default"), None)
    return ChatTemplate(said, tokens, str(directory / TOKENIZER_CONFIG)) if isinstance(said, str) and said else None


def special_tokens(directory: Path) -> dict[str, str]:
    """The tokens that a template may call by name, such as `bos_token`."""
    said = files.read_table(directory, _TOKENS_MAP) | files.read_table(directory, TOKENIZER_CONFIG)
    tokens = {key: each.get("content") if isinstance(each, dict) else each for key, each in said.items()}
    return {key: each for key, each in tokens.items() if key.endswith("_token") and isinstance(each, str)}


def copy_companions(origin: Path, directory: Path) -> None:
    """Give a checkpoint the files in which another says how it is talked to, and what its config.json alone says of
    it."""
    for name in _COMPANIONS:
        if (data := files.read(origin, name)) is not None:
            (directory / name).write_bytes(data)
    ends = files.read_table(origin, files.CONFIG).get("eos_token_id")
    if ends is not None and files.located(origin, GENERATION) is None:
        (directory / GENERATION).write_text(json.dumps({"eos_token_id": ends}) + "\n")
