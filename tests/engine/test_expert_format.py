"""Low-precision experts in trainer and engine: the same codes, byte for byte, and what follows from it."""

import asyncio
import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from small_models import SHIPPED

from etude.engine.config import EngineConfig
from etude.engine.server.app import ServeConfig, open_service
from etude.engine.torch_engine import TorchEngine
from etude.errors import ConfigError
from etude.harness.sampler import SampleRequest
from etude.kernels.low_precision import ExpertLinear
from etude.models.config import ModelConfig
from etude.models.decoder import Decoder
from etude.models.expert_format import set_expert_format
from etude.models.state import export_bits, round_to_bf16
from etude.records import Group, Scored, Segment, Task, Trajectory, Verifier
from etude.trainer.config import OptimizerConfig, TrainerConfig
from etude.trainer.packing import build_batch
from etude.trainer.step import Trainer

torch.set_num_threads(1)
CONFIG = ModelConfig(
    vocab_size=64, width=32, layers=2, heads=4, kv_heads=2, head_width=8, experts=4, expert_width=32, max_context=64
)
LOW = pytest.mark.parametrize("form", ["mxfp8", "nvfp4"])


def decoder_of(form):
    decoder = Decoder(CONFIG)
    decoder.initialise(0)
    for block in decoder.blocks:
        block.mlp.gate_up.data.mul_(10), block.mlp.down.data.mul_(10)
    round_to_bf16(decoder)
    return decoder, set_expert_format(decoder, form)


def codes_of(decoder, product):
    """The bytes of every expert matrix's codes and scales."""
    weights = [weight for block in decoder.blocks for weight in (block.mlp.gate_up, block.mlp.down)]
    return [[part.numpy().tobytes() for part in product.codes(weight)] for weight in weights]


def batch_of(engine, trainer):
    """Eight rollouts of one question, half of them rewarded, from the engine."""

    async def play():
        requests = [SampleRequest(str(seed), (3, 4, 5), 12, frozenset(), seed=seed) for seed in range(8)]
        return await asyncio.gather(*(engine.sample(request) for request in requests))

    members = []
    for number, done in enumerate(asyncio.run(play())):
        said = Segment(
            np.array([3, 4, 5, *done.token_ids], np.int32), np.arange(15) >= 3,
            np.array([0, 0, 0, *done.logprobs], np.float32), np.array([0, 0, 0, *done.versions], np.int32),
            done.routed_experts,
        )  # fmt: skip
        members.append(Trajectory(str(number), "t", "g", (said,), (), Scored(float(number % 2), {})))
    group = Group("g", Task("t", "do", {}, Verifier({})), tuple(members))
    return build_batch([group], [np.array([-0.5, 0.5] * 4, np.float32)], trainer.version)


def trainer_of(decoder):
    settings = {"optimizer": OptimizerConfig(name="adamw", lr=0.01)}
    return Trainer(decoder, TrainerConfig(**settings))


@LOW
def test_the_engine_serves_exactly_the_codes_that_the_trainer_holds(form):
    policy, trained = decoder_of(form)
    served, sampled = decoder_of(form)
    trainer, engine = trainer_of(policy), TorchEngine(served, EngineConfig(cache_tokens=1024))
    seen = [codes_of(served, sampled)]
    try:
        for _ in range(2):
            held = sampled.codes(served.blocks[0].mlp.gate_up)
            trainer.step(batch_of(engine, trainer))
            assert sampled.codes(served.blocks[0].mlp.gate_up) is held  # quantised once a version, not once a step
            engine.swap(trainer.export(), trainer.version).result(30)
            assert codes_of(served, sampled) == codes_of(policy, trained)
            seen.append(codes_of(served, sampled))
    finally:
        engine.close()
    assert all(
        old[0] != new[0] for before, after in pairwise(seen) for old, new in zip(before, after, strict=True)
    )  # every matrix's codes are new in every version
    assert min(trained.rows, sampled.rows) > 0


@LOW
def test_log_probabilities_agree_if_both_multiply_in_the_format_and_not_if_one_does(form):
    policy, _ = decoder_of(form)
    engine = TorchEngine(decoder_of(form)[0], EngineConfig(cache_tokens=1024))
    try:
        batch = batch_of(engine, trainer_of(copy.deepcopy(policy)))
    finally:
        engine.close()
    matched = trainer_of(policy).step(batch)["mean_abs_dlogp"]
    plain = trainer_of(decoder_of("plain")[0]).step(batch)["mean_abs_dlogp"]
    assert matched < plain / 10
    assert plain > 1e-3


def test_a_shape_that_does_not_fit_the_blocks_is_refused():
    for changes, message in (
        ({"expert_width": 24}, "expert width of 24"),
        ({"experts": 0, "dense_width": 32, "expert_width": None}, "no experts"),
    ):
        fields = {**CONFIG.model_dump(exclude_unset=True), **changes}
        shape = ModelConfig(**{name: value for name, value in fields.items() if value is not None})
        with pytest.raises(ConfigError, match=message):
            set_expert_format(Decoder(shape), "nvfp4")


@LOW
def test_codes_follow_their_weight(form):
    decoder, product = decoder_of(form)
    weight = decoder.blocks[0].mlp.gate_up
    first, bits = product.codes(weight), export_bits(decoder)
    with torch.no_grad():
        weight.neg_()
    assert not torch.equal(product.codes(weight).codes, first.codes)
    with torch.no_grad():
        weight.copy_(torch.from_numpy(bits["blocks.0.mlp.gate_up"]).view(torch.bfloat16))
    assert torch.equal(product.codes(weight).codes, first.codes)


@LOW
def test_a_server_multiplies_in_the_format_it_is_told(form):
    request = SampleRequest("s", (5, 6, 7), 4, frozenset(), 0.0, 1)
    said = []
    for asked in ("plain", form):
        service = open_service(SHIPPED, ServeConfig(expert_format=asked))
        said.append(asyncio.run(service.engine.sample(request)).logprobs)
        products = {type(block.mlp.product) for block in service.engine.decoder.blocks}
        assert products == {type(None) if asked == "plain" else ExpertLinear}
        service.engine.close()
    assert said[0] != said[1]
