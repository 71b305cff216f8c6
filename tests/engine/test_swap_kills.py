"""Kill -9 of an engine between fetch and swap, amid the swap and behind it: no mixture is ever served, and the chain,
which the engine only holds a lease on, goes on as if nothing had been.
"""

import asyncio

import pytest
from engine_victims import POINTS, killed
from small_models import random_decoder

from etude.engine.config import EngineConfig
from etude.engine.torch_engine import TorchEngine
from etude.engine.updates import WeightUpdates
from etude.models.state import export_bits
from etude.records import Version
from etude.weights.chain import Chain
from etude.weights.inspect import verify
from etude.weights.manifest import root_of
from etude.weights.opening import open_store
from etude.weights.pins import Pins
from etude.weights.publisher import Publisher, PublisherConfig
from etude.weights.subscriber import Subscriber

BITS = [export_bits(random_decoder(seed)) for seed in range(6)]


@pytest.mark.parametrize("point", POINTS)
def test_an_engine_killed_while_it_takes_up_a_version(point, tmp_path):
    store, log = tmp_path / "store", tmp_path / "log"
    publisher = Publisher(open_store(store), PublisherConfig(merge_over=()))
    for version in range(3):
        publisher.publish(Version(version), BITS[version])
    assert killed(store, log, point, range(1, 3))
    assert log.read_text() == f"1 {root_of(BITS[1])} [1]\n"
    leases = Pins(Chain(open_store(store))).live()
    assert [lease.version for lease in leases] == [2]  # what it was about to serve, or did
    again = Publisher(open_store(store), PublisherConfig(keep=1, merge_over=(), anchor_every=1))
    for version in range(3, 6):
        again.publish(Version(version), BITS[version])
    report = verify(open_store(store))
    assert report.ok, report.problems
    assert Chain(open_store(store)).versions() == [0, 1, 2, 5]  # the dead one's lease holds what leads to its version
    engine = TorchEngine(random_decoder(9), EngineConfig(cache_tokens=1024))
    updates = WeightUpdates(engine, Subscriber(open_store(store)))
    asyncio.run(updates.load())
    assert (updates.version, updates.root) == (5, root_of(BITS[5])) == (5, root_of(export_bits(engine.decoder)))
    engine.close()
