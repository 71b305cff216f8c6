"""How large a cache is that nobody has said the size of."""

import pytest
import torch
from small_models import SHAPE, random_decoder

from etude.engine.cache_size import LEAST_BYTES, MOST, affordable, available_bytes, position_bytes
from etude.engine.config import EngineConfig
from etude.engine.kv_cache import PagedCache
from etude.engine.torch_engine import TorchEngine
from etude.kernels.paged_attention import PAGE
from etude.models.config import ModelConfig
from etude.models.decoder import Decoder

# SmolLM2-135M's shape
SMALL = ModelConfig(
    vocab_size=49152, width=576, layers=30, max_context=8192, heads=9, kv_heads=3, head_width=64, head_norm=False,
    experts=0, dense_width=1536,
)  # fmt: skip
GIB = 2**30


def decoder(config):
    with torch.device("meta"):
        return Decoder(config)


def test_a_position_takes_what_the_cache_allocates_for_it():
    for config in (SMALL, random_decoder().config):
        cache = PagedCache(config, 2)
        taken = cache.keys.nbytes + cache.values.nbytes + cache.routes.nbytes
        assert position_bytes(config) == taken // (2 * PAGE)


def test_the_cache_is_as_large_as_model_and_memory_say():
    model = decoder(SMALL)
    assert affordable(model.config, 16 * GIB) == 4 * SMALL.max_context
    assert SMALL.max_context < affordable(model.config, 4 * GIB) < 4 * SMALL.max_context
    assert affordable(model.config, GIB) == SMALL.max_context, "a quarter holds no whole context, and half does"
    assert affordable(model.config, GIB // 2) == GIB // 4 // position_bytes(SMALL) // PAGE * PAGE
    assert affordable(model.config, 0) == PAGE
    wide = SMALL.model_copy(update={"layers": 2, "kv_heads": 1})
    assert affordable(decoder(wide).config, 16 * GIB) == MOST
    assert affordable(decoder(wide).config, GIB) == MOST > affordable(decoder(wide).config, GIB // 8) > 8192


@pytest.mark.parametrize("head_width", [8, 128])
def test_an_engine_takes_it_and_its_context_from_there(head_width):
    """Of a model whose positions are small the most there is, and of one whose are larger less."""
    model = random_decoder(shape=SHAPE.model_copy(update={"head_width": head_width}))
    engine = TorchEngine(model, EngineConfig())
    try:
        assert available_bytes() > GIB, "these tests need some memory"
        large = LEAST_BYTES // position_bytes(model.config) // PAGE * PAGE
        assert engine.stats()["cache_tokens"] == affordable(model.config, GIB) == (MOST if head_width == 8 else large)
        assert (large < MOST) == (head_width == 128) and engine.max_context == model.config.max_context
    finally:
        engine.close()


def test_memory_is_taken_as_positions_are_used():
    cache = PagedCache(SMALL, 24_576 // PAGE)
    assert cache.keys.nbytes + cache.values.nbytes > GIB
    with open("/proc/self/statm") as file:
        before = int(file.read().split()[1])
    cache.keys[0, 0] = 1.0
    with open("/proc/self/statm") as file:
        assert (int(file.read().split()[1]) - before) * 4096 < GIB // 8
