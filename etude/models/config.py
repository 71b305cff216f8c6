"""The shape of a decoder, as one frozen config.

Owns `ModelConfig`, its checks and what follows from it. Field names are ours; the family files (`models.qwen3`,
`models.deepseek_v3`, `models.llama`) map them to the published config.json. A field that would have no effect beside
the others is refused. No torch: a recipe is read without it.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from etude.config import Config

ExpertFormat = Literal["plain", "mxfp8", "nvfp4"]
"""How experts multiply: in the weights' own dtype, or quantised by a recipe of `kernels.low_precision`."""


class LatentConfig(Config):
    """Multi-head latent attention (arXiv 2405.04434): what is cached of a token is one latent and one rotary key."""

    query_rank: int | None = None
    """Width of the queries' own latent; None projects them from the hidden state directly."""
    rank: int
    """Width of the latent that keys and values are projected from."""
    plain_width: int
    """Channels of a head's query and key that carry no position."""
    rope_width: int
    """Channels of a head's query, and of the key that all heads share, that carry the position."""
    value_width: int
    interleaved: bool = True
    """Rotary channels are stored in pairs (0, 1), (2, 3), … and not as two halves."""


class YarnConfig(Config):
    """Rotary positions stretched to a longer context (YaRN, arXiv 2309.00071)."""

    factor: float
    original_context: int
    """The context before it was stretched, in tokens."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    """Channels that turn more than `beta_fast` times in the original context stay, those below `beta_slow` times are
    stretched by the whole factor."""
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    attention_factor: float | None = None
    """Scale of the rotary tables; None derives it from the factor and the two mscales."""


class BandsConfig(Config):
    """Rotary positions stretched to a longer context by bands of channels, as Llama 3 does it (arXiv 2407.21783)."""

    factor: float
    original_context: int
    """The context before it was stretched, in tokens."""
    slow: float = 1.0
    fast: float = 4.0
    """Channels that turn less than `slow` times in the original context are stretched by the whole factor, those that
    turn more than `fast` times not at all."""

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.fast <= self.slow:
            raise ValueError(f"fast ({self.fast}) must be more than slow ({self.slow})")
        return self


MOST_EXPERTS = 1 << 17
"""Of all layers together: each is three tensors with names of their own."""
_OF_ROUTERS = {
    "experts_per_token", "expert_width", "shared_width", "router", "normalise_gates", "gate_scale", "expert_groups",
    "groups_per_token", "dense_layers",
}  # fmt: skip
_OF_GROUPED = {"kv_heads", "head_width", "head_norm", "qkv_bias"}
_OF_SIGMOID = {"expert_groups", "groups_per_token"}


class ModelConfig(Config):
    """Attention is grouped-query unless `latent` is given; feed-forwards are mixtures of experts but for
    `dense_layers`.
    """

    vocab_size: int
    width: int = 128
    layers: int = 4
    norm_eps: float = 1e-6
    tie_embeddings: bool = True
    max_context: int = 1024
    """Longest context the model was trained for, in tokens."""

    heads: int = 4
    kv_heads: int = 2
    head_width: int = 32
    head_norm: bool = True
    """RMS-norm queries and keys, head by head."""
    qkv_bias: bool = False
    """Add a bias to queries, keys and values."""
    latent: LatentConfig | None = None
    rope_theta: float = 10_000.0
    yarn: YarnConfig | None = None
    bands: BandsConfig | None = None

    experts: int = 8
    """0 makes every layer dense."""
    experts_per_token: int = 2
    expert_width: int = 128
    shared_width: int = 0
    """Width of all shared experts together, which every token goes through."""
    router: Literal["softmax", "sigmoid"] = "softmax"
    """A sigmoid router chooses by score plus a bias of each expert; the bias is no part of the gates."""
    normalise_gates: bool = True
    """Scale the chosen experts' gates to sum to one (`norm_topk_prob`)."""
    gate_scale: float = 1.0
    expert_groups: int = 1
    groups_per_token: int = 1
    """A token's experts come from this many groups: those whose two best experts promise most."""
    dense_layers: tuple[int, ...] = ()
    dense_width: int = 0

    further_token: bool = False
    """A layer behind the last predicts the token after the next, from the hidden state and the next token."""

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """Layers that have a router, in order: the layers of routes."""
        return tuple(layer for layer in range(self.layers) if self.routes(layer))

    def routes(self, layer: int) -> bool:
        """Whether a layer is a mixture; the one that predicts a further token is number `layers`."""
        return bool(self.experts) and layer not in self.dense_layers

    @property
    def rope_width(self) -> int:
        return self.latent.rope_width if self.latent else self.head_width

    @property
    def cached_key(self) -> tuple[int, int]:
        """Shape (heads, channels) of the keys that a token leaves for those after it."""
        return (1, self.latent.rank + self.latent.rope_width) if self.latent else (self.kv_heads, self.head_width)

    @property
    def cached_value(self) -> tuple[int, int]:
        """Shape (heads, channels) of the values that go with them; of a latent key, a part of it."""
        return (1, self.latent.rank) if self.latent else (self.kv_heads, self.head_width)

    def idle(self) -> dict[str, str]:
        without_router = dict.fromkeys(_OF_ROUTERS if not self.experts else (), "with experts = 0")
        ungrouped = dict.fromkeys(_OF_GROUPED if self.latent is not None else (), "with latent attention")
        unlimited = dict.fromkeys(_OF_SIGMOID if self.router == "softmax" else (), 'with router = "softmax"')
        return without_router | ungrouped | unlimited

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.experts and not self.moe_layers:
            raise ValueError("dense_layers names every layer; set experts = 0 instead")
        if (len(self.moe_layers) < self.layers) != (self.dense_width > 0):
            raise ValueError("dense_width is the width of dense layers: give it if there are any, and only then")
        if self.latent is None and self.heads % self.kv_heads:
            raise ValueError(f"kv_heads ({self.kv_heads}) does not divide heads ({self.heads})")
        if self.yarn is not None and self.bands is not None:
            raise ValueError("yarn and bands are two ways to stretch positions; give one")
        if self.rope_width < 2 or self.rope_width % 2:
            raise ValueError(f"rotary positions turn pairs of channels; {self.rope_width} are no pairs")
        if self.experts and not 1 <= self.experts_per_token <= self.experts:
            raise ValueError(f"experts_per_token must be between 1 and experts ({self.experts})")
        if self.experts * self.layers > MOST_EXPERTS:
            raise ValueError(f"{self.layers} layers of {self.experts} experts are more than {MOST_EXPERTS} in all")
        if self.expert_groups > 1:
            self._groups_fit()
        return self

    def _groups_fit(self) -> None:
        size = self.experts // self.expert_groups
        if size * self.expert_groups != self.experts or size < 2:
            raise ValueError(f"expert_groups ({self.expert_groups}) must split experts into equal groups of at least 2")
        if not 1 <= self.groups_per_token <= self.expert_groups:
            raise ValueError(f"groups_per_token must be between 1 and expert_groups ({self.expert_groups})")
        if self.groups_per_token * size < self.experts_per_token:
            raise ValueError(f"{self.groups_per_token} groups of {size} hold fewer than experts_per_token experts")
