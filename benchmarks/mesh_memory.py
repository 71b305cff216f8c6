"""What a process holds of a large model, and takes to publish it, as RSS: each in a process that has done nothing else.

A process that has worked before has memory that it has freed and not given back, and what comes next lies in there
unseen. So ranks are started for a measurement and end with it.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import scale
import torch.distributed as dist
from mesh_parts import mesh_trainer
from mesh_world import World

from etude.models.config import ModelConfig
from etude.models.heap import give_back_large_arrays
from etude.models.size import parameters_of
from etude.records import Version
from etude.trainer.ranks import Setup
from etude.trainer.step import Trainer
from etude.weights.background import BackgroundPublisher
from etude.weights.publisher import PublisherConfig
from etude.weights.store import StoreConfig

LARGE = ModelConfig(
    vocab_size=4096, width=640, layers=12, heads=10, kv_heads=2, head_width=64, experts=8, expert_width=1024
)
"""200 million parameters."""
MIB = 2**20
STATE_BYTES = 20
"""Of a parameter, in fp32: the policy's, its master, its gradient, and two moments."""


class Grown(NamedTuple):
    """MiB by which a process's RSS grew."""

    held: float
    """When all of a step is there: weights, masters, gradients and moments."""
    most: float
    """At the most, on the way."""


class Published(NamedTuple):
    """MiB of what one rank publishes."""

    version: float
    """The version's arrays that this rank publishes."""
    kept: float
    """All arrays that its publisher holds afterwards."""
    first: float
    """What the RSS grew by at the most beside kept arrays, from before the copy of the second version was made until it
    was in the store: the first delta of a process."""
    later: float
    """The same of the third version."""


def shape(layers: int) -> ModelConfig:
    return LARGE.model_copy(update={"layers": layers})


def least(ranks: int, layers: int) -> float:
    """MiB that a rank cannot do without."""
    return STATE_BYTES * parameters_of(shape(layers)) / ranks / MIB


def held(layers: int) -> dict[str, float]:
    """What a rank of four holds of what one process does, and at the most; and takes to publish."""
    with TemporaryDirectory(prefix="etude-scale-") as store:
        four, published = zip(*_fresh(4, "of_rank", layers, store), strict=True)
    (one,) = _fresh(1, "of_one", layers)
    for ranks, each in [(1, one), *((4, each) for each in four)]:
        assert each.held >= least(ranks, layers), f"{each.held:.0f} MiB is less than {least(ranks, layers):.0f}"
    rank = Grown(*(max(each[at] for each in four) for at in range(2)))
    size, kept, first, later = (max(each[at] for each in published) for at in range(4))
    for name, ranks, each in (("one process", 1, one), ("a rank of four", 4, rank)):
        print(f"{name} held {each.held:,.0f} MiB of at least {least(ranks, layers):,.0f}, and {each.most:,.0f} at most")
    print(f"publishing: {size:,.1f} MiB of a version, {kept:,.1f} kept; beside these {first:,.1f} for the first delta,")
    print(f"with which the compiled coders are read, and {later:,.1f} for the next")
    return {
        "rss_share_4": round(rank.held / one.held, 3), "rss_peak_share_4": round(rank.most / one.most, 3),
        "publish_arrays_mb": round(kept, 1), "publish_extra_mb": round(later, 1),
        "publish_first_extra_mb": round(first, 1),
    }  # fmt: skip


def _fresh(ranks: int, case: str, *given: object) -> list:
    """What newly started ranks say."""
    world = World(ranks, "mesh_memory")
    try:
        return world.run(ranks, case, *given)
    finally:
        world.close()


# --- in a rank --------------------------------------------------------------------------------------------------------


def of_one(layers: int) -> Grown:
    """One process without a mesh, with the same kernels."""
    before = _now()
    decoder = scale.Decoder(shape(layers))
    give_back_large_arrays(decoder)  # as whoever loads a model does
    decoder.initialise(0)
    return _grown(scale.trainer_for(decoder, "torch", copied=False, optimizer=scale.ADAMW, piece_tokens=16), before)


def of_rank(layers: int, store: str) -> tuple[Grown, Published]:
    """One of four."""
    before = _now()
    trainer = mesh_trainer(shape(layers), {"fsdp": 2, "ep": 2}, piece_tokens=16)
    return _grown(trainer, before), _published(trainer, store)


def _grown(trainer: Trainer, before: float) -> Grown:
    held: list[float] = []
    forget = trainer.optimizer.zero_grad

    def measured() -> None:
        held.append(_status("VmRSS") - before)
        forget()

    trainer.optimizer.zero_grad = measured  # gradients, masters and moments are all there
    for _ in range(2):
        _step(trainer)
    return Grown(held[-1], _status("VmHWM") - before)


def _published(trainer: Trainer, store: str) -> Published:
    """Of a publisher as a run has it, with its thread and a store of files. What a step frees goes back before."""
    setup = Setup(
        Path(), "plain", trainer.config, 1.0, store, StoreConfig(), PublisherConfig(), rank=dist.get_rank(),
        attempt="0" * 32,
    )  # fmt: skip
    names, publishing = setup.publishing(trainer.trained)

    def publish(version: int) -> int:
        copies = []
        publishing.put(Version(version), lambda into: copies.append(trainer.trained.export(into, names)) or copies[0])
        publishing.published(Version(version))
        return sum(array.nbytes for array in copies[0].values())

    def beside(version: int) -> float:
        """MiB that publishing one more takes at the most, without the arrays that are kept from then on."""
        _step(trainer)
        dist.barrier()
        kept, before = kept_bytes(publishing), _now()
        publish(version)
        grown = _status("VmHWM") - before
        dist.barrier()
        return grown - (kept_bytes(publishing) - kept) / MIB

    size = publish(1)
    first, later = beside(2), beside(3)
    publishing.close()
    return Published(size / MIB, kept_bytes(publishing) / MIB, first, later)


def kept_bytes(publishing: BackgroundPublisher) -> int:
    """Of all arrays that a publisher holds, each once."""
    publisher = publishing.publisher
    merged = [merge.base.bits for merge in publisher._merges.values()]
    held = [publisher._held.bits] if publisher._held is not None else []
    sets = [*held, *merged, publisher._spare, *publishing._spare]
    return sum({id(array): array.nbytes for bits in sets if bits is not None for array in bits.values()}.values())


def _step(trainer: Trainer) -> None:
    trainer.step(scale.batch_for(trainer.policy.config.model_copy(update={"max_context": 32}), 64))


def _now() -> float:
    """RSS in MiB, once what is free has gone back. From here on the peak is counted anew."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(field: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024
