"""Rotary positions (arXiv 2104.09864), plain or stretched by YaRN (arXiv 2309.00071) or by Llama 3's bands (arXiv
2407.21783).

Owns the tables of cosines and sines, and the two scales that YaRN asks for; `kernels.pointwise` turns. Everything is
computed in fp32, in the published order of operations: an angle is a position times a frequency, so that the last bit
of a frequency is many bits of a late position's angle. On a host cosines come from a table, so that a position's have
the same bits in each batch; a device, which nobody asks for its last position, computes them where they are used.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from etude.kernels.devices import put
from etude.kernels.interface import Kernels
from etude.models.config import BandsConfig, ModelConfig, YarnConfig

Rope = tuple[Tensor, Tensor]
"""Cosines and sines [N, C / 2], fp32."""
TABLE = 1024
"""Positions whose angles are computed at once: a cosine may have other bits in a batch of another size."""


def rope_tables(positions_N: Tensor, config: ModelConfig, kernels: Kernels) -> Rope:
    """The tables of these positions."""
    how = config.rope_width, config.rope_theta, config.yarn or config.bands
    if kernels.on_host:
        cos, sin = _tables(*how, int(positions_N.max()) // TABLE + 1)
        return cos[positions_N], sin[positions_N]
    frequencies, amplitude = _on_device(*how, positions_N.device)
    angles = positions_N[:, None] * frequencies
    return angles.cos() * amplitude, angles.sin() * amplitude


@lru_cache(maxsize=8)
def _on_device(
    width: int, theta: float, stretched: YarnConfig | BandsConfig | None, device: torch.device
) -> tuple[Tensor, float]:
    """Frequencies [C / 2], and what cosines and sines are multiplied by."""
    amplitude = _amplitude(stretched) if isinstance(stretched, YarnConfig) else 1.0
    with torch.inference_mode(False):
        return put(_frequencies(width, theta, stretched), device), amplitude


@lru_cache(maxsize=8)
def _tables(width: int, theta: float, stretched: YarnConfig | BandsConfig | None, count: int) -> Rope:
    """Of the positions below count * TABLE."""
    amplitude = _amplitude(stretched) if isinstance(stretched, YarnConfig) else 1.0
    with torch.inference_mode(False):  # they outlive the forward that asks for them first
        positions = torch.arange(count * TABLE, dtype=torch.float32).split(TABLE)
        angles = [each[:, None] * _frequencies(width, theta, stretched) for each in positions]
        cos, sin = (torch.cat([turn(each) for each in angles]) * amplitude for turn in (torch.cos, torch.sin))
    return cos, sin


def forget_tables() -> None:
    """What a forward without values has left here would be no use to one with them, nor the other way round."""
    _tables.cache_clear()
    _on_device.cache_clear()


def halves(x_NHC: Tensor) -> Tensor:
    """Channels stored as pairs (0, 1), (2, 3), … as they are turned: all firsts, then all seconds."""
    return x_NHC.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


def logit_scale(yarn: YarnConfig | None) -> float:
    """What latent attention multiplies its attention logits by when its positions are stretched."""
    return _growth(yarn.factor, yarn.mscale_all_dim) ** 2 if yarn and yarn.mscale_all_dim else 1.0


def band_factors(width: int, theta: float, bands: BandsConfig) -> Tensor:
    """How much slower each channel turns by its band [C / 2]."""
    plain = _frequencies(width, theta, None)
    return plain / _by_bands(plain, bands)


def _frequencies(width: int, theta: float, how: YarnConfig | BandsConfig | None) -> Tensor:
    """Radians a token [C / 2]."""
    powers = theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    if how is None:
        return 1.0 / powers
    return _by_bands(1.0 / powers, how) if isinstance(how, BandsConfig) else _by_yarn(powers, width, theta, how)


def _by_bands(plain: Tensor, bands: BandsConfig) -> Tensor:
    length = 2 * math.pi / plain  # of a turn, in tokens
    kept = ((bands.original_context / length - bands.slow) / (bands.fast - bands.slow)).clamp(0, 1)
    mixed = (1 - kept) * plain / bands.factor + kept * plain
    return torch.where(kept == 0, plain / bands.factor, torch.where(kept == 1, plain, mixed))


def _by_yarn(powers: Tensor, width: int, theta: float, yarn: YarnConfig) -> Tensor:
    low, high = (_channel(width, theta, yarn, turns) for turns in (yarn.beta_fast, yarn.beta_slow))
    low, high = max(math.floor(low), 0), min(math.ceil(high), width - 1)
    index = torch.arange(width // 2, dtype=torch.float32)
    stretched = ((index - low) / ((high - low) or 0.001)).clamp(0, 1)
    return 1.0 / (yarn.factor * powers) * stretched + 1.0 / powers * (1 - stretched)


def _channel(width: int, theta: float, yarn: YarnConfig, turns: float) -> float:
    """The channel, as a real number, that turns so often in the original context."""
    ratio = yarn.original_context / (turns * 2 * math.pi)
    return width * math.log(ratio) / (2 * math.log(theta))


def _amplitude(yarn: YarnConfig) -> float:
    if yarn.attention_factor is not None:
        return yarn.attention_factor
    if yarn.mscale and yarn.mscale_all_dim:
        return _growth(yarn.factor, yarn.mscale) / _growth(yarn.factor, yarn.mscale_all_dim)
    return _growth(yarn.factor, 1.0)


def _growth(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
