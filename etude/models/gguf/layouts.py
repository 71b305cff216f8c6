"""What llama.cpp calls a model's parts, in the words of the published layouts.

Owns the table of architectures that are read from a GGUF, the way from its metadata to a config.json, and where each
published tensor lies in the file. Nothing is guessed: a key of the architecture's that nobody knows is refused, and so
is a tensor that is left over. Never opens files (`models.gguf.reading`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etude.errors import CheckpointError
from etude.models.config import BandsConfig, ModelConfig
from etude.models.files import few
from etude.models.gguf.reading import Gguf
from etude.models.llama import LLAMA, QWEN2
from etude.models.published import Family, Published
from etude.models.qwen3 import QWEN3, QWEN3_MOE
from etude.models.rope import band_factors

_COMMON = {
    "num_hidden_layers": "block_count", "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}  # fmt: skip
_MIXTURE = {
    "num_experts": "expert_count", "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}  # fmt: skip
_OPTIONAL = frozenset((
    "vocab_size", "rope.freq_base", "rope.dimension_count", "attention.key_length", "attention.value_length",
    "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.finetuned",
))  # fmt: skip
_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "ffn_gate_inp": "mlp.gate",
}  # fmt: skip
_STACKED = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
_LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,3})\.(\w+)\.(weight|bias)")
_BANDS = "rope_freqs.weight"
_LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Of every Llama 3. A GGUF holds only what follows from them for each channel."""


@dataclass(frozen=True)
class Architecture:
    """One of llama.cpp's, and the published family that it is."""

    family: Family
    experts: bool = False
    permuted: bool = False
    """Rows of queries and keys are stored in pairs, as llama.cpp turns Llama's, and not as two halves."""
    settled: Mapping[str, Any] = field(default_factory=dict)
    """Keys beyond the common ones, with the only value that is supported."""


ARCHITECTURES = {
    "llama": Architecture(LLAMA, permuted=True, settled={"expert_count": 0, "expert_used_count": 0}),
    "qwen2": Architecture(QWEN2),
    "qwen3": Architecture(QWEN3),
    "qwen3moe": Architecture(QWEN3_MOE, experts=True, settled={"expert_weights_scale": 1.0, "expert_gating_func": 1}),
}


class Layout:
    """Where a file's model is. `config` is its shape; `tensor` gives what the published layout calls so."""

    def __init__(self, file: Gguf) -> None:
        """Raises CheckpointError naming what is not understood."""
        self._file = file
        name = file.say("general.architecture", str, "")
        if name not in ARCHITECTURES:
            raise CheckpointError(
                f"{file.path}: the architecture is {name[:60]!r}; those that are read from a GGUF are "
                f"{', '.join(ARCHITECTURES)}; take the model as its maker published it"
            )
        self._prefix, self.architecture = f"{name}.", ARCHITECTURES[name]
        self.published = self._config_json()
        self.config: ModelConfig = self.architecture.family.read_config(Published(file.path, self.published))
        self._where = self._located()

    def tensor(self, name: str) -> Tensor:
        held, expert = self._where[name]
        values = self._file.tensor(held, expert)
        turned = self.architecture.permuted and re.search(r"self_attn\.[qk]_proj\.", name)
        if not turned:
            return values
        heads = self.config.heads if ".q_proj." in name else self.config.kv_heads
        halves = values.unflatten(0, (heads, -1, 2)).transpose(1, 2)
        return halves.reshape(values.shape)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every tensor, by its published name."""
        whole = {name: (self._file.shapes[held], expert) for name, (held, expert) in self._where.items()}
        return {name: shape if expert is None else shape[1:] for name, (shape, expert) in whole.items()}

    def _say(self, key: str, kind: type | tuple[type, ...] = (int, float), default: Any = None) -> Any:
        value = self._file.say(self._prefix + key, kind, default)
        if value is None:
            raise CheckpointError(f"{self._file.path}: {self._prefix}{key} is missing; download it again")
        return value

    def _config_json(self) -> dict[str, Any]:
        file, mixture = self._file, _MIXTURE if self.architecture.experts else {}
        if len(file.shapes.get("token_embd.weight", ())) != 2:
            raise CheckpointError(f"{file.path}: there is no matrix token_embd.weight, so this is no language model")
        self._refuse_unknown({*_COMMON.values(), *mixture.values(), *_OPTIONAL})
        said = {theirs: _number(self._say(key)) for theirs, key in {**_COMMON, **mixture}.items()}
        head = self._say("attention.key_length", int, said["hidden_size"] // (said["num_attention_heads"] or 1))
        for key in ("attention.value_length", "rope.dimension_count"):
            if (found := self._say(key, int, head)) != head:
                raise CheckpointError(f"{file.path}: {self._prefix}{key} is {found} where heads have {head} channels")
        return {
            "architectures": [self.architecture.family.architecture],
            **said,
            **({"norm_topk_prob": True} if mixture else {}),
            "head_dim": head,
            "vocab_size": file.shapes["token_embd.weight"][0],
            "tie_word_embeddings": "output.weight" not in file.shapes,
            "rope_theta": _number(self._say("rope.freq_base", (int, float), 10_000.0)),
            "rope_scaling": self._scaling(head),
        }

    def _refuse_unknown(self, known: set[str]) -> None:
        given = {key.removeprefix(self._prefix): key for key in self._file.metadata if key.startswith(self._prefix)}
        settled = self.architecture.settled
        wrong = [
            f"{whole} is {str(self._file.metadata[whole])[:40]}"
            for key, whole in given.items()
            if (key not in known if key not in settled else self._file.metadata[whole] != settled[key])
        ]
        if wrong:
            raise CheckpointError(
                f"{self._file.path}: {few(wrong, 8)}; the decoder does not know it, so take the model as its maker "
                "published it"
            )

    def _scaling(self, head: int) -> dict[str, Any] | None:
        kind = self._say("rope.scaling.type", str, "none")
        if kind not in ("none", "yarn"):
            raise CheckpointError(f"{self._file.path}: rope.scaling.type is {kind[:40]!r}; none and yarn are supported")
        if kind == "yarn":
            return {
                "rope_type": "yarn",
                "factor": _number(self._say("rope.scaling.factor")),
                "original_max_position_embeddings": self._say("rope.scaling.original_context_length", int),
            }
        return self._bands(head) if _BANDS in self._file.shapes else None

    def _bands(self, head: int) -> dict[str, Any]:
        """Llama 3's scaling, of which the file holds what each channel is slowed down by."""
        theta = self._say("rope.freq_base", (int, float), 10_000.0)
        if self._file.shapes[_BANDS] != (head // 2,) or not theta > 0:
            raise self._no_bands()
        stored = self._file.tensor(_BANDS)
        said = {"rope_type": "llama3", "factor": max(stored.tolist()), **_LLAMA_3}
        bands = BandsConfig(factor=said["factor"], original_context=8192, slow=1.0, fast=4.0)
        if not torch.allclose(band_factors(head, theta, bands), stored, rtol=1e-3):
            raise self._no_bands()
        return said

    def _no_bands(self) -> CheckpointError:
        return CheckpointError(
            f"{self._file.path}: {_BANDS} is no scaling of Llama 3's; take the model as its maker published it"
        )

    def _located(self) -> dict[str, tuple[str, int | None]]:
        """Published name → tensor of the file, and which matrix of it. No more names are made than the model has: each
        stack is of one of its layers, and of all its experts."""
        found: dict[str, tuple[str, int | None]] = {}
        strange = []
        for name, shape in self._file.shapes.items():
            whole, of_layer = name.rpartition("."), _LAYER.fullmatch(name)
            if of_layer and of_layer[2] in _IN_LAYER:
                found[f"model.layers.{of_layer[1]}.{_IN_LAYER[of_layer[2]]}.{of_layer[3]}"] = (name, None)
            elif of_layer and of_layer[2] in _STACKED and self._stacks(int(of_layer[1]), shape):
                stack = f"model.layers.{of_layer[1]}.mlp.experts.{{}}.{_STACKED[of_layer[2]]}.{of_layer[3]}"
                found |= {stack.format(expert): (name, expert) for expert in range(shape[0])}
            elif whole[0] in _NAMES:
                found[f"{_NAMES[whole[0]]}.{whole[2]}"] = (name, None)
            elif name != _BANDS:
                strange.append(name)
        if strange:
            raise CheckpointError(
                f"{self._file.path}: no part of the model that its metadata describes: {few(strange)}; take the model "
                "as its maker published it"
            )
        return found

    def _stacks(self, layer: int, shape: tuple[int, ...]) -> bool:
        return layer < self.config.layers and len(shape) == 3 and shape[0] == self.config.experts


def _number(value: float) -> float | int:
    """A number as it was before it was stored in fp32: 1e-05, and not 9.999999747378752e-06."""
    return value if isinstance(value, int) else float(str(np.float32(value)))
