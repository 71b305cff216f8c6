"""Rotary positions (arXiv 2104.09864), plain or stretched by YaRN (arXiv 2309.00071).

Owns the tables of cosines and sines, the rotation, and the two scales that YaRN asks for. Everything is computed in
fp32, in the published order of operations: an angle is a position times a frequency, so that the last bit of a
frequency is many bits of a late position's angle.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from etude.models.config import ModelConfig, YarnConfig

Rope = tuple[Tensor, Tensor]
"""Cosines and sines [N, 1, C]."""


def rope_tables(positions_N: Tensor, config: ModelConfig, dtype: torch.dtype) -> Rope:
    """The tables of these positions."""
    angles = positions_N.float()[:, None] * _frequencies(config, positions_N.device)
    angles = torch.cat((angles, angles), dim=-1)[:, None]
    cos, sin = angles.cos(), angles.sin()
    if config.yarn is not None:
        amplitude = _amplitude(config.yarn)
        cos, sin = cos * amplitude, sin * amplitude
    return cos.to(dtype), sin.to(dtype)


def rotate(x_NHC: Tensor, rope: Rope) -> Tensor:
    """Turn each pair of channels (c, c + C/2) by its angle."""
    cos, sin = rope
    first, second = x_NHC.chunk(2, dim=-1)
    return x_NHC * cos + torch.cat((-second, first), dim=-1) * sin


def halves(x_NHC: Tensor) -> Tensor:
    """Channels stored as pairs (0, 1), (2, 3), … in the order that `rotate` takes: all firsts, then all seconds."""
    return x_NHC.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


def logit_scale(yarn: YarnConfig | None) -> float:
    """What latent attention multiplies its attention logits by when its positions are stretched."""
    return _growth(yarn.factor, yarn.mscale_all_dim) ** 2 if yarn and yarn.mscale_all_dim else 1.0


def _frequencies(config: ModelConfig, device: torch.device) -> Tensor:
    """Radians a token [C / 2]."""
    width, theta, yarn = config.rope_width, config.rope_theta, config.yarn
    powers = theta ** (torch.arange(0, width, 2, dtype=torch.float32, device=device) / width)
    if yarn is None:
        return 1.0 / powers
    low, high = (_channel(config, yarn, turns) for turns in (yarn.beta_fast, yarn.beta_slow))
    low, high = max(math.floor(low), 0), min(math.ceil(high), width - 1)
    index = torch.arange(width // 2, dtype=torch.float32, device=device)
    stretched = ((index - low) / ((high - low) or 0.001)).clamp(0, 1)
    return 1.0 / (yarn.factor * powers) * stretched + 1.0 / powers * (1 - stretched)


def _channel(config: ModelConfig, yarn: YarnConfig, turns: float) -> float:
    """The channel, as a real number, that turns so often in the original context."""
    ratio = yarn.original_context / (turns * 2 * math.pi)
    return config.rope_width * math.log(ratio) / (2 * math.log(config.rope_theta))


def _amplitude(yarn: YarnConfig) -> float:
    if yarn.attention_factor is not None:
        return yarn.attention_factor
    if yarn.mscale and yarn.mscale_all_dim:
        return _growth(yarn.factor, yarn.mscale) / _growth(yarn.factor, yarn.mscale_all_dim)
    return _growth(yarn.factor, 1.0)


def _growth(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
