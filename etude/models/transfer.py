"""A model brought in, and taken out again: as a directory in the published layout that is whole in itself.

Owns `import_model` (from a GGUF, or from a directory of safetensors) and `export_model` (from a checkpoint or a run).
Both write the same: config.json, weights in bf16, tokenizer, chat template, generation_config.json; what the origin
has not is made as Etude itself would talk to the model, so that others do too. A tensor at a time is in memory, and of
OUT there is all or nothing. Never trains or samples; `engine.check` says whether the copy is right.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from etude.errors import CheckpointError, ConfigError, InvalidRequest
from etude.host.lock import handle_of, hold, try_hold
from etude.models import files
from etude.models.chat import OURS, open_chat
from etude.models.checkpoint import family_of, opened, shapes_of, write_config
from etude.models.config import ModelConfig
from etude.models.generation import (
    GENERATION,
    TEMPLATE,
    TOKENIZER_CONFIG,
    copy_companions,
    read_generation,
    read_template,
)  # fmt: skip
from etude.models.gguf.layouts import Layout
from etude.models.gguf.reading import Gguf
from etude.models.gguf.vocabulary import companions_of, tokenizer_of
from etude.models.shards import SHARD_BYTES, stored_bytes, write_weights
from etude.models.shipped import model_at
from etude.models.size import parameters_of
from etude.models.tokenizer import START, load_tokenizer, save_tokenizer

STORED = torch.bfloat16
"""As a policy's weights always are (`models.state`)."""
_PARTIAL = ".partial"
_BESIDE = 64 << 20
"""Room for tokenizer and the other small files."""


@dataclass(frozen=True)
class Written:
    """What was written. `remarks` say what will not work with it as it is."""

    directory: str
    architecture: str
    parameter_count: int
    bytes: int
    max_context: int
    vocab_size: int
    chat_template: bool
    remarks: tuple[str, ...] = ()

    def text(self) -> str:
        """For people."""
        size = f"{self.parameter_count / 1e6:,.1f}M parameters, {self.bytes / 1e6:,.0f} MB"
        first = f"{self.directory}: {self.architecture}, {size}, a context of {self.max_context:,} tokens"
        return "\n".join([first, *(f"note: {remark}" for remark in self.remarks)])


class _Origin(NamedTuple):
    config: ModelConfig
    tensor: Callable[[str], Tensor]
    tokenizer: Tokenizer
    add_companions: Callable[[Path], None]


def import_model(origin: Path, out: Path, shard_bytes: int = SHARD_BYTES) -> Written:
    """A GGUF file or a directory of safetensors as a new directory. Raises ConfigError for paths that are wrong and
    CheckpointError for a model that is not understood, or for which there is no room."""
    _require_free(out)
    with _of_gguf(origin) if origin.suffix == ".gguf" and not origin.is_dir() else _of_directory(origin) as model:
        return _written(model, out, shard_bytes)


def export_model(checkpoint: Path, out: Path, shard_bytes: int = SHARD_BYTES) -> Written:
    """A checkpoint, or the newest model of a run's directory, as a new directory that others open."""
    _require_free(out)
    if not files.is_file(checkpoint / files.CONFIG) and files.is_file(checkpoint / "model" / files.CONFIG):
        checkpoint = checkpoint / "model"
    with _of_directory(checkpoint) as model:
        return _written(model, out, shard_bytes)


def _require_free(out: Path) -> None:
    if os.path.lexists(out):
        raise ConfigError(f"{out}: there is something already; name a directory that does not exist yet")


@contextmanager
def _of_directory(directory: Path) -> Generator[_Origin]:
    model_at(directory)
    tokenizer = load_tokenizer(directory)
    with opened(directory) as (config, tensor):
        yield _Origin(config, tensor, tokenizer, lambda out: copy_companions(directory, out))


@contextmanager
def _of_gguf(path: Path) -> Generator[_Origin]:
    file = Gguf(path)
    layout, tokenizer = Layout(file), tokenizer_of(file)
    wanted, held = shapes_of(layout.config), layout.shapes
    if wrong := [name for name in wanted.keys() | held.keys() if wanted.get(name) != held.get(name)]:
        what = [f"{name} is {held.get(name, 'missing')}, not {wanted.get(name, 'expected')}" for name in sorted(wrong)]
        raise CheckpointError(
            f"{path}: its tensors are not those of the model that it describes: {files.few(what)}; take the model as "
            "its maker published it"
        )

    def add_companions(out: Path) -> None:
        for name, data in companions_of(file, tokenizer, layout.config.max_context).items():
            (out / name).write_bytes(data)

    yield _Origin(layout.config, layout.tensor, tokenizer, add_companions)


def _written(model: _Origin, out: Path, shard_bytes: int) -> Written:
    shapes = shapes_of(model.config)
    out.parent.mkdir(parents=True, exist_ok=True)
    with _place_beside(out) as place:
        _require_room(place, stored_bytes(shapes, STORED) + _BESIDE)
        partial = place / "model"
        partial.mkdir()
        try:
            write_config(partial, model.config, STORED)
            write_weights(partial, shapes, lambda name: _finite(name, model.tensor(name)), STORED, shard_bytes)
            save_tokenizer(model.tokenizer, partial)
            model.add_companions(partial)
            remarks = (*_beyond(model), *_complete(partial, model))
            templated = _is_templated(partial)
        except OSError as error:
            raise CheckpointError(f"{out}: the model cannot be written ({error}); make room there") from None
        _require_free(out)  # another command may have been faster
        partial.rename(out)
    return Written(
        directory=str(out),
        architecture=family_of(model.config).architecture,
        parameter_count=parameters_of(model.config),
        bytes=sum(path.stat().st_size for path in out.iterdir()),
        max_context=model.config.max_context,
        vocab_size=model.config.vocab_size,
        chat_template=templated,
        remarks=remarks,
    )


@contextmanager
def _place_beside(out: Path) -> Generator[Path]:
    """A directory that goes away, with those of commands that were killed: each may be as large as a model."""
    for torn in out.parent.glob(f".{glob.escape(out.name)}-*{_PARTIAL}"):
        if torn.is_symlink() or not torn.is_dir():
            continue  # somebody else's, whatever it is called
        with handle_of(torn) as handle:
            if try_hold(handle):
                shutil.rmtree(torn)
    made = tempfile.TemporaryDirectory(prefix=f".{out.name}-", suffix=_PARTIAL, dir=out.parent)
    with made as place, handle_of(place) as handle:
        hold(handle)
        yield Path(place)


def _require_room(place: Path, needed: int) -> None:
    free = shutil.disk_usage(place).free
    if needed > free:
        raise CheckpointError(
            f"{place}: the model needs {needed / 1e9:,.1f} GB in bf16, and there are {free / 1e9:,.1f} GB free; make "
            "room, or name a directory on another disk"
        )


def _finite(name: str, tensor: Tensor) -> Tensor:
    """Neither layout has a checksum: what was torn on its way here shows by bits that are no numbers."""
    if not tensor.isfinite().all():
        raise CheckpointError(
            f"{name} holds what is no number, so the model computes nothing; take a copy that is whole"
        )
    return tensor


def _is_templated(directory: Path) -> bool:
    try:
        return read_template(directory) is not None
    except CheckpointError:  # which is a remark
        return False


def _beyond(model: _Origin) -> tuple[str, ...]:
    rows = model.config.vocab_size
    beyond = sorted((at, token) for token, at in model.tokenizer.get_vocab().items() if at >= rows)
    if not beyond:
        return ()
    named = files.few(f"{token!r} ({at})" for at, token in beyond)
    return (
        f"its embeddings have {rows:,} rows, and its tokenizer tokens behind them: {named}; no text that holds one can "
        "be computed, so take the tokenizer.json that was published with these weights",
    )


def _complete(directory: Path, model: _Origin) -> tuple[str, ...]:
    """Put in what the origin does not say of how the model is talked to, as `open_chat` makes it. Returns remarks."""
    try:
        chat = open_chat(directory, model.tokenizer)
    except (CheckpointError, InvalidRequest) as error:
        return (str(error).replace(f"{directory}/", ""),)
    end = model.tokenizer.id_to_token(chat.end_id)
    made: dict[str, dict[str, object]] = {
        TOKENIZER_CONFIG: {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": model.config.max_context,
            "clean_up_tokenization_spaces": False,
            "eos_token": end,
        },
        GENERATION: {"eos_token_id": [chat.end_id, *sorted(chat.stop_ids - {chat.end_id})]},
    }
    remarks = tuple(read_generation(directory, model.tokenizer).remarks())
    if read_template(directory) is None:
        (directory / TEMPLATE).write_text(OURS)
        if model.tokenizer.token_to_id(START) is None:
            said = f"it has no chat template, and none of its tokens is the {START} of Etude's own, which is put in"
            remarks += (
                f"{said}: it will read that as plain text; fine-tune it on sessions before it is asked anything",
            )
    for name, keys in made.items():
        there = files.read_table(directory, name)
        if keys.keys() - there.keys():
            (directory / name).write_text(json.dumps(keys | there, indent=2, ensure_ascii=False) + "\n")
    return remarks
