"""A rank's step without values: the model cut as a run cuts it, a piece of the size that a run has, and what both cost.

Owns `rehearse`: the trainer of a recipe's config, for a model of any shape, as the first of its ranks would have it.
Its ranks are torch's fake process group, whose exchanges bring nothing, and its tensors FakeTensorMode's, which take no
memory: so a computer of any size plays what a cluster would do. Nothing is computed by a formula of its own where the
trainer's own code can be asked: it is cut by `Sharded`, works through a piece by `Trainer.forward_backward`, and takes
the optimizer's step; `counting` looks on. Experts are taken to be chosen evenly. Knows nothing of hardware.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.testing._internal.distributed.fake_pg import FakeStore

from etude.kernels.torch_kernels import TORCH
from etude.models.config import ModelConfig
from etude.models.decoder import Decoder
from etude.models.experts import MixtureOfExperts
from etude.models.rope import forget_tables
from etude.records import Batch, Version
from etude.trainer.config import TrainerConfig
from etude.trainer.losses import shares_of
from etude.trainer.mesh.counting import GRADIENTS, Counting, Work
from etude.trainer.mesh.experts import ExpertParallel
from etude.trainer.mesh.layout import Layout
from etude.trainer.mesh.sharding import Sharded
from etude.trainer.mesh.sizes import Sizes
from etude.trainer.mesh.together import Mesh
from etude.trainer.mesh.trained import ShardedTrained
from etude.trainer.ranks import tensors_of_ranks
from etude.trainer.step import PARITY_VERSIONS, Trainer
from etude.weights.publisher import KEPT_SETS

HOST = torch.device("cpu")
MOMENTS_THERE, CHECKPOINT, VERSIONS = "moments on the host", "a checkpoint's copy", "published versions"


@dataclass(frozen=True)
class Rehearsal:
    """What the first rank, which has the most rows, holds and does. Bytes are by kind."""

    tokens: int
    """Of a piece."""
    pieces_at_once: int
    """By all ranks together."""
    held: Mapping[str, int]
    """Between two steps."""
    in_pieces: Mapping[str, int]
    """When most is held while a piece is worked on."""
    most: Mapping[str, int]
    """Of each kind while a piece is worked on, whenever it has most."""
    in_optimizer: Mapping[str, int]
    """When most is held while the optimizer steps."""
    piece: Work
    optimizer: Work
    version_bytes: int
    """What moves between two versions, in bf16 and before it is encoded."""
    version_sent: int
    """Of it, what this rank sends to the others that publish: its rows, but for those it publishes itself."""
    version_received: int
    """What comes to the rank to which most does: an array is never cut, so one stack of experts may be most of it."""
    on_host: Mapping[str, int]
    """What is in the memory of the host, whatever the device is: all the time, while a checkpoint is written, and of
    versions when the publisher has as many as it may. Of the rank that has most.
    """
    published: tuple[int, ...]
    """Of that, the published versions, by rank."""

    def on_computers(self, together: int) -> int:
        """What is in the host's memory of the computer that has most, where each has so many ranks."""
        alike = sum(self.on_host.values()) - self.on_host.get(VERSIONS, 0)
        ranks = len(self.published)
        computers = [range(first, min(first + together, ranks)) for first in range(0, ranks, together)]
        return max(sum(alike + self.published[rank] for rank in each) for each in computers)

    @property
    def over_the_bus(self) -> int:
        """Bytes that a step brings from the host and puts back."""
        return 2 * self.on_host.get(MOMENTS_THERE, 0)

    @property
    def fullest(self) -> Mapping[str, int]:
        """When most is held at all."""
        return max(self.in_pieces, self.in_optimizer, key=lambda kinds: sum(kinds.values()))


def rehearse(config: TrainerConfig, model: ModelConfig) -> Rehearsal:
    """Raises ConfigError where the model cannot be cut as the config says."""
    with _counted(config, model) as (trainer, counting):
        return _played(trainer, config, counting)


def state_of(config: TrainerConfig, model: ModelConfig) -> dict[str, int]:
    """What is held between two steps alone, by kind: no piece is played."""
    with _counted(config, model) as (_, counting):
        return dict(counting.held)


def kept_of(config: TrainerConfig, model: ModelConfig) -> int:
    """Bytes of the rank that has most, between two steps, on device and host together: no piece is played."""
    with _counted(config, model) as (trainer, counting):
        held = dict(counting.held)
        on_host, _ = _on_host(trainer, config, held)
        return sum(_some(held).values()) + sum(on_host.values())


@contextmanager
def _counted(config: TrainerConfig, model: ModelConfig) -> Generator[tuple[Trainer, Counting]]:
    """A trainer that has made a step, so that it has moments, and what counts from here on."""
    if config.mesh is not None:
        Sizes.of(config.mesh).require(model)
    with _ranks(config.processes):
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        trainer, ep_ranks = _trainer(config, model, mode)
        routes = len(model.moe_layers), model.experts_per_token
        with mode, Counting(ep_ranks, model.vocab_size, routes) as counting:
            _name_what_is_held(trainer, counting)
            yield trainer, counting


@contextmanager
def _ranks(count: int) -> Generator[None]:
    """This process as the first of so many, of which there is no other."""
    dist.init_process_group("fake", rank=0, world_size=count, store=FakeStore())
    forget_tables()
    try:
        yield
    finally:
        forget_tables()
        dist.destroy_process_group()


def _trainer(config: TrainerConfig, model: ModelConfig, mode: FakeTensorMode) -> tuple[Trainer, tuple[int, ...]]:
    """And the ranks that have the other experts."""
    if config.mesh is None:
        with mode, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # torch does, to copy a model
            decoder = Decoder(model)
            decoder.compute_with(TORCH)
            return Trainer(decoder, config), ()
    layout = Layout(config.mesh)
    sharded = _without_values(mode)(model, layout, HOST, config.format)
    with mode:
        trainer = Trainer(sharded.policy, config, ranks=Mesh(layout, sharded, config))
    ep = layout.sizes.ep
    return trainer, tuple(dist.get_process_group_ranks(layout.group("ep"))) if ep > 1 else ()


def _without_values(mode: FakeTensorMode) -> type[Sharded]:
    """Models that are cut as ever, and whose rows are then in no memory."""

    class WithoutValues(Sharded):
        def __init__(self, *made_with: Any) -> None:
            with unset_fake_temporarily():
                super().__init__(*made_with)
            for module in self.policy.modules():
                if isinstance(module, MixtureOfExperts) and isinstance(module.kernels, ExpertParallel):
                    module.kernels = _Evenly(module.kernels.group)

        def _allocate(self, device: torch.device) -> None:
            with mode:
                super()._allocate(device)

    return WithoutValues


class _Evenly(ExpertParallel):
    """All ranks' experts are chosen as often, for there are no routes to look at."""

    def rows_of_ranks(self, counts_PG: Tensor, coming_PG: Tensor, rows: int) -> tuple[list[int], list[int]]:
        each, more = divmod(rows, self.ranks)
        even = [each + (rank < more) for rank in range(self.ranks)]
        return even, even


def _played(trainer: Trainer, config: TrainerConfig, counting: Counting) -> Rehearsal:
    for leaf in trainer.trained.leaves.values():  # those that FSDP scatters are told by that
        leaf.register_post_accumulate_grad_hook(lambda each: counting.tag(GRADIENTS, [_grad(each)]))
    held = dict(counting.held)
    if config.parity_tokens:
        held["older versions"] = (PARITY_VERSIONS - 1) * held["newest version"]
    batch = _piece(config.piece_tokens, trainer.policy.config, trainer.replays)
    older = {"older versions": held["older versions"]} if config.parity_tokens else {}
    on_host, published = _on_host(trainer, config, held)
    moving = {name: 2 * torch.Size(shape).numel() for name, shape in _moving(trainer).items()}
    others = (config.processes - 1) / config.processes if config.mesh is not None else 0
    counting.begin()
    list(trainer.forward_backward([batch], torch.from_numpy(shares_of(batch, config.loss))))
    piece, in_pieces, most = counting.work, counting.fullest, counting.most
    counting.begin()
    trainer.optimize(1.0)
    return Rehearsal(
        tokens=len(batch.token_ids),
        pieces_at_once=Sizes.of(config.mesh).data if config.mesh is not None else config.processes,
        held=_some(held),
        in_pieces=_some(in_pieces | older),
        most=_some(most | older),
        in_optimizer=_some(counting.fullest | older),
        piece=piece,
        optimizer=counting.work,
        version_bytes=sum(moving.values()),
        version_sent=int(others * 2 * sum(each.numel() for each in trainer.trained.trained.values())),
        version_received=int(others * max(_of_ranks(trainer, config.processes, moving))),
        on_host=on_host,
        published=published,
    )


def _on_host(
    trainer: Trainer, config: TrainerConfig, held: Mapping[str, int]
) -> tuple[dict[str, int], tuple[int, ...]]:
    """What `Rehearsal.on_host` and `Rehearsal.published` say."""
    masters = sum(each.nbytes for each in trainer.trained.trained.values())
    there = held.get(MOMENTS_THERE, 0)
    checkpoint = masters + held.get("moments", 0) + there
    published = _published(trainer, config.processes)
    found = {MOMENTS_THERE: there, CHECKPOINT: checkpoint, VERSIONS: max(published)}
    return {kind: count for kind, count in found.items() if count}, published


def _published(trainer: Trainer, ranks: int) -> tuple[int, ...]:
    """Of the arrays that each rank publishes: those that no step moves are there once."""
    sizes, moving = _sizes(trainer), trainer.trained.trained
    return _of_ranks(
        trainer, ranks, {name: size * (KEPT_SETS if name in moving else 1) for name, size in sizes.items()}
    )


def _of_ranks(trainer: Trainer, ranks: int, count: Mapping[str, int]) -> tuple[int, ...]:
    """How much of something each rank has, for what it publishes."""
    return tuple(sum(count.get(name, 0) for name in names) for names in tensors_of_ranks(_sizes(trainer), ranks))


def _sizes(trainer: Trainer) -> dict[str, int]:
    """Of all that is published."""
    trained = trainer.trained
    if isinstance(trained, ShardedTrained):
        return trained.sizes()
    named = dict(trained.policy.named_parameters()) | trained.factors
    return {name: 2 * each.numel() for name, each in named.items()}


def _name_what_is_held(trainer: Trainer, counting: Counting) -> None:
    """Between two steps: with moments, which the first step makes."""
    trained, here = trainer.trained, trainer.trained.here
    counting.tag("parameters", [here(each) for each in trainer.policy.parameters()])
    counting.tag("parameters", trainer.policy.buffers())
    counting.tag("adapted", trained._base.values())
    counting.tag("masters", (*trained.trained.values(), *trained._rounded.values()))
    if trainer.reference is not None:
        counting.tag("reference", [here(each) for each in trainer.reference.parameters()])
    if trainer.parity_check.newest is not None:
        counting.tag("newest version", trainer.parity_check.newest)
    for master in trained.trained.values():
        master.grad = torch.zeros_like(master)
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
    states = [state for each in trainer.optimizer.optimizers for state in each.state.values()]
    moments = [each for state in states for each in state.values() if isinstance(each, Tensor)]
    counting.tag("moments" if trainer.config.optimizer.keep == "device" else MOMENTS_THERE, moments)


def _some(kinds: Mapping[str, int]) -> dict[str, int]:
    """Of the device."""
    return {kind: count for kind, count in kinds.items() if count > 0 and kind != MOMENTS_THERE}


def _grad(leaf: Tensor) -> Tensor:
    assert leaf.grad is not None
    return leaf.grad


def _moving(trainer: Trainer) -> dict[str, tuple[int, ...]]:
    """The whole shapes of what a step moves."""
    if isinstance(trainer.trained, ShardedTrained):
        return {name: trainer.trained.shapes[name] for name in trainer.trained.trained}
    return {name: tuple(each.shape) for name, each in trainer.trained.trained.items()}


def _piece(tokens: int, model: ModelConfig, replays: bool) -> Batch:
    """Segments as long as the model's context, or the piece if that is less; the second half of each is sampled."""
    place = np.arange(tokens) % min(tokens, model.max_context)
    length = int(place.max()) + 1
    numbers = (np.arange(tokens) // length).astype(np.int32)
    sampled = (place >= length // 2) & (place > 0)
    segments = int(numbers[-1]) + 1
    routes = np.zeros((0, 0, 0), np.uint8)
    if replays:
        chosen = np.arange(model.experts_per_token, dtype=np.uint8 if model.experts <= 256 else np.uint16)
        routes = np.broadcast_to(chosen, (tokens, len(model.moe_layers), len(chosen))).copy()
    return Batch(
        token_ids=np.zeros(tokens, np.int32),
        positions=place.astype(np.int32),
        segment_ids=numbers,
        loss_mask=sampled,
        summary_mask=np.zeros(tokens, bool),
        advantages=sampled.astype(np.float32),
        behaviour_logprobs=np.zeros(tokens, np.float32),
        ages=np.zeros(tokens, np.int32),
        routed_experts=routes,
        routed_mask=np.full(tokens, replays),
        trajectory_of=np.arange(segments, dtype=np.int32),
        group_of=np.zeros(segments, np.int32),
        version=Version(0),
    )
