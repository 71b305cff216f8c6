"""How many positions an engine's cache holds, where its config does not say.

Owns that choice: what a position takes of memory, what memory there is, and how much of it a model of that size should
have for its cache. Allocates nothing (`engine.kv_cache`).
"""

from __future__ import annotations

import psutil

from etude.environments.cluster.pressure import memory_in_use
from etude.kernels.paged_attention import PAGE, value_width
from etude.models.config import ModelConfig
from etude.models.decoder import Decoder
from etude.models.size import parameters_of

MOST = 98_304
"""Positions that no more are taken of unasked: a hundred sessions of a small model."""
LEAST_BYTES = 256 << 20
"""What a cache may take beside however small a model."""
CONTEXTS = 4
"""Whole contexts that there is room for, and more sessions that are shorter: where sessions put each other out of the
cache, their tokens are computed over and over."""


def position_bytes(config: ModelConfig) -> int:
    """Bytes of one position, over all layers: its key and its value in fp32, and its routes."""
    groups, width = config.cached_key
    of_value, channels = config.cached_value
    numbers = (config.layers + config.further_token) * (groups * width + of_value * value_width(channels))
    route = 1 if config.experts <= 256 else 2
    return 4 * numbers + route * len(config.moe_layers) * config.experts_per_token


def affordable(config: ModelConfig, available: int) -> int:
    """Positions for a model where `available` bytes of memory are free: four whole contexts, or as many as its
    published weights take of memory, in bytes, and a quarter of what is free at most; room for one whole context in any
    case, where half of what is free holds it. Memory is taken as positions are used.
    """
    each = position_bytes(config)
    usual = max(LEAST_BYTES, 2 * parameters_of(config), CONTEXTS * config.max_context * each)
    wanted = min(usual, available // 4) // each
    context = min(config.max_context, available // 2 // each)
    return max(min(max(wanted, context), max(MOST, context)) // PAGE, 1) * PAGE


def cache_pages(decoder: Decoder, asked: int) -> int:
    """Pages of a cache for so many positions; for 0, as many as can be afforded."""
    return (asked or affordable(decoder.config, available_bytes())) // PAGE


def available_bytes() -> int:
    """Memory that this process can still have: the machine's, or its control group's."""
    free, group = psutil.virtual_memory().available, memory_in_use()
    return free if group is None else min(free, max(0, group[1] - group[0]))
