"""Qwen3-MoE's published checkpoint layout, read and written.

Owns the mapping between our parameter names and the safetensors names of `Qwen3MoeForCausalLM` (experts apart, one
tensor a projection), and between `ModelConfig` and config.json. What it writes, `transformers` loads. Refuses what it
does not understand with the name of the key or tensor.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from etude.errors import CheckpointError
from etude.models.decoder import Decoder, ModelConfig
from etude.models.tokenizer import load_tokenizer, save_tokenizer

ARCHITECTURE = "Qwen3MoeForCausalLM"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

_FIELDS = {
    "vocab_size": "vocab_size", "width": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads", "head_width": "head_dim", "experts": "num_experts",
    "experts_per_token": "num_experts_per_tok", "expert_width": "moe_intermediate_size",
    "normalise_gates": "norm_topk_prob", "norm_eps": "rms_norm_eps",
    "tie_embeddings": "tie_word_embeddings", "max_context": "max_position_embeddings",
}  # fmt: skip
_BLOCK = {
    "input_norm.weight": "input_layernorm.weight",
    "mlp_norm.weight": "post_attention_layernorm.weight",
    "mlp.router.weight": "mlp.gate.weight",
    **{
        f"attention.{name}.weight": f"self_attn.{name}.weight"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
    },
}


def save_checkpoint(
    decoder: Decoder, directory: Path, tokenizer: Tokenizer | None = None, dtype: torch.dtype = torch.bfloat16
) -> None:
    """Write config.json, model.safetensors and, if given, tokenizer.json."""
    directory.mkdir(parents=True, exist_ok=True)
    config = decoder.config
    published: dict[str, Any] = {theirs: getattr(config, ours) for ours, theirs in _FIELDS.items()}
    published |= {
        "architectures": [ARCHITECTURE], "model_type": "qwen3_moe", "rope_theta": config.rope_theta,
        "hidden_act": "silu",
        "decoder_sparse_step": 1, "mlp_only_layers": [], "intermediate_size": config.expert_width,
        "attention_bias": False,
        "use_sliding_window": False, "torch_dtype": str(dtype).removeprefix("torch."),
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(published, indent=2) + "\n")
    tensors = {name: tensor.to(dtype).contiguous().clone() for name, tensor in _to_published(decoder).items()}
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})
    if tokenizer is not None:
        save_tokenizer(tokenizer, directory)


def load_checkpoint(directory: Path, dtype: torch.dtype = torch.float32) -> tuple[Decoder, Tokenizer]:
    """Decoder and tokenizer of a published checkpoint, sharded or not."""
    decoder = Decoder(read_config(directory)).to(dtype)
    tensors: dict[str, Tensor] = {}
    for path in _weight_files(directory):
        with _readable(path):
            tensors |= load_file(path)
    wanted = _to_published(decoder)
    _compare(directory, wanted, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
    with torch.no_grad():
        for name, target in wanted.items():
            target.copy_(tensors[name])
    return decoder, load_tokenizer(directory)


def check_checkpoint(directory: Path) -> None:
    """Raises what `load_checkpoint` would, from config, tokenizer and the headers of the weight files alone."""
    with torch.device("meta"):
        decoder = Decoder(read_config(directory))
    shapes: dict[str, tuple[int, ...]] = {}
    for path in _weight_files(directory):
        with _readable(path), safe_open(path, "pt") as file:
            shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    _compare(directory, _to_published(decoder), shapes)
    load_tokenizer(directory)


def _compare(directory: Path, wanted: Mapping[str, Tensor], found: Mapping[str, tuple[int, ...]]) -> None:
    if missing := sorted(wanted.keys() - found.keys()):
        raise CheckpointError(
            f"{directory}: tensors are missing, the first is {missing[0]}; download the checkpoint again"
        )
    if unknown := sorted(found.keys() - wanted.keys() - {"lm_head.weight"}):
        raise CheckpointError(
            f"{directory}: tensor {unknown[0]} does not belong to {ARCHITECTURE} as config.json describes it"
        )
    for name, target in wanted.items():
        if tuple(target.shape) != found[name]:
            shapes = f"{found[name]} where config.json says {tuple(target.shape)}"
            raise CheckpointError(f"{directory}: {name} has shape {shapes}")


def read_config(directory: Path) -> ModelConfig:
    """config.json as a ModelConfig."""
    path = directory / "config.json"
    try:
        published = json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; a model directory holds config.json and {WEIGHTS}") from None
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path}: not valid JSON ({error})") from None
    if ARCHITECTURE not in published.get("architectures", ()):
        raise CheckpointError(
            f"{path}: architectures is {published.get('architectures')}; only {ARCHITECTURE} is read so far"
        )
    if (
        published.get("mlp_only_layers")
        or published.get("decoder_sparse_step", 1) != 1
        or published.get("attention_bias")
    ):
        raise CheckpointError(
            f"{path}: dense layers (mlp_only_layers, decoder_sparse_step) and attention_bias are not read"
        )
    absent = [theirs for theirs in _FIELDS.values() if theirs not in published]
    if absent:
        raise CheckpointError(f"{path}: key {absent[0]} is missing")
    theta = published.get("rope_theta") or published.get("rope_parameters", {}).get("rope_theta", 10_000.0)
    return ModelConfig(**{ours: published[theirs] for ours, theirs in _FIELDS.items()}, rope_theta=theta)


def _weight_files(directory: Path) -> list[Path]:
    index = directory / INDEX
    names = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else [WEIGHTS]
    return [directory / name for name in names]


@contextmanager
def _readable(path: Path) -> Generator[None]:
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); download or export it again") from None


def _to_published(decoder: Decoder) -> dict[str, Tensor]:
    """Published name → a view of our parameter, in the published orientation; writing to a view writes to the model."""
    width = decoder.config.expert_width
    views: dict[str, Tensor] = {
        "model.embed_tokens.weight": decoder.embed.weight.data,
        "model.norm.weight": decoder.norm.weight.data,
    }
    if decoder.head is not None:
        views["lm_head.weight"] = decoder.head.weight.data
    for layer, block in enumerate(decoder.blocks):
        prefix = f"model.layers.{layer}."
        parameters = dict(block.named_parameters())
        views |= {prefix + theirs: parameters[ours].data for ours, theirs in _BLOCK.items()}
        for expert in range(decoder.config.experts):
            gate_up, down = parameters["mlp.gate_up"].data[expert], parameters["mlp.down"].data[expert]
            experts = f"{prefix}mlp.experts.{expert}."
            views[experts + "gate_proj.weight"] = gate_up[:, :width].T
            views[experts + "up_proj.weight"] = gate_up[:, width:].T
            views[experts + "down_proj.weight"] = down.T
    return views
