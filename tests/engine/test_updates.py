"""An engine that follows a store: in slices or whole, forwards, and after its trainer went back."""

import asyncio

import pytest
from small_models import random_decoder

from etude.engine.config import EngineConfig
from etude.engine.torch_engine import TorchEngine
from etude.engine.updates import WeightUpdates
from etude.errors import WeightError
from etude.models.state import export_bits
from etude.records import Version
from etude.weights.opening import open_store
from etude.weights.publisher import Publisher
from etude.weights.slices import cut
from etude.weights.subscriber import Subscriber

BITS = [export_bits(random_decoder(seed)) for seed in range(5)]
V = Version


def following(directory, region=""):
    engine = TorchEngine(random_decoder(9), EngineConfig(cache_tokens=1024))
    return engine, WeightUpdates(engine, Subscriber(open_store(directory)), region)


def serves(engine, bits):
    held = export_bits(engine.decoder)
    return held.keys() == bits.keys() and all((held[name] == bits[name]).all() for name in bits)


@pytest.mark.parametrize("grids", [{}, {"*experts*": (2, 1, 2), "embed*": (1, 4)}])
def test_it_serves_what_was_published(tmp_path, grids):
    publisher = Publisher(open_store(tmp_path))
    engine, updates = following(tmp_path, "north")
    for version, bits in enumerate(BITS[:3]):
        published = publisher.publish(V(version), cut(bits, grids))
        asyncio.run(updates.load())
        assert (updates.version, updates.root) == (version, published.root)
        assert serves(engine, bits)
    assert asyncio.run(updates.load(V(1))) is None  # never backwards
    lag = updates.lag.figures()
    assert (lag["region"], lag["version"], lag["loads"], lag["load_failures"]) == ("north", 2, 3, 0)
    assert lag["longest_stale_seconds"] >= lag["stale_seconds"] > lag["lag_seconds"] > 0
    engine.close()


def test_following_goes_on_after_failures_and_after_the_trainer_went_back(tmp_path):
    publisher = Publisher(open_store(tmp_path))
    engine, updates = following(tmp_path)

    async def until(version):
        async with asyncio.timeout(60):
            while updates.version != version:
                await asyncio.sleep(0.01)

    async def play():
        task = asyncio.create_task(updates.follow(0.01))
        async with asyncio.timeout(60):
            while updates.lag.figures()["load_failures"] < 2:  # nothing is published there
                await asyncio.sleep(0.01)
        for version in range(3):
            publisher.publish(V(version), BITS[version])
        await until(2)
        publisher.rewind(V(1))
        publisher.publish(V(2), BITS[3])
        publisher.publish(V(3), BITS[4])
        await until(3)
        task.cancel()

    asyncio.run(play())
    assert serves(engine, BITS[4])
    assert updates.lag.trouble is None
    with pytest.raises(WeightError, match="version 7 is not whole"):
        asyncio.run(updates.load(V(7)))
    assert "version 7" in updates.lag.trouble
    engine.close()
