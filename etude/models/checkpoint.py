"""A decoder in its published checkpoint directory, read and written.

Owns what makes a checkpoint: config.json, model.safetensors or its shards with their index, tokenizer.json; how such
files are opened is `models.files`'. Which families there are is the table below; what a family's config.json means is
its own file's business. What is written here, `transformers` loads; what is not understood is refused with the name of
the key or tensor.
"""

from __future__ import annotations

import json
import reprlib
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from torch import Tensor

from etude.errors import CheckpointError
from etude.kernels.choice import Placement, of_process
from etude.models import files
from etude.models.config import ModelConfig
from etude.models.decoder import Decoder
from etude.models.deepseek_v3 import DEEPSEEK_V3
from etude.models.files import INDEX, WEIGHTS
from etude.models.generation import copy_companions
from etude.models.heap import give_back_large_arrays
from etude.models.llama import LLAMA, MISTRAL, QWEN2
from etude.models.published import EMBEDDINGS, HEAD, Family, Published, published_tensors, shared_tensors
from etude.models.qwen3 import QWEN3, QWEN3_MOE
from etude.models.shards import SHARD_BYTES, write_weights
from etude.models.tokenizer import load_tokenizer, save_tokenizer

FAMILIES = (QWEN3, QWEN3_MOE, DEEPSEEK_V3, LLAMA, MISTRAL, QWEN2)
MOST_TENSORS, MOST_FILES = 200_000, 10_000
"""Twice what the largest models have, and far more files: each is looked at before anything is made."""
_DTYPES = {"F64", "F32", "F16", "BF16"}


def save_checkpoint(
    decoder: Decoder,
    directory: Path,
    tokenizer: Tokenizer | None = None,
    dtype: torch.dtype = torch.bfloat16,
    shard_bytes: int = SHARD_BYTES,
    like: Path | None = None,
    tensor_of: Callable[[str], Tensor] | None = None,
) -> None:
    """Write config.json, the weights and, if given, tokenizer.json. More than `shard_bytes` become several files.
    `like` is the checkpoint that this one was trained from: its chat template and what ends a message come along.
    `tensor_of` gives tensors by their published names, in their order, where the decoder does not hold them itself.

    What is there already stays until the new files are whole; CheckpointError where there is no room for both."""
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=_made(directory.parent)) as partial:
        try:
            _write(decoder, Path(partial), tokenizer, dtype, shard_bytes, tensor_of)
            if like is not None:
                copy_companions(like, Path(partial))
        except OSError as error:
            raise CheckpointError(f"{directory}: the model cannot be written ({error}); make room there") from error
        directory.mkdir(exist_ok=True)
        for stale in [directory / WEIGHTS, directory / INDEX, *directory.glob("model-*-of-*.safetensors")]:
            stale.unlink(missing_ok=True)
        # what describes the rest comes last
        for path in sorted(Path(partial).iterdir(), key=lambda path: path.suffix == ".json"):
            path.replace(directory / path.name)


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _write(
    decoder: Decoder,
    directory: Path,
    tokenizer: Tokenizer | None,
    dtype: torch.dtype,
    shard_bytes: int,
    tensor_of: Callable[[str], Tensor] | None,
) -> None:
    write_config(directory, decoder.config, dtype)
    if tensor_of is None:
        tensors = published_tensors(decoder)
        tensors |= {copy: tensors[name] for copy, name in shared_tensors(decoder).items()}
        tensor_of = tensors.__getitem__
    write_weights(directory, shapes_of(decoder.config), tensor_of, dtype, shard_bytes)
    if tokenizer is not None:
        save_tokenizer(tokenizer, directory)


def shapes_of(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Of all tensors that a checkpoint of this shape has, by their published names; makes no model."""
    with torch.device("meta"):
        decoder = Decoder(config)
    shapes = {name: tuple(tensor.shape) for name, tensor in published_tensors(decoder).items()}
    return shapes | {copy: shapes[name] for copy, name in shared_tensors(decoder).items()}


def write_config(directory: Path, config: ModelConfig, dtype: torch.dtype) -> None:
    """The config.json of a decoder of this shape."""
    published = family_of(config).write_config(config)
    published["torch_dtype"] = str(dtype).removeprefix("torch.")
    (directory / files.CONFIG).write_text(json.dumps(published, indent=2) + "\n")


def load_checkpoint(
    directory: Path, dtype: torch.dtype = torch.float32, placement: Placement | None = None
) -> tuple[Decoder, Tokenizer]:
    """Decoder and tokenizer of a published checkpoint, sharded or not, placed as this process was told where nobody
    says. What does not fit is refused before anything is allocated. From then on the process gives large arrays back at
    once (`models.heap`)."""
    placement = placement or of_process()
    config, held = _read(directory)
    tokenizer = load_tokenizer(directory)
    decoder = Decoder(config).place(placement)
    give_back_large_arrays(decoder)
    for parameter in decoder.parameters():  # buffers stay fp32
        parameter.data = parameter.data.to(dtype)
    wanted, copies = published_tensors(decoder), _copies(decoder)
    found: dict[str, Tensor] = {}
    for path, names in held.items():
        with _readable(path), safe_open(path, "pt") as file:
            for name in names:
                if name in wanted:
                    wanted[name].copy_(file.get_tensor(name))
                else:
                    found[name] = file.get_tensor(name).to(placement.device, dtype)
    for copy, tensor in found.items():
        _require_same(directory, copy, copies[copy], torch.equal(tensor, wanted[copies[copy]]))
    return decoder, tokenizer


def _require_same(directory: Path, copy: str, original: str, same: bool) -> None:
    if not same:
        hint = "tie_word_embeddings is true; set it to false" if copy == HEAD else "the layer must share it"
        raise CheckpointError(f"{directory}: {copy} is not {original}, yet {hint}")


@contextmanager
def opened(directory: Path) -> Generator[tuple[ModelConfig, Callable[[str], Tensor]]]:
    """The shape of a published checkpoint's model, and its tensors by their published names, each read when it is
    asked for. Raises what `load_checkpoint` would."""
    config, held = _read(directory)
    with torch.device("meta"):
        copies = _copies(Decoder(config))
    path_of = {name: path for path, names in held.items() for name in names}
    with ExitStack() as open_files:
        of: dict[Path, Any] = {}
        for path in held:
            with _readable(path):
                of[path] = open_files.enter_context(safe_open(path, "pt"))

        def tensor(name: str) -> Tensor:
            stored = name if name in path_of else copies[name]
            with _readable(path_of[stored]):
                return of[path_of[stored]].get_tensor(stored)

        for copy in copies.keys() & path_of.keys():
            _require_same(directory, copy, copies[copy], torch.equal(tensor(copy), tensor(copies[copy])))
        yield config, tensor


def check_checkpoint(directory: Path) -> ModelConfig:
    """The model's shape. Raises what `load_checkpoint` would, from config, tokenizer and the headers of the weight
    files alone (and so not for a head that should be the embeddings and is not).
    """
    config, _ = _read(directory)
    load_tokenizer(directory)
    return config


def shape_of(directory: Path) -> ModelConfig:
    """The shape of a checkpoint's model by its config alone."""
    published, family = _published(directory)
    return family.read_config(published)


def family_of(config: ModelConfig) -> Family:
    """The published layout that holds a decoder of this shape. Raises CheckpointError if none does."""
    for family in FAMILIES:
        if family.fits(config) and (family.holds_further_token or not config.further_token):
            return family
    layouts = ", ".join(family.architecture for family in FAMILIES)
    raise CheckpointError(f"no published layout holds a decoder of this shape, so it cannot be saved; known: {layouts}")


def _read(directory: Path) -> tuple[ModelConfig, dict[Path, list[str]]]:
    """The model's shape, and which file has which of its tensors: they fit each other."""
    published, family = _published(directory)
    config = family.read_config(published)
    held = _held(directory)
    behind = f"model.layers.{config.layers}."
    if published.prediction_layers and any(name.startswith(behind) for name in held):  # `transformers` saves none
        config = config.model_copy(update={"further_token": True})
    by_file: dict[Path, list[str]] = {}
    for name in _compared(directory, config, published, held):
        by_file.setdefault(held[name].path, []).append(name)
    return config, by_file


def _published(directory: Path) -> tuple[Published, Family]:
    if fault := files.fault_of(directory):
        raise CheckpointError(fault)
    values, path = files.read_table(directory, files.CONFIG), directory / files.CONFIG
    named = values.get("architectures") or []
    for family in FAMILIES:
        if isinstance(named, list) and family.architecture in named:
            return Published(path, values), family
    known = ", ".join(family.architecture for family in FAMILIES)
    raise CheckpointError(f"{path}: architectures is {reprlib.repr(named)}; those that are read are {known}")


def _copies(decoder: Decoder) -> dict[str, str]:
    """Tensors that files may hold a second time, under a name of their own, and the name of the first."""
    return shared_tensors(decoder) | ({HEAD: EMBEDDINGS} if decoder.head is None else {})


class _Held(NamedTuple):
    """A tensor that a file holds, by the file's header."""

    path: Path
    dtype: str
    shape: tuple[int, ...]


def _held(directory: Path) -> dict[str, _Held]:
    """All tensors of a checkpoint's files. Raises CheckpointError naming the files that are not there."""
    named = [WEIGHTS]
    if files.located(directory, INDEX) is not None:
        listed = files.read_table(directory, INDEX, files.LARGE).get("weight_map")
        if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
            raise CheckpointError(f"{directory / INDEX}: key weight_map names no files; download the checkpoint again")
        named = sorted(set(listed.values()))
        if len(named) > MOST_FILES:
            raise CheckpointError(f"{directory / INDEX}: names {len(named):,} files; at most {MOST_FILES:,} are read")
    found = {name: files.located(directory, name) for name in named}
    if found == {WEIGHTS: None} and not any(directory.glob("*.safetensors")):
        raise CheckpointError(
            f"{directory}: holds the shape of a model and no weights ({WEIGHTS}); give a directory that has them. "
            "Other files than safetensors are not read: save the model anew with transformers (save_pretrained)"
        )
    if absent := [name for name, path in found.items() if path is None]:
        raise CheckpointError(f"{directory}: no such file: {files.few(absent)}; download the checkpoint again")
    held: dict[str, _Held] = {}
    for name, path in found.items():
        with _readable(directory / name), safe_open(str(path), "pt") as file:
            stored = file.keys()
            if len(held) + len(stored) > MOST_TENSORS:
                raise CheckpointError(f"{directory / name}: more than {MOST_TENSORS:,} tensors; no model has so many")
            for tensor in stored:
                one = file.get_slice(tensor)
                held[tensor] = _Held(directory / name, one.get_dtype(), tuple(one.get_shape()))
    return held


@contextmanager
def _readable(path: Path) -> Generator[None]:
    try:
        yield
    except (SafetensorError, OSError) as error:
        if files.is_pointer(path):
            raise CheckpointError(f"{path}: only names a file in Git LFS; run `git lfs pull` in the clone") from None
        raise CheckpointError(f"{path}: cannot be read ({error}); download or export it again") from None


def _compared(directory: Path, config: ModelConfig, published: Published, held: Mapping[str, _Held]) -> list[str]:
    """The tensors to read. Raises CheckpointError unless the files hold just what config.json says; makes no model."""
    with torch.device("meta"):
        decoder = Decoder(config)
    wanted, copies = published_tensors(decoder), _copies(decoder)
    shapes = {name: tuple(tensor.shape) for name, tensor in wanted.items()}
    shapes |= {copy: shapes[name] for copy, name in copies.items()}
    unread = tuple(f"model.layers.{config.layers + n}." for n in range(1, published.prediction_layers))
    names = [name for name in held if not name.startswith(unread)]
    if unknown := [name for name in names if name not in shapes]:
        raise CheckpointError(
            f"{directory}: no part of the model that config.json describes: {files.few(unknown)}; take the config.json "
            "that was published with these weights"
        )
    if quantised := [f"{name} is {held[name].dtype}" for name in names if held[name].dtype not in _DTYPES]:
        raise CheckpointError(f"{directory}: {files.few(quantised)}; convert the checkpoint to bf16 first")
    if wrong := [
        f"{name} has shape {held[name].shape} where config.json says {shapes[name]}"
        for name in names
        if held[name].shape != shapes[name]
    ]:
        raise CheckpointError(
            f"{directory}: {files.few(wrong)}; take the config.json that was published with these weights"
        )
    if missing := [name for name in wanted if name not in held]:
        raise CheckpointError(f"{directory}: tensors are missing: {files.few(missing)}; download the checkpoint again")
    return names
