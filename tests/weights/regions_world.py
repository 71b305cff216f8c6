"""A trainer and three regions, each in a network of its own, as one program that prints what became of them.

The trainer's network holds the store, a real S3 server. Each region has a relay and two engines that sample all the
time; everything they read comes over the region's link. Run it in a network namespace: it fills it. Processes are
forked before anything is computed, so that all of them share one import of torch.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import secrets
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import uvicorn
import wide_links
from s3_server import S3Server
from wide_links import Link

from etude.engine.config import EngineConfig
from etude.engine.torch_engine import TorchEngine
from etude.engine.updates import WeightUpdates
from etude.harness.sampler import SampleRequest
from etude.models.attention import PackedAttention
from etude.models.config import ModelConfig
from etude.models.decoder import Decoder
from etude.models.state import export_bits, round_to_bf16
from etude.records import Version
from etude.weights.manifest import Bits, root_of
from etude.weights.opening import open_store
from etude.weights.publisher import Publisher, PublisherConfig
from etude.weights.relay import Relay, RelayConfig, application
from etude.weights.relayed import RelayedStore
from etude.weights.shards import Shard
from etude.weights.slices import cut
from etude.weights.store import Patience, StoreConfig
from etude.weights.subscriber import Subscriber, SubscriberConfig

LINKS = (
    Link("near", 4e6, 0.005, 0.0, 1),
    Link("far", 1e6, 0.040, 0.01, 2),
    Link("thin", 2e5, 0.080, 0.02, 3),
)
CUT, CUT_AT, MENDED_AT = "thin", 4, 9
"""From before the one version until before the other, that region's link is down."""
VERSIONS, EVERY_S, RANKS = 13, 0.8, 2
SHAPE = ModelConfig(
    vocab_size=512, width=64, layers=2, heads=4, head_width=16, experts=4, expert_width=64, max_context=256
)
GRIDS = {"*experts*": (4,)}
TOKEN = "a token of many characters"
BLOCK = 1 << 15
FORK = multiprocessing.get_context("fork")


def decoder() -> Decoder:
    made = Decoder(SHAPE)
    made.initialise(0)
    round_to_bf16(made)
    return made


# --- a region ---------------------------------------------------------------------------------------------------------


def region(link: Link, directory: Path, told: Connection) -> None:
    """A process in a network of its own: says when it is there, begins when it is told where the store is, says when it
    serves a version from there, goes on until it has the last one that it is told of, and answers with its report.
    """
    wide_links.new_namespace()
    told.send("there")
    options: dict[str, str] = told.recv()
    torch.set_num_threads(1)
    told.send(asyncio.run(_serve_region(link, directory, options, told)))


async def _serve_region(link: Link, directory: Path, options: dict[str, str], told: Connection) -> dict[str, Any]:
    directory.mkdir()
    token = directory / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    wide = {"block_bytes": BLOCK, "options": options}
    relay_config = RelayConfig(token_file=token, directory=directory / "kept", store=StoreConfig(**wide))
    patience = Patience(4.0, 2.0)
    relay = Relay(open_store("s3://bucket/run", relay_config.store, patience), relay_config)
    server = uvicorn.Server(
        uvicorn.Config(application(relay, relay_config, TOKEN), port=0, lifespan="off", log_config=None)
    )
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        await asyncio.sleep(0.01)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    settings = StoreConfig(**wide, relay=url, token_file=token)
    stores = [open_store("s3://bucket/run", settings, patience) for _ in range(2)]
    engines = [TorchEngine(decoder(), EngineConfig(cache_tokens=4096)) for _ in stores]
    updates = [
        WeightUpdates(engine, Subscriber(store, SubscriberConfig()), link.name)
        for engine, store in zip(engines, stores, strict=True)
    ]
    following = [asyncio.create_task(each.follow(0.2)) for each in updates]
    sampled: list[list[int]] = [[] for _ in engines]
    sampling = [
        asyncio.create_task(_sample(engine, versions)) for engine, versions in zip(engines, sampled, strict=True)
    ]
    while any(each.version is None for each in updates):
        await asyncio.sleep(0.05)
    told.send("serving")
    last = await asyncio.to_thread(told.recv)
    while any(each.version != last for each in updates):
        await asyncio.sleep(0.05)
    for task in (*sampling, *following):
        task.cancel()
    await asyncio.gather(*sampling, *following, return_exceptions=True)
    report = {
        "roots": [each.root for each in updates],
        "served_roots": [root_of(cut(export_bits(engine.decoder), GRIDS)) for engine in engines],
        "lag": [each.lag.figures() for each in updates],
        "metrics": _metrics(updates[0]),
        "in_order": [versions == sorted(versions) for versions in sampled],
        "versions_sampled": [len(set(versions)) for versions in sampled],
        "tokens": [len(versions) for versions in sampled],
        "in_flight_swaps": [engine.stats()["in_flight_swaps"] for engine in engines],
        "relay": relay.figures(),
        "reads": [dict(store.counters) for store in stores if isinstance(store, RelayedStore)],
    }
    for engine in engines:
        engine.close()
    server.should_exit = True
    return report


async def _sample(engine: TorchEngine, versions: list[int]) -> None:
    """One completion after the other; which weights sampled each token."""
    while True:
        asked = SampleRequest("", tuple(range(3, 20)), max_tokens=48, stop_ids=frozenset(), seed=len(versions))
        versions += (await engine.sample(asked)).versions
        await asyncio.sleep(0.05)


def _metrics(updates: WeightUpdates) -> str:
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(updates.lag)
    return generate_latest(registry).decode()


# --- the trainer ------------------------------------------------------------------------------------------------------


class Trainer:
    """Optimizer steps on random text, and as many publishing ranks as there are."""

    def __init__(self, s3: S3Server) -> None:
        self.policy, self.masters = decoder(), decoder()
        self._optimizer = torch.optim.AdamW(self.masters.parameters(), lr=1e-4)
        self._threads = ThreadPoolExecutor(RANKS)
        attempt, names = secrets.token_hex(16), sorted(self._bits())
        self.publishers = [
            Publisher(
                s3.store(deadline_s=60, request_timeout_s=30),
                PublisherConfig(merge="always"),
                shard=Shard(rank, RANKS, attempt, frozenset(names[rank::RANKS])),
                merge_over=(4,),
            )
            for rank in range(RANKS)
        ]

    def step(self) -> None:
        ids = torch.randint(0, SHAPE.vocab_size, (64,), generator=torch.Generator().manual_seed(1))
        hidden = self.policy(ids, torch.arange(64), PackedAttention([64])).hidden_ND
        torch.nn.functional.cross_entropy(self.policy.logits(hidden[:-1]), ids[1:]).backward()
        for master, parameter in zip(self.masters.parameters(), self.policy.parameters(), strict=True):
            master.grad, parameter.grad = parameter.grad, None
        self._optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(self.masters.parameters(), self.policy.parameters(), strict=True):
                parameter.copy_(master.to(torch.bfloat16))

    def publish(self, version: int) -> str:
        """The version in the store, from all ranks; returns its root."""
        bits = self._bits()

        def rank(publisher: Publisher, names: frozenset[str]) -> None:
            publisher.publish(Version(version), {name: bits[name] for name in names})

        names = sorted(bits)
        shares = [frozenset(names[at::RANKS]) for at in range(RANKS)]
        list(self._threads.map(rank, self.publishers, shares))
        return root_of(bits)

    def _bits(self) -> Bits:
        return cut(export_bits(self.policy), GRIDS)


def main(directory: Path) -> None:
    began = time.monotonic()
    wide_links.new_namespace()
    regions: dict[Link, tuple[Any, Connection]] = {}
    for link in LINKS:
        here, there = FORK.Pipe()
        process = FORK.Process(target=region, args=(link, directory / link.name, there), daemon=True)
        process.start()
        assert here.recv() == "there"
        regions[link] = process, here
    ends = {link: wide_links.lay(link, process.pid) for link, (process, _) in regions.items()}
    wires, theirs = FORK.Pipe()
    carrier = FORK.Process(target=wide_links.carry, args=(ends, theirs), daemon=True)
    carrier.start()

    torch.set_num_threads(1)
    s3 = S3Server("0.0.0.0")
    trainer = Trainer(s3)
    roots = [trainer.publish(0)]
    for link, (_, pipe) in regions.items():
        pipe.send(s3.options | {"endpoint": f"http://{link.hub}:{s3.port}"})
    for _, pipe in regions.values():
        assert pipe.recv() == "serving"
    cut_at = cut_s = 0.0
    for version in range(1, VERSIONS):
        if version == CUT_AT:
            wires.send(("cut", CUT))
            cut_at = time.monotonic()
        if version == MENDED_AT:
            cut_s = time.monotonic() - cut_at
            wires.send(("mend", CUT))
        trainer.step()
        roots.append(trainer.publish(version))
        time.sleep(EVERY_S)
    reports = {}
    for _, pipe in regions.values():
        pipe.send(VERSIONS - 1)
    for link, (process, pipe) in regions.items():
        reports[link.name] = pipe.recv()
        process.join(30)
    wires.send(("stop",))
    carried = wires.recv()
    sizes = s3.store().list("versions/")
    packs = sum(size for key, size in sizes.items() if key.endswith(".pack"))
    world = {
        "roots": roots, "regions": reports, "carried": carried, "cut_s": cut_s,
        "pack_bytes": packs, "objects": len(sizes), "seconds": time.monotonic() - began,
    }  # fmt: skip
    print(json.dumps(world))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
