"""What the published checkpoint families have in common: how config.json is read and written, what tensors are called.

Owns `Published` (a config.json, read key by key, so that one nobody understands is noticed), `Family` (what a family's
file has to say) and the names of tensors, which all families share. Never opens weight files (`models.checkpoint`).
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from etude.config import parse
from etude.errors import CheckpointError, ConfigError
from etude.models.block import FurtherToken
from etude.models.config import ModelConfig
from etude.models.decoder import Decoder
from etude.models.files import few

_REQUIRED = object()
_COMMON = {
    "vocab_size": "vocab_size", "width": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads",
    "norm_eps": "rms_norm_eps", "max_context": "max_position_embeddings",
}  # fmt: skip
_YARN = {
    "factor": "factor", "original_context": "original_max_position_embeddings", "beta_fast": "beta_fast",
    "beta_slow": "beta_slow", "mscale": "mscale", "mscale_all_dim": "mscale_all_dim",
    "attention_factor": "attention_factor",
}  # fmt: skip
_BANDS = {
    "factor": "factor", "original_context": "original_max_position_embeddings", "slow": "low_freq_factor",
    "fast": "high_freq_factor",
}  # fmt: skip
_MANY = 1 << 18
_COUNTS = {
    "vocab_size": (1, 1 << 24), "max_position_embeddings": (1, 1 << 30), "sliding_window": (1, 1 << 30),
    "original_max_position_embeddings": (1, 1 << 30), "hidden_size": (1, _MANY), "num_hidden_layers": (1, 1024),
    "num_attention_heads": (1, 4096), "num_key_value_heads": (1, 4096), "head_dim": (1, 1 << 14),
    "intermediate_size": (0, 1 << 22), "moe_intermediate_size": (1, 1 << 22), "num_experts": (0, 1 << 14),
    "num_local_experts": (0, 1 << 14), "n_routed_experts": (1, 1 << 14), "num_experts_per_tok": (1, 1 << 14),
    "n_shared_experts": (0, 1024), "n_group": (1, 1 << 14), "topk_group": (1, 1 << 14), "kv_lora_rank": (1, _MANY),
    "q_lora_rank": (1, _MANY), "qk_nope_head_dim": (1, 1 << 14), "qk_rope_head_dim": (1, 1 << 14),
    "v_head_dim": (1, 1 << 14), "first_k_dense_replace": (0, 1024), "decoder_sparse_step": (1, 1024),
    "num_nextn_predict_layers": (0, 64),
}  # fmt: skip
"""Least and most of what is counted: far more than any model has, and little enough to look at before it is made."""
_NUMBERS = {
    "rms_norm_eps": (0, 1), "rope_theta": (1.01, 1e15), "factor": (1e-3, 1e6), "beta_fast": (1e-6, 1e6),
    "beta_slow": (1e-6, 1e6), "mscale": (0, 1e3), "mscale_all_dim": (0, 1e3), "attention_factor": (1e-6, 1e3),
    "low_freq_factor": (1e-6, 1e6), "high_freq_factor": (1e-6, 1e6), "routed_scaling_factor": (1e-6, 1e6),
}  # fmt: skip
_SWITCHES = {"tie_word_embeddings", "norm_topk_prob", "rope_interleave"}
_SETTLED = {"hidden_act": "silu", "attention_bias": False, "quantization_config": None}
_INERT = frozenset((
    "architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "auto_map", "use_cache",
    "initializer_range", "attention_dropout", "output_attentions", "output_hidden_states", "output_router_logits",
    "return_dict", "pretraining_tp", "is_encoder_decoder", "is_decoder", "chunk_size_feed_forward", "id2label",
    "label2id", "problem_type", "tokenizer_class", "task_specific_params", "finetuning_task", "prefix", "torchscript",
    "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
    "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores",
    "return_dict_in_generate", "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens",
    "begin_suppress_tokens", "tf_legacy_loss", "use_bfloat16", "unsloth_version", "unsloth_fixed",
))  # fmt: skip
"""Keys that change nothing in a forward pass: of training, of the library, and of sampling, which config.json once
held."""


def _inert(key: str) -> bool:
    """Whether a key says nothing of what a model computes: a writer's own note, or a token's number."""
    return key in _INERT or key.startswith("_") or key.endswith("_token_id")


def _wanted(key: str, value: Any) -> str | None:
    """What a key's value must be and is not. A number in quotes is none."""
    if key in _SWITCHES:
        return None if isinstance(value, bool) else "true or false"
    kinds, (least, most) = (int, _COUNTS[key]) if key in _COUNTS else (int | float, _NUMBERS.get(key, (None, None)))
    if least is None or (isinstance(value, kinds) and not isinstance(value, bool) and least <= value <= most):
        return None
    return f"a {'whole ' if kinds is int else ''}number from {least} to {most}"


class Published:
    """A table of a config.json. A key is absent if it is null; `refuse_rest` names all that nobody asked for, and all
    that ask for what the decoder does not do.
    """

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self.path, self._prefix = path, prefix
        self._unsupported: list[str] = []
        self._values = {key: value for key, value in values.items() if value is not None}
        self._asked: set[str] = set()
        self._tables: list[Published] = []
        self.prediction_layers = 0
        """How many layers behind the last one config.json names, which predict further tokens."""

    def take(self, key: str, default: Any = _REQUIRED) -> Any:
        self._asked.add(key)
        value = self._values.get(key, default)
        if value is _REQUIRED:
            near = difflib.get_close_matches(key, self._values, 1, 0.85)
            hint = f"is {near[0]} meant?" if near else "take config.json as it was published with these weights"
            raise CheckpointError(f"{self.path}: key {self._prefix}{key} is missing; {hint}")
        if key in self._values and (wanted := _wanted(key, value)):
            raise CheckpointError(f"{self.path}: {self._prefix}{key} is {reprlib.repr(value)}; it must be {wanted}")
        return value

    def expect(self, key: str, value: Any) -> None:
        """The key, where it is given, has the one value that the decoder knows how to compute with."""
        if (found := self.take(key, value)) != value:
            only = "it" if value is None else f"any value but {value!r}"
            self._unsupported.append(f"{self._prefix}{key} is {reprlib.repr(found)}, and {only} is not supported")

    def table(self, key: str) -> Published | None:
        """The table under a key, if there is one with anything in it."""
        values = self.take(key, None)
        if not values:
            return None
        if not isinstance(values, dict):
            raise CheckpointError(f"{self.path}: {self._prefix}{key} should be a table, but is {reprlib.repr(values)}")
        self._tables.append(Published(self.path, values, f"{self._prefix}{key}."))
        return self._tables[-1]

    def refuse_rest(self, inert: Iterable[str] = ()) -> None:
        """Raise, naming all of them, if there are keys that nobody has asked for and that are not known to be inert, or
        values that are not supported.
        """
        unknown = self._unknown(frozenset(inert))
        said = [fault for table in (self, *self._tables) for fault in table._unsupported]
        if unknown:
            them = "keys {} are unknown; if they change" if len(unknown) > 1 else "key {} is unknown; if it changes"
            said.append(f"{them.format(few(unknown, 20))} nothing in what the model computes, take out what is named")
        if said:
            raise CheckpointError(f"{self.path}: {'; '.join(said)}")

    def _unknown(self, inert: frozenset[str]) -> list[str]:
        own = [key for key in sorted(self._values.keys() - self._asked - inert) if not _inert(key)]
        return [self._prefix + key for key in own] + [key for table in self._tables for key in table._unknown(inert)]


@dataclass(frozen=True)
class Family:
    """One published architecture, both ways. What `read` takes from config.json, `write` puts there."""

    architecture: str
    model_type: str
    read: Callable[[Published], dict[str, Any]]
    """Fields of `ModelConfig` beyond those that all families share."""
    write: Callable[[ModelConfig], dict[str, Any]]
    fits: Callable[[ModelConfig], bool]
    """Whether the layout can hold a decoder of this shape."""
    holds_further_token: bool = False
    """Whether the layout has a place for the layer that predicts a further token."""
    settled: Mapping[str, Any] = field(default_factory=dict)
    """Keys that a published model of this family may have, with the only value that is supported."""
    inert: frozenset[str] = frozenset()

    def read_config(self, published: Published) -> ModelConfig:
        """Raises CheckpointError naming all keys that are unknown or unsupported, or the first that is missing or makes
        no sense.
        """
        fields = {ours: published.take(theirs) for ours, theirs in _COMMON.items()}
        fields["tie_embeddings"] = published.take("tie_word_embeddings", False)
        try:
            fields |= _read_rope(published) | self.read(published)
        except TypeError as error:
            raise CheckpointError(f"{published.path}: a value has the wrong type ({error})") from None
        for key, value in {**_SETTLED, **self.settled}.items():
            published.expect(key, value)
        published.refuse_rest(self.inert)
        try:
            return parse(fields, ModelConfig, str(published.path))
        except ConfigError as error:
            raise CheckpointError(f"{error} (in our names)") from None

    def write_config(self, config: ModelConfig) -> dict[str, Any]:
        return {
            **{theirs: getattr(config, ours) for ours, theirs in _COMMON.items()},
            **self.write(config),
            "tie_word_embeddings": config.tie_embeddings,
            "architectures": [self.architecture],
            "model_type": self.model_type,
            **_write_rope(config),
            **{key: value for key, value in {**_SETTLED, **self.settled}.items() if value is not None},
        }


def _read_rope(published: Published) -> dict[str, Any]:
    """Positions, in the published form (`rope_theta` beside `rope_scaling`) or the newer one (`rope_parameters`)."""
    theta = published.take("rope_theta", 10_000.0)
    rope = published.table("rope_parameters") or published.table("rope_scaling")
    if rope is None:
        return {"rope_theta": theta}
    kind = rope.take("rope_type", rope.take("type", "default"))
    fields = {"rope_theta": rope.take("rope_theta", theta)}
    rope.expect("partial_rotary_factor", 1.0)
    if kind == "default":
        return fields
    if kind == "llama3":
        return fields | {"bands": {ours: rope.take(theirs) for ours, theirs in _BANDS.items()}}
    if kind != "yarn":
        raise CheckpointError(
            f"{published.path}: rope type {reprlib.repr(kind)} is not supported; default, yarn and llama3 are"
        )
    rope.expect("truncate", True)
    yarn = {ours: rope.take(theirs, None) for ours, theirs in _YARN.items()}
    yarn["original_context"] = yarn["original_context"] or published.take("max_position_embeddings")
    return fields | {"yarn": {ours: value for ours, value in yarn.items() if value is not None}}


def _write_rope(config: ModelConfig) -> dict[str, Any]:
    if config.bands is not None:
        bands = {theirs: getattr(config.bands, ours) for ours, theirs in _BANDS.items()}
        return {"rope_theta": config.rope_theta, "rope_scaling": {"rope_type": "llama3", **bands}}
    if config.yarn is None:
        return {"rope_theta": config.rope_theta}
    yarn = {theirs: getattr(config.yarn, ours) for ours, theirs in _YARN.items()}
    return {
        "rope_theta": config.rope_theta,
        "rope_scaling": {
            "rope_type": "yarn",
            "type": "yarn",
            **{key: value for key, value in yarn.items() if value},
        },
    }


_ATTENTION = (
    "q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight", "q_norm.weight", "k_norm.weight",
    "q_proj.bias", "k_proj.bias", "v_proj.bias",
    "q_a_proj.weight", "q_a_layernorm.weight", "q_b_proj.weight", "kv_a_proj_with_mqa.weight", "kv_a_layernorm.weight",
    "kv_b_proj.weight",
)  # fmt: skip
_BLOCK = {
    "input_norm.weight": "input_layernorm.weight",
    "mlp_norm.weight": "post_attention_layernorm.weight",
    **{f"attention.{name}": f"self_attn.{name}" for name in _ATTENTION},
    "mlp.router.weight": "mlp.gate.weight",
    "mlp.selection_bias": "mlp.gate.e_score_correction_bias",
    "mlp.down.weight": "mlp.down_proj.weight",
    "mlp.shared.down.weight": "mlp.shared_experts.down_proj.weight",
}
_FURTHER = {
    "token_norm.weight": "enorm.weight",
    "hidden_norm.weight": "hnorm.weight",
    "join.weight": "eh_proj.weight",
    "norm.weight": "shared_head.norm.weight",
}
_GATED = {"mlp.gate_up.weight": "mlp.", "mlp.shared.gate_up.weight": "mlp.shared_experts."}
EMBEDDINGS, HEAD = "model.embed_tokens.weight", "lm_head.weight"
KEPT_FP32 = ".e_score_correction_bias"
"""The end of the names of tensors that are fp32 whatever the checkpoint's dtype."""


def published_tensors(decoder: Decoder) -> dict[str, Tensor]:
    """Published name → a view of our tensor, in the published orientation; writing to a view writes to the model."""
    views = {EMBEDDINGS: decoder.embed.weight.data, "model.norm.weight": decoder.norm.weight.data}
    if decoder.head is not None:
        views[HEAD] = decoder.head.weight.data
    for layer, block in enumerate(decoder.blocks):
        views |= {f"model.layers.{layer}.{name}": view for name, view in _block_tensors(block)}
    if decoder.further is not None:
        prefix = f"model.layers.{len(decoder.blocks)}."
        views |= {prefix + name: view for name, view in _further_tensors(decoder.further)}
    return views


def published_modules(name: str) -> tuple[str, ...]:
    """The published modules that a matrix of a block is the weight of, or the parameter that holds a stack of experts
    in `transformers`: of "blocks.0.mlp.gate_up.weight" two, whose rows follow each other.
    """
    _, layer, ours = name.split(".", 2)
    prefix = f"model.layers.{layer}."
    if ours in ("mlp.gate_up", "mlp.down"):
        return (f"{prefix}mlp.experts.{ours.removeprefix('mlp.')}_proj",)
    if ours in _GATED:
        return f"{prefix}{_GATED[ours]}gate_proj", f"{prefix}{_GATED[ours]}up_proj"
    return (prefix + _BLOCK[ours].removesuffix(".weight"),)


def shared_tensors(decoder: Decoder) -> dict[str, str]:
    """Names of tensors that a checkpoint holds once more under another name, and that name."""
    if decoder.further is None:
        return {}
    prefix = f"model.layers.{len(decoder.blocks)}."
    head = EMBEDDINGS if decoder.head is None else HEAD
    return {f"{prefix}embed_tokens.weight": EMBEDDINGS, f"{prefix}shared_head.head.weight": head}


def _further_tensors(further: FurtherToken) -> Iterable[tuple[str, Tensor]]:
    for ours, theirs in _FURTHER.items():
        yield theirs, further.get_parameter(ours).data
    yield from _block_tensors(further.block)


def _block_tensors(block: nn.Module) -> Iterable[tuple[str, Tensor]]:
    """Every tensor of a block is one of three: named alike, gate and up-projection as one, or stacked experts."""
    for ours, tensor in [*block.named_parameters(), *block.named_buffers()]:
        data = tensor.data
        if ours in _BLOCK:
            yield _BLOCK[ours], data
        elif ours in _GATED:
            gate, up = data.chunk(2)
            yield f"{_GATED[ours]}gate_proj.weight", gate
            yield f"{_GATED[ours]}up_proj.weight", up
        elif ours == "mlp.gate_up":
            for expert, (gate, up) in enumerate(zip(*data.mT.chunk(2, dim=1), strict=True)):
                yield f"mlp.experts.{expert}.gate_proj.weight", gate
                yield f"mlp.experts.{expert}.up_proj.weight", up
        elif ours == "mlp.down":
            for expert, down in enumerate(data.mT):
                yield f"mlp.experts.{expert}.down_proj.weight", down
        else:
            raise CheckpointError(f"no published layout has a name for {ours}")
