"""The decoder's forward for one engine step, on plain arrays: the kernels of `Decoder.forward`, in its order, and no
more around them.

A step of a small model spends more time between kernels than in them: tensors made, modules entered, weights looked up.
Here weights are looked up once a version, results go to buffers that stay, and nothing is a tensor but what a router
chooses by. Owns those buffers. Serves grouped attention in fp32 with experts in the weights' own format; whoever has
another decoder calls that itself (`fits` says which). Its bits are the decoder's own, which a test holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from etude.engine.attention import PagedAttention
from etude.kernels.experts import add_weighted, sort_by_expert, through_experts
from etude.kernels.pointwise import gated_rows, norm_rows, rotate_rows
from etude.kernels.rows import BLOCK, Panels, packed, panels_product
from etude.kernels.vectors import in_parallel
from etude.models.decoder import Decoder
from etude.models.experts import MixtureOfExperts
from etude.models.layers import RMSNorm, SwiGLU
from etude.models.rope import rope_tables

Array = npt.NDArray[np.float32]


def fits(decoder: Decoder) -> bool:
    """Whether a decoder is one that this module computes."""
    plain = all(getattr(block.mlp, "product", None) is None for block in decoder.blocks)
    first = decoder.embed.weight
    return plain and decoder.config.latent is None and first.dtype == torch.float32 and decoder.kernels.name == "exact"


@dataclass(frozen=True)
class _Norm:
    weight: Array
    eps: float

    @classmethod
    def of(cls, norm: RMSNorm) -> _Norm:
        return cls(norm.weight.detach().numpy(), norm.eps)


@dataclass(frozen=True)
class _Projection:
    """Of queries, keys or values."""

    weight: Panels
    bias: Array | None

    @classmethod
    def of(cls, linear: nn.Linear) -> _Projection:
        return cls(_panels(linear), None if linear.bias is None else linear.bias.detach().numpy())


@dataclass(frozen=True)
class _Gated:
    """A dense feed-forward."""

    gate_up: Panels
    down: Panels

    @classmethod
    def of(cls, mlp: SwiGLU) -> _Gated:
        return cls(_panels(mlp.gate_up), _panels(mlp.down))


@dataclass(frozen=True)
class _Mixture:
    module: MixtureOfExperts
    router: Panels
    gate_up: Panels
    down: Panels
    shared: _Gated | None

    @classmethod
    def of(cls, mlp: MixtureOfExperts) -> _Mixture:
        shared = None if mlp.shared is None else _Gated.of(mlp.shared)
        return cls(mlp, _panels(mlp.router), packed(mlp.gate_up, mlp.gate_up), packed(mlp.down, mlp.down), shared)


@dataclass(frozen=True)
class _Layer:
    """What a block multiplies with."""

    input_norm: _Norm
    mlp_norm: _Norm
    q: _Projection
    k: _Projection
    v: _Projection
    o: Panels
    q_norm: _Norm | None
    k_norm: _Norm | None
    mlp: _Gated | _Mixture

    @classmethod
    def of(cls, block: Any) -> _Layer:
        its, mlp = block.attention, block.mlp
        return cls(
            _Norm.of(block.input_norm), _Norm.of(block.mlp_norm),
            _Projection.of(its.q_proj), _Projection.of(its.k_proj), _Projection.of(its.v_proj), _panels(its.o_proj),
            _Norm.of(its.q_norm) if isinstance(its.q_norm, RMSNorm) else None,
            _Norm.of(its.k_norm) if isinstance(its.k_norm, RMSNorm) else None,
            _Gated.of(mlp) if isinstance(mlp, SwiGLU) else _Mixture.of(mlp),
        )  # fmt: skip


def _panels(linear: nn.Linear) -> Panels:
    return packed(linear.weight.mT[None], linear.weight)


class Forward:
    """Of one decoder; used by one thread."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder, self.config = decoder, decoder.config
        self._parameters = list(decoder.parameters())
        self._versions: list[int] = []
        self._kept: dict[str, npt.NDArray[Any]] = {}
        self._views: dict[tuple[str, tuple[int, ...]], npt.NDArray[Any]] = {}
        """Of what is kept, in each shape that there was."""

    def __call__(self, ids: list[int], attention: PagedAttention) -> tuple[Tensor, npt.NDArray[np.int64]]:
        """Hidden states [N, D] after the final norm, which the next step overwrites, and routes [N, L, K]."""
        self._look_at_weights()
        x, config = self._embedding[ids], self.config
        cos, sin = (table.numpy() for table in rope_tables(attention.positions, config, self.decoder.kernels))
        routes = np.empty((len(x), len(config.moe_layers), config.experts_per_token), np.int64)
        routed = 0
        for number, layer in enumerate(self._layers):
            normed = self._norm("normed", x, layer.input_norm)
            x += self._attend(number, layer, normed, cos, sin, attention)
            normed = self._norm("normed", x, layer.mlp_norm)
            if isinstance(layer.mlp, _Gated):
                x += self._gated(layer.mlp, normed)
            else:
                x += self._mixture(layer.mlp, normed, routes[:, routed])
                routed += 1
        return torch.from_numpy(self._norm("normed", x, self._final)), routes

    def _look_at_weights(self) -> None:
        """Take them anew after each version."""
        versions = [parameter._version for parameter in self._parameters]
        if versions != self._versions:
            decoder = self.decoder
            self._embedding = decoder.embed.weight.detach().numpy()
            self._final = _Norm.of(decoder.norm)
            self._layers = [_Layer.of(block) for block in decoder.blocks]
            self._versions = versions

    def _buffer(self, name: str, *shape: int, dtype: Any = np.float32) -> npt.NDArray[Any]:
        """Room for a result, the same for each layer and step."""
        view = self._views.get((name, shape))
        if view is None:
            size, kept = prod(shape), self._kept.get(name)
            if kept is None or len(kept) < size:
                self._views = {key: view for key, view in self._views.items() if key[0] != name}
                kept = self._kept[name] = np.empty(size, dtype)
            view = self._views[name, shape] = kept[:size].reshape(shape)
        return view

    def _norm(self, name: str, x: Array, norm: _Norm) -> Array:
        out = self._buffer(name, *x.shape)
        norm_rows(x, norm.weight, norm.eps, out, self._buffer("shares", len(x)))
        return out

    def _product(self, name: str, x: Array, weight: Panels, width: int) -> Array:
        out, x_N1K = self._buffer(name, len(x), 1, width), x[:, None]
        if len(x) < 2 * BLOCK:
            panels_product(x_N1K, weight, out)
        else:
            in_parallel(len(x), BLOCK, lambda rows: panels_product(x_N1K[rows], weight, out[rows]))
        return out[:, 0]

    def _projected(self, name: str, x: Array, by: _Projection, width: int) -> Array:
        out = self._product(name, x, by.weight, width)
        if by.bias is not None:
            out += by.bias
        return out

    def _attend(self, number: int, layer: _Layer, x: Array, cos: Array, sin: Array, attention: PagedAttention) -> Array:
        config, count = self.config, len(x)
        heads, groups, width = config.heads, config.kv_heads, config.head_width
        q = self._projected("q", x, layer.q, heads * width).reshape(count, heads, width)
        k = self._projected("k", x, layer.k, groups * width).reshape(count, groups, width)
        v = self._projected("v", x, layer.v, groups * width).reshape(count, groups, width)
        for turned, norm in ((q, layer.q_norm), (k, layer.k_norm)):
            if norm is not None:
                rows = turned.reshape(-1, width)
                norm_rows(rows, norm.weight, norm.eps, rows, self._buffer("shares", len(rows)))
            rotate_rows(turned, cos, sin, turned)
        out = self._buffer("attended", count, heads, width)
        attention.run(number, q, k, v, width**-0.5, out)
        return self._product("projected", out.reshape(count, -1), layer.o, config.width)

    def _gated(self, mlp: _Gated, x: Array) -> Array:
        inner = mlp.down.shape[2]
        hidden = self._product("gate_up", x, mlp.gate_up, 2 * inner)
        active = self._buffer("gated", len(x), inner)
        gated_rows(hidden, active)
        return self._product("down", active, mlp.down, self.config.width)

    def _mixture(self, mlp: _Mixture, x: Array, routes_NK: npt.NDArray[np.int64]) -> Array:
        config = self.config
        gates_NK, routed = mlp.module.route(torch.from_numpy(self._product("router", x, mlp.router, config.experts)))
        routes_NK[:] = experts_NK = routed.experts_NK.numpy()
        choices, inner = experts_NK.size, config.expert_width
        order = self._buffer("order", choices, dtype=np.int64)
        starts = self._buffer("starts", config.experts + 1, dtype=np.int64)
        sort_by_expert(experts_NK, order, starts)
        said = self._buffer("said", choices, config.width)
        through_experts(
            x, order, starts, config.experts_per_token, mlp.gate_up, mlp.down,
            self._buffer("sorted", choices, config.width), self._buffer("expert_gate_up", choices, 2 * inner),
            self._buffer("expert_gated", choices, inner), said,
        )  # fmt: skip
        out = self._buffer("mixed", len(x), config.width)
        add_weighted(said, order, gates_NK.numpy(), out)
        if mlp.shared is not None:
            out += self._gated(mlp.shared, x)
        return out
