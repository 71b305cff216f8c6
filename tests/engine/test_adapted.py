"""Adapters on their way: trainer, store, chain, subscriber, engine, bit for bit; and what a version of them costs."""

import asyncio

import numpy as np
import pytest
from small_models import random_decoder

from etude.engine.adapted import ROOT
from etude.engine.config import EngineConfig
from etude.engine.torch_engine import TorchEngine
from etude.engine.updates import WeightUpdates
from etude.errors import WeightError
from etude.harness.sampler import SampleRequest
from etude.models.config import LatentConfig, ModelConfig
from etude.models.expert_format import set_expert_format
from etude.models.state import export_bits, hold_in_bf16
from etude.records import Group, Scored, Segment, Task, Trajectory, Verifier, Version
from etude.trainer.config import OptimizerConfig, TrainerConfig
from etude.trainer.packing import build_batch
from etude.trainer.step import Trainer
from etude.weights.background import BackgroundPublisher
from etude.weights.manifest import root_of
from etude.weights.opening import open_store
from etude.weights.pins import Pins
from etude.weights.publisher import Publisher
from etude.weights.subscriber import Subscriber

GROUPED = ModelConfig(
    vocab_size=256, width=64, layers=2, heads=4, head_width=16, experts=4, expert_width=32, max_context=256
)
LATENT = ModelConfig(
    vocab_size=256, width=64, layers=2, heads=4, dense_layers=(0,), dense_width=96, experts=4, expert_width=32,
    router="sigmoid", shared_width=32, max_context=256,
    latent=LatentConfig(query_rank=32, rank=24, plain_width=16, rope_width=8, value_width=16),
)  # fmt: skip
WIDE = ModelConfig(
    vocab_size=2048, width=256, layers=2, heads=4, head_width=64, kv_heads=4, experts=0, dense_width=1024,
    max_context=256,
)  # fmt: skip
LORA = {"attention": 4, "experts": 4}


def trainer_of(shape, lora, form="plain", **changes):
    decoder = random_decoder(0, shape, 4)
    set_expert_format(decoder, form)
    optimizer = OptimizerConfig(name="adamw", lr=0.01)
    return Trainer(decoder, TrainerConfig(lora=lora, optimizer=optimizer, **changes))


def engine_of(shape, store, form="plain"):
    """One that begins with other weights than the trainer's: what it serves has come by the store."""
    decoder = random_decoder(9, shape, 4)
    set_expert_format(decoder, form)
    engine = TorchEngine(decoder, EngineConfig(cache_tokens=2048))
    return engine, WeightUpdates(engine, Subscriber(store))


async def sampled(engine, version):
    """Six rollouts of two different rewards, in one group."""
    asked = [
        engine.sample(SampleRequest(f"{version}-{at}", tuple(range(5, 25 + at)), 16, frozenset(), 1.0, at))
        for at in range(6)
    ]
    members = []
    for at, said in enumerate(await asyncio.gather(*asked)):
        prompt, count = tuple(range(5, 25 + at)), len(said.token_ids)
        segment = Segment(
            np.array([*prompt, *said.token_ids], np.int32), np.array([0] * len(prompt) + [1] * count, bool),
            np.array([0.0] * len(prompt) + [*said.logprobs], np.float32),
            np.array([version] * (len(prompt) + count), np.int32), said.routed_experts,
        )  # fmt: skip
        members.append(Trajectory(str(at), "t", "g", (segment,), (), Scored(float(at % 2), {})))
    return Group("g", Task("t", "do", {}, Verifier({})), tuple(members))


async def steps(trainer, engine, updates, publisher, count):
    """Sample with the engine, train on it, publish, have the engine load it; the metrics and publications."""
    lines, results = [], []
    for _ in range(count):
        group = await sampled(engine, trainer.version)
        values = np.array([-1.0, 1.0] * 3, np.float32)
        lines.append(trainer.step(build_batch([group], [values], trainer.version)))
        publisher.put(trainer.version, trainer.export)
        results.append(publisher.published(trainer.version).result)
        applied = await updates.load(trainer.version)
        assert applied is not None and applied.as_json()["adapters"] == len(trainer.trained.ranks) > 0
    return lines, results


@pytest.mark.parametrize("form", ["plain", "mxfp8"])
@pytest.mark.parametrize("shape", [GROUPED, LATENT], ids=["grouped", "latent"])
def test_an_engine_serves_what_its_trainer_holds_and_says_so_bit_for_bit(tmp_path, shape, form):
    """With experts in a low precision both make their codes of the same merged bits; sums of codes are torch's."""
    trainer = trainer_of(shape, LORA, form)
    store = open_store(tmp_path / "store")
    publisher = BackgroundPublisher(Publisher(store))
    engine, updates = engine_of(shape, store, form)

    async def play():
        publisher.put(trainer.version, trainer.export)
        publisher.published(trainer.version)
        await updates.load(trainer.version)
        return await steps(trainer, engine, updates, publisher, 3)

    lines, results = asyncio.run(play())
    for line in lines:
        assert line["matched_tokens"] == 96
        assert line["max_abs_dlogp"] == 0 if form == "plain" else line["max_abs_dlogp"] < 0.05
        assert line["used"]["adapters_moved"] > 0 and line["routes_given"] > 0
    assert updates.root == results[-1].root == root_of(trainer.export())
    assert root_of(export_bits(engine.decoder)) == root_of(export_bits(trainer.policy))
    assert root_of(export_bits(trainer.policy)) != root_of(export_bits(random_decoder(0, shape, 4)))
    publisher.close()
    engine.close()


@pytest.mark.parametrize("shape", [GROUPED, LATENT], ids=["grouped", "latent"])
def test_an_engine_that_holds_its_matrices_in_bf16_samples_the_same_bits(shape):
    """From its first weights, and from ones that come in later."""
    plain, held = random_decoder(3, shape, 4), random_decoder(3, shape, 4)
    hold_in_bf16(held)
    sizes = [sum(each.numel() * each.element_size() for each in model.parameters()) for model in (plain, held)]
    assert sizes[1] < 0.7 * sizes[0]

    async def said(engine):
        first = await sampled(engine, 0)
        await asyncio.wrap_future(engine.swap(export_bits(random_decoder(4, shape, 4)), Version(1)))
        second = await sampled(engine, 1)
        return [
            (tuple(each.segments[0].token_ids), each.segments[0].logprobs.tobytes())
            for group in (first, second)
            for each in group.trajectories
        ]

    engines = [TorchEngine(model, EngineConfig(cache_tokens=2048)) for model in (plain, held)]
    assert asyncio.run(said(engines[0])) == asyncio.run(said(engines[1]))
    assert root_of(export_bits(held)) == root_of(export_bits(random_decoder(4, shape, 4)))
    for engine in engines:
        engine.close()


def test_the_delta_of_an_adapter_is_at_most_a_hundredth_of_the_model(tmp_path):
    """By its ranks: of matrices of 256 by 256 an adapter of rank 1 is 1/128, and others have none. Manifests count."""
    trainer = trainer_of(WIDE, {"attention": 1})
    store = open_store(tmp_path / "store")
    publisher = BackgroundPublisher(Publisher(store))
    engine, updates = engine_of(WIDE, store)

    async def play():
        publisher.put(trainer.version, trainer.export)
        publisher.published(trainer.version)
        await updates.load(trainer.version)
        return await steps(trainer, engine, updates, publisher, 3)

    _, results = asyncio.run(play())
    model = sum(each.numel() * 2 for each in trainer.policy.parameters())
    for version, result in enumerate(results, 1):
        manifest = len(store.get(f"versions/{version:08d}/manifest", 1 << 20))
        assert 0 < result.payload_bytes + manifest <= 0.01 * model
        assert result.kind == "delta" and 0 < result.changed_share < 0.01
    before, after = (Subscriber(store).fetch(None, None, Version(at))[0] for at in (2, 3))
    moved = {name for name in after if not np.array_equal(before[name], after[name])}
    assert moved and all(name == ROOT or ".lora_" in name for name in moved)
    publisher.close()
    engine.close()


def test_pins_rollback_and_a_late_reader_are_as_with_any_version(tmp_path):
    trainer, store = trainer_of(GROUPED, LORA), open_store(tmp_path / "store")
    publisher = BackgroundPublisher(Publisher(store, merge_over=(2,)))
    engine, updates = engine_of(GROUPED, store)

    async def play():
        publisher.put(trainer.version, trainer.export)
        publisher.published(trainer.version)
        Pins(publisher.publisher.chain).set(Version(0), "late", "a reader that stays")
        await updates.load(trainer.version)
        first = export_bits(engine.decoder)
        late = engine_of(GROUPED, store)
        await late[1].load(Version(0))
        await steps(trainer, engine, updates, publisher, 4)
        publisher.close()
        await late[1].load(Version(4))
        assert publisher.publisher.counters["published_merged"] > 0
        assert root_of(export_bits(late[0].decoder)) == root_of(export_bits(trainer.policy))
        back = Publisher(store).rollback(Version(0))
        await updates.load()
        assert updates.version == back.version == 5
        assert root_of(export_bits(engine.decoder)) == root_of(first) != root_of(export_bits(trainer.policy))
        late[0].close()

    asyncio.run(play())
    engine.close()


def test_a_resumed_trainer_publishes_the_same_version_again(tmp_path):
    trainer, again, store = trainer_of(GROUPED, LORA), trainer_of(GROUPED, LORA), open_store(tmp_path / "store")
    publisher = BackgroundPublisher(Publisher(store))
    engine, updates = engine_of(GROUPED, store)

    async def play():
        publisher.put(trainer.version, trainer.export)
        publisher.published(trainer.version)
        await updates.load(trainer.version)
        return await steps(trainer, engine, updates, publisher, 2)

    _, results = asyncio.run(play())
    publisher.close()
    again.load_state_dict(trainer.state_dict())
    resumed = BackgroundPublisher(Publisher(store))
    resumed.resume(again.version, published=Version(2))
    resumed.put(again.version, again.export)
    assert resumed.published(again.version).result.kind == "existing"
    assert resumed.published(again.version).result.root == results[-1].root
    resumed.close()
    engine.close()


def test_adapters_that_make_other_matrices_are_not_served(tmp_path):
    trainer, store = trainer_of(GROUPED, LORA), open_store(tmp_path / "store")
    bits = trainer.export()
    one = next(name for name in bits if name.endswith(".lora_b"))
    Publisher(store).publish(Version(0), bits | {one: bits[one] ^ 0x3F80})
    engine, updates = engine_of(GROUPED, store)
    before = root_of(export_bits(engine.decoder))
    with pytest.raises(WeightError, match="do not make the matrices that their trainer had"):
        asyncio.run(updates.load())
    assert (root_of(export_bits(engine.decoder)), updates.version) == (before, None)
    engine.close()
