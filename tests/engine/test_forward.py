"""The forward on arrays is the decoder's, bit for bit: of every shape it serves, at every version."""

import pytest
import torch
from small_models import random_decoder

from etude.engine.attention import PagedAttention
from etude.engine.forward import Forward, fits
from etude.engine.kv_cache import CachedSequence, PagedCache
from etude.models.config import LatentConfig, ModelConfig

SMALL = {"vocab_size": 200, "width": 40, "heads": 4, "max_context": 320}
SHAPES = {
    "mixture": ModelConfig(**SMALL, layers=2, head_width=8, experts=4, expert_width=16),
    "dense": ModelConfig(**SMALL, layers=2, head_width=24, kv_heads=1, head_norm=False, experts=0, dense_width=40),
    "shared": ModelConfig(
        **SMALL, layers=3, head_width=8, experts=8, experts_per_token=3, expert_width=8, shared_width=16,
        router="sigmoid", expert_groups=4, groups_per_token=2, gate_scale=2.5, dense_layers=(0,), dense_width=48,
    ),
}  # fmt: skip
LATENT = ModelConfig(
    **SMALL,
    layers=1,
    experts=0,
    dense_width=8,
    latent=LatentConfig(rank=16, plain_width=8, rope_width=8, value_width=8),
)


def steps(decoder, run, chunks):
    """Hidden states and routes of two sequences that grow by these chunks, side by side."""
    cache = PagedCache(decoder.config, 40)
    sequences, said = [CachedSequence(), CachedSequence()], []
    for count in chunks:
        for sequence in sequences:
            cache.reserve(sequence, sequence.computed + count)
        attention = PagedAttention(cache, [(sequence, count) for sequence in sequences])
        ids = [(7 * at + 3 * n) % 200 for n, s in enumerate(sequences) for at in range(s.computed, s.computed + count)]
        with torch.inference_mode():
            hidden, routes = run(ids, attention)
        said.append((hidden.clone(), torch.as_tensor(routes).clone()))
        for sequence in sequences:
            sequence.computed += count
    return said


def plainly(decoder):
    def run(ids, attention):
        output = decoder(torch.tensor(ids), attention.positions, attention)
        return output.hidden_ND, output.routing.experts_NLK

    return run


def assert_same(decoder, forward):
    chunks = (70, 1, 1, 3)
    for mine, expected in zip(steps(decoder, forward, chunks), steps(decoder, plainly(decoder), chunks), strict=True):
        assert all(torch.equal(one, other) for one, other in zip(mine, expected, strict=True))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_hidden_states_and_routes_have_the_bits_of_the_decoder(shape, threads):
    decoder, before = random_decoder(1, SHAPES[shape]), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert fits(decoder)
        assert_same(decoder, Forward(decoder))
    finally:
        torch.set_num_threads(before)


def test_new_weights_are_seen_at_once():
    decoder = random_decoder(1, SHAPES["shared"])
    forward = Forward(decoder)
    assert_same(decoder, forward)
    before = steps(decoder, forward, (5,))[0][0]
    with torch.no_grad():
        for mine, other in zip(decoder.parameters(), random_decoder(2, SHAPES["shared"]).parameters(), strict=True):
            mine.copy_(other)
    assert_same(decoder, forward)
    assert not torch.equal(before, steps(decoder, forward, (5,))[0][0])


def test_what_it_does_not_compute_does_not_fit():
    assert not fits(random_decoder(1, LATENT))
    assert not fits(random_decoder(1, SHAPES["mixture"]).bfloat16())
    quantised = random_decoder(1, SHAPES["mixture"])
    quantised.set_expert_product(lambda rows, weight, counts: rows)
    assert not fits(quantised)
