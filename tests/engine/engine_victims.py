"""An engine in a process of its own that follows a store, and dies by SIGKILL at a chosen point of taking up a version.

It is forked from a server process that has imported everything and touched nothing.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
from itertools import islice
from pathlib import Path

import torch
from small_models import random_decoder

from etude.engine import served
from etude.engine.config import EngineConfig
from etude.engine.torch_engine import TorchEngine
from etude.engine.updates import WeightUpdates
from etude.harness.sampler import SampleRequest
from etude.models.state import export_bits
from etude.records import Version
from etude.weights.manifest import root_of
from etude.weights.opening import open_store
from etude.weights.subscriber import Subscriber, SubscriberConfig

LONGEST_S = 240
POINTS = ("fetched", "half in", "in")


def killed(directory: Path, log: Path, point: str, versions: range) -> bool:
    """Run the engine below; whether it was killed and did not come to an end, or to another one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["engine_victims"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    try:
        process = context.Process(target=follow, args=(directory, log, point, versions), daemon=True)
        process.start()
    finally:
        os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)
    process.join(LONGEST_S)
    return process.exitcode == -signal.SIGKILL


def follow(directory: Path, log: Path, point: str, versions: range) -> None:
    """Takes up one version after the other, and writes down what it serves; dies on the way to the last."""
    torch.set_num_threads(1)
    engine = TorchEngine(random_decoder(9), EngineConfig(cache_tokens=1024))
    updates = WeightUpdates(engine, Subscriber(open_store(directory), SubscriberConfig(lease_s=3600)))
    for version in versions:
        if version == versions[-1]:
            _die_at(point, engine, updates)
        asyncio.run(updates.load(Version(version)))
        said = asyncio.run(engine.sample(SampleRequest(str(version), (3, 4, 5), 6, frozenset(), seed=version)))
        with log.open("a") as lines:
            lines.write(f"{version} {root_of(export_bits(engine.decoder))} {sorted(set(said.versions))}\n")


def _die_at(point: str, engine: TorchEngine, updates: WeightUpdates) -> None:
    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def die_half_way(decoder, bits, *_: object) -> None:
        with torch.no_grad():
            for name, parameter in islice(decoder.named_parameters(), len(bits) // 2):
                parameter.copy_(torch.from_numpy(bits[name]).view(torch.bfloat16))
        die()

    if point == "fetched":
        engine.swap = die
    elif point == "half in":
        served.load_bits = die_half_way
    else:
        updates.lag.version_applied = die
