"""A decoder in its published checkpoint directory, read and written.

Owns the files: config.json, model.safetensors or its shards with their index, tokenizer.json. Which families there are
is the table below; what a family's config.json means is its own file's business. What is written here, `transformers`
loads; what is not understood is refused with the name of the key or tensor.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from etude.errors import CheckpointError
from etude.models.config import ModelConfig
from etude.models.decoder import Decoder
from etude.models.deepseek_v3 import DEEPSEEK_V3
from etude.models.generation import copy_companions
from etude.models.llama import LLAMA, MISTRAL, QWEN2
from etude.models.published import EMBEDDINGS, HEAD, KEPT_FP32, Family, Published, published_tensors, shared_tensors
from etude.models.qwen3 import QWEN3, QWEN3_MOE
from etude.models.tokenizer import load_tokenizer, save_tokenizer

FAMILIES = (QWEN3, QWEN3_MOE, DEEPSEEK_V3, LLAMA, MISTRAL, QWEN2)
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD_BYTES = 5_000_000_000
_DTYPES = {"F64", "F32", "F16", "BF16"}


def save_checkpoint(
    decoder: Decoder,
    directory: Path,
    tokenizer: Tokenizer | None = None,
    dtype: torch.dtype = torch.bfloat16,
    shard_bytes: int = SHARD_BYTES,
    like: Path | None = None,
) -> None:
    """Write config.json, the weights and, if given, tokenizer.json. More than `shard_bytes` become several files.
    `like` is the checkpoint that this one was trained from: its chat template and what ends a message come along.

    What is there already stays until the new files are whole; CheckpointError where there is no room for both."""
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=_made(directory.parent)) as partial:
        try:
            _write(decoder, Path(partial), tokenizer, dtype, shard_bytes)
            if like is not None:
                copy_companions(like, Path(partial))
        except (OSError, SafetensorError) as error:
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
    decoder: Decoder, directory: Path, tokenizer: Tokenizer | None, dtype: torch.dtype, shard_bytes: int
) -> None:
    published = family_of(decoder.config).write_config(decoder.config)
    published["torch_dtype"] = str(dtype).removeprefix("torch.")
    (directory / "config.json").write_text(json.dumps(published, indent=2) + "\n")
    tensors = published_tensors(decoder)
    tensors |= {copy: tensors[name] for copy, name in shared_tensors(decoder).items()}
    shards = list(_shards(tensors, dtype, shard_bytes))
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = WEIGHTS if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        stored = {name: tensors[name].to(_stored(name, dtype)).contiguous().clone() for name in names}
        save_file(stored, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    if len(shards) > 1:
        total = sum(tensor.numel() * _stored(name, dtype).itemsize for name, tensor in tensors.items())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    if tokenizer is not None:
        save_tokenizer(tokenizer, directory)


def load_checkpoint(directory: Path, dtype: torch.dtype = torch.float32) -> tuple[Decoder, Tokenizer]:
    """Decoder and tokenizer of a published checkpoint, sharded or not."""
    published, config = _read_config(directory)
    decoder = Decoder(config)
    for parameter in decoder.parameters():  # buffers stay fp32
        parameter.data = parameter.data.to(dtype)
    wanted = published_tensors(decoder)
    copies = _copies(decoder)
    found: dict[str, Tensor] = {}
    for path, names in _compare(directory, wanted, copies, published).items():
        with _readable(path), safe_open(path, "pt") as file:
            for name in names:
                if name in wanted:
                    wanted[name].copy_(file.get_tensor(name))
                else:
                    found[name] = file.get_tensor(name).to(dtype)
    for copy, tensor in found.items():
        if not torch.equal(tensor, wanted[copies[copy]]):
            hint = "tie_word_embeddings is true; set it to false" if copy == HEAD else "the layer must share it"
            raise CheckpointError(f"{directory}: {copy} is not {copies[copy]}, yet {hint}")
    return decoder, load_tokenizer(directory)


def check_checkpoint(directory: Path) -> ModelConfig:
    """The model's shape. Raises what `load_checkpoint` would, from config, tokenizer and the headers of the weight
    files alone (and so not for a head that should be the embeddings and is not).
    """
    published, config = _read_config(directory)
    with torch.device("meta"):
        decoder = Decoder(config)
    _compare(directory, published_tensors(decoder), _copies(decoder), published)
    load_tokenizer(directory)
    return config


def shape_of(directory: Path) -> ModelConfig:
    """The shape of a checkpoint's model by its config alone."""
    return _read_config(directory)[1]


def family_of(config: ModelConfig) -> Family:
    """The published layout that holds a decoder of this shape. Raises CheckpointError if none does."""
    for family in FAMILIES:
        if family.fits(config) and (family.holds_further_token or not config.further_token):
            return family
    layouts = ", ".join(family.architecture for family in FAMILIES)
    raise CheckpointError(f"no published layout holds a decoder of this shape, so it cannot be saved; known: {layouts}")


def _read_config(directory: Path) -> tuple[Published, ModelConfig]:
    _refuse_gguf(directory)
    path = directory / "config.json"
    values = _read_json(path, f"a model directory holds config.json and {WEIGHTS}")
    named = values.get("architectures") or []
    for family in FAMILIES:
        if family.architecture in named:
            published = Published(path, values)
            config = family.read_config(published)
            if _has_further(directory, published, config):
                config = config.model_copy(update={"further_token": True})
            return published, config
    known = ", ".join(family.architecture for family in FAMILIES)
    raise CheckpointError(f"{path}: architectures is {named}; those that are read are {known}")


def _refuse_gguf(path: Path) -> None:
    """Raise for llama.cpp's form of a model, and say what to do about it."""
    found = [path] if path.is_file() else [] if (path / "config.json").exists() else sorted(path.glob("*.gguf"))
    if found:
        what = "weights as llama.cpp quantises them" if found[0].suffix == ".gguf" else "no model's directory"
        raise CheckpointError(
            f"{found[0]}: this file holds {what}; a model here is a directory with config.json, tokenizer.json and "
            f"{WEIGHTS}: take the model as its maker published it, or convert the file (transformers reads one with "
            "gguf_file=…), and give that directory"
        )


def _has_further(directory: Path, published: Published, config: ModelConfig) -> bool:
    """Whether the weights have the layer that config.json names: `transformers` does not save it."""
    if not published.prediction_layers:
        return False
    prefix = f"model.layers.{config.layers}."
    for path in _weight_files(directory):
        with _readable(path), safe_open(path, "pt") as file:
            if any(name.startswith(prefix) for name in file.keys()):  # noqa: SIM118
                return True
    return False


def _copies(decoder: Decoder) -> dict[str, str]:
    """Tensors that files may hold a second time, under a name of their own, and the name of the first."""
    return shared_tensors(decoder) | ({HEAD: EMBEDDINGS} if decoder.head is None else {})


def _read_json(path: Path, hint: str) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; {hint}") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: should hold a table, not a {type(values).__name__}")
    return values


def _weight_files(directory: Path) -> list[Path]:
    index = directory / INDEX
    if not index.exists():
        return [directory / WEIGHTS]
    files = _read_json(index, "").get("weight_map")
    if not isinstance(files, dict):
        raise CheckpointError(f"{index}: key weight_map is missing; download the checkpoint again")
    return [directory / name for name in sorted(set(files.values()))]


@contextmanager
def _readable(path: Path) -> Generator[None]:
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); download or export it again") from None


def _compare(
    directory: Path, wanted: Mapping[str, Tensor], copies: Mapping[str, str], published: Published
) -> dict[Path, list[str]]:
    """Which file has which wanted tensors and copies. Raises CheckpointError unless the files hold just what
    config.json says.
    """
    files: dict[Path, list[str]] = {}
    layers = published.take("num_hidden_layers")
    unread = tuple(f"model.layers.{layers + n}." for n in range(1, published.prediction_layers))
    shapes = dict(wanted) | {copy: wanted[name] for copy, name in copies.items()}
    for path in _weight_files(directory):
        with _readable(path), safe_open(path, "pt") as file:
            names = [name for name in file.keys() if not name.startswith(unread)]  # noqa: SIM118
            files[path] = [name for name in names if name in shapes]
            if unknown := set(names) - shapes.keys():
                raise CheckpointError(
                    f"{directory}: tensor {min(unknown)} is no part of the model that config.json describes"
                )
            for name in files[path]:
                _compare_one(directory, name, shapes[name], file.get_slice(name))
    if missing := sorted(wanted.keys() - {name for names in files.values() for name in names}):
        raise CheckpointError(
            f"{directory}: tensors are missing, the first is {missing[0]}; download the checkpoint again"
        )
    return files


def _compare_one(directory: Path, name: str, target: Tensor, found: Any) -> None:
    if found.get_dtype() not in _DTYPES:
        raise CheckpointError(f"{directory}: {name} is {found.get_dtype()}; convert the checkpoint to bf16 first")
    if (shape := tuple(found.get_shape())) != tuple(target.shape):
        raise CheckpointError(f"{directory}: {name} has shape {shape} where config.json says {tuple(target.shape)}")


def _stored(name: str, dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if name.endswith(KEPT_FP32) else dtype


def _shards(tensors: Mapping[str, Tensor], dtype: torch.dtype, limit: int) -> Iterator[list[str]]:
    """Names in order, as many a shard as fit; a larger tensor is a shard of its own."""
    names: list[str] = []
    size = 0
    for name, tensor in tensors.items():
        bytes_ = tensor.numel() * _stored(name, dtype).itemsize
        if names and size + bytes_ > limit:
            yield names
            names, size = [], 0
        names.append(name)
        size += bytes_
    yield names
