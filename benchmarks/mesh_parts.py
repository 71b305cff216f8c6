"""What ranks do for `scale.py`: a step of a mesh beside one process, memory, and its own side of the race.

The rivals of the race are in `mesh_peers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import scale
import torch
import torch.distributed as dist
from mesh_peers import cpu_of
from mesh_peers import cpu_of_plain as cpu_of_plain  # cases of ours, too
from mesh_peers import cpu_of_titan as cpu_of_titan
from torch import Tensor

from etude.models.config import ModelConfig
from etude.trainer import checkpoint
from etude.trainer.config import TrainerConfig
from etude.trainer.losses import shares_of
from etude.trainer.mesh.layout import Layout
from etude.trainer.mesh.sharding import Sharded, from_decoder
from etude.trainer.mesh.together import Mesh
from etude.trainer.packing import split
from etude.trainer.saving import Saving
from etude.trainer.step import Trainer


def mesh_trainer(config: ModelConfig, axes: Mapping[str, int], base: Any = None, **settings: Any) -> Trainer:
    """With the weights of a decoder, else with ones that no two ranks draw alike."""
    chosen = TrainerConfig(**({"parity_tokens": 0, "ranks": axes, "optimizer": scale.ADAMW} | settings))
    layout = Layout(axes)
    sharded = Sharded(config, layout, torch.device("cpu"), chosen.format)
    sharded.fill(from_decoder(base) if base is not None else _drawn(sharded))
    return Trainer(sharded.policy, chosen, ranks=Mesh(layout, sharded, chosen))


def _drawn(sharded: Sharded) -> Any:
    def source(name: str, rows: Any) -> Tensor:
        *_, last = sharded.shapes.get(name, (1,))
        shape = (rows.length, *sharded.shapes[name][1:]) if name in sharded.shapes else (rows.length,)
        return torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * last**-0.5

    return source


def errors_and_syncs(shape: str, axes: Mapping[str, int], tokens: int) -> tuple[float, int]:
    """The largest relative error of a gradient, put together from all ranks, and how often a step looked at a value."""
    config = scale.SHAPES[shape]
    base = scale.base_for(config)
    batch = scale.batch_for(config.model_copy(update={"max_context": tokens // 8}), tokens)  # rollouts to compare
    trainer = mesh_trainer(config, axes, base, piece_tokens=tokens // 4)
    shares = torch.from_numpy(shares_of(batch, trainer.config.loss))
    pieces = [piece for piece in split(batch, tokens // 4) if piece.loss_mask.any()]
    loss = sum(float(each.sums["loss"]) for each in trainer.forward_backward(pieces, shares))
    trainer.trained.take_gradients()
    own = {name: each.grad for name, each in trainer.trained.trained.items() if each.grad is not None}
    rows = {name: tuple(trainer.trained.sharded.rows(name)) for name in own}
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, (rows, own))
    trainer.optimizer.zero_grad()
    error = 0.0
    if dist.get_rank() == 0:
        wanted = scale.gradients(scale.trainer_for(base, "torch", piece_tokens=tokens // 4), batch, pieces)
        found = {name: torch.empty_like(wanted[name]) for name in own} | {"loss": torch.as_tensor(loss)}
        for theirs, parts in told:
            for name, part in parts.items():
                found[name][slice(*theirs[name])] = part
        error = scale.largest_error(found, wanted)
        assert min(float(each.norm()) for each in wanted.values()) > 0, "something is learnt"
    return error, scale.syncs(trainer, batch).total()


def cpu_of_mesh(steps: int) -> float:
    """CPU seconds of steps by a mesh of FSDP alone."""
    config = scale.SHAPES["experts"]
    trainer = mesh_trainer(
        config, {"fsdp": dist.get_world_size()}, piece_tokens=scale.ROW * scale.ROWS // dist.get_world_size()
    )
    batch = scale.batch_of_rows(config, scale.ROWS, scale.ROW)
    return cpu_of(lambda: trainer.step(batch), steps)


def cpu_of_step(config: ModelConfig, axes: Mapping[str, int], piece_tokens: int, steps: int) -> float:
    """CPU seconds of a step in which each rank has one piece: the least of some, as what else runs only adds to it."""
    trainer = mesh_trainer(config, axes, piece_tokens=piece_tokens)
    rows = trainer.ranks.layout.sizes.data * piece_tokens // config.max_context
    batch = scale.batch_of_rows(config, rows, config.max_context)
    return min(cpu_of(lambda: trainer.step(batch), 1) for _ in range(steps))


def resumed(axes: Mapping[str, int], directory: Path) -> list[bool]:
    """Whether a trainer that goes on from each checkpoint of another ends with the same bits, weights and moments."""
    config, ends = scale.SHAPES["experts"], {}
    batch = scale.batch_of_rows(config, scale.ROWS, scale.ROW)
    first = mesh_trainer(config, axes, scale.base_for(config))
    saving = Saving(first)
    for version in (1, 2, 3):
        first.step(batch)
        ends[version] = _held(first)
        _begin_to_save(saving, directory)
    saving.wait()
    dist.barrier()
    same = []
    for version in (1, 2):
        other = mesh_trainer(config, axes, scale.base_for(config))
        other.load_state_dict(checkpoint.load(directory / f"step-{version:08d}.ckpt")["trainer"], directory)
        for _ in range(3 - version):
            other.step(batch)
        same += [torch.equal(one, two) for one, two in zip(_held(other), ends[3], strict=True)]
    return same


def _begin_to_save(saving: Saving, directory: Path) -> None:
    version, shards = saving.trainer.version, [checkpoint.shards_path(directory, saving.trainer.version)]
    dist.broadcast_object_list(shards, 0)

    def finish(state: dict[str, Any]) -> None:
        if dist.get_rank() == 0:
            checkpoint.save(directory, version, {"trainer": state}, keep=3, shards=shards[0])

    saving.put(shards[0], finish)


def _held(trainer: Trainer) -> list[Tensor]:
    masters = trainer.trained.trained.values()
    states = [each.state.get(master, {}) for each in trainer.optimizer.optimizers for master in masters]
    moments = [state[name] for state in states for name in sorted(state)]  # a state that was loaded has another order
    return [each.detach().clone() for each in (*masters, *moments)]
