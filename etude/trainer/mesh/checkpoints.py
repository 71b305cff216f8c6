"""What a mesh's ranks save of a trainer, each its own rows, and how another mesh takes it up.

Owns the directory of shards beside a trainer's checkpoint file (`trainer.checkpoint`), in the format of
torch.distributed.checkpoint: tensors by name, whole shapes, whichever ranks hold them. So a run that four ranks saved
goes on with two or one, with the same bits. Shards are written first, into a directory of a name that was never used
before, and synced; a checkpoint is there when the file that names them is, which rank 0 writes last and at once, with
the controller's state in it. A rank that is killed before leaves a directory that nobody names; the next save removes
it. The file has the hashes of the shards: one that is torn or changed is refused by its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from blake3 import blake3
from torch import Tensor
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from etude.errors import CheckpointError, RankLost
from etude.trainer.mesh.described import DESCRIPTION, Shards
from etude.trainer.optimizers import Muon, OptimizerSet

if TYPE_CHECKING:
    from etude.trainer.mesh.trained import ShardedTrained

_MASTER, _MOMENT = "masters.{}", "moments.{}.{}"
_SCALAR = "step"
"""AdamW's count of a parameter's steps: the one moment that is no tensor of its shape."""
_OF_MUON, _OF_ADAMW = {"momentum"}, {_SCALAR, "exp_avg", "exp_avg_sq"}


Rows = Mapping[str, Tensor]
"""What a rank holds, by the names of what is trained."""


def write_shards(
    directory: Path, trained: ShardedTrained, masters: Rows, moments: Mapping[str, Rows]
) -> dict[str, str]:
    """Write copies of this rank's rows; returns the hashes of all ranks' files by their names. All ranks make the same
    call, each in a thread beside its steps: so they talk in a group that nothing else talks in.
    """
    group = trained.sharded.layout.beside
    state = {_MASTER.format(name): trained.spread(name, master) for name, master in masters.items()}
    for name, of_one in moments.items():
        for key, value in of_one.items():
            spread = value if key == _SCALAR else trained.spread(name, value)
            state[_MOMENT.format(name, key)] = spread
    try:
        dcp.save(state, storage_writer=FileSystemWriter(directory, sync_files=True), process_group=group)
        # each its own files: of another machine's, a directory that is shared may not tell for a while
        own = directory.glob(f"__{dist.get_rank()}_*")
        return _hashes(group, [*own, *([directory / DESCRIPTION] if dist.get_rank() == 0 else [])])
    except CheckpointException as error:  # raised on all ranks, whichever could not write
        whose = "; ".join(f"rank {rank}: {fault[0]}" for rank, fault in sorted(error.failures.items()))
        raise CheckpointError(
            f"{directory}: cannot be written ({whose}); the older checkpoints are whole: make room and go on with "
            "--resume"
        ) from error
    except RuntimeError as error:  # what an exchange raises when another rank is gone
        raise RankLost(f"{directory}: a rank ended while it was written; the older checkpoints are whole") from error


def read_shards(shards: Shards, trained: ShardedTrained, optimizer: OptimizerSet) -> None:
    """Take this rank's rows. Raises CheckpointError for shards that are not what was saved, or of other tensors than
    are trained.
    """
    directory, hashes = shards.directory, shards.hashes
    own = [directory / name for name in sorted(hashes)[dist.get_rank() :: dist.get_world_size()]]
    found = _hashes(trained.sharded.layout.beside, [path for path in own if path.is_file()])
    if wrong := sorted(name for name, each in hashes.items() if found.get(name) != each):
        raise CheckpointError(
            f"{directory / wrong[0]}: missing, torn or changed since it was saved; {shards.without()}"
        )
    saved = shards.tensors()
    shapes = {name: _MASTER.format(name) for name in trained.trained}
    of_masters = {key for key in saved if key.startswith(_MASTER.format(""))}
    if differing := sorted(of_masters ^ set(shapes.values())):
        raise CheckpointError(
            f"{directory}: was saved by a run that trained other tensors ({differing[0]} is in one of both): resume "
            "with the trainer.lora and trainer.frozen that it had"
        )
    masters = {key: trained.spread(name, trained.trained[name].detach()) for name, key in shapes.items()}
    moments = {key: _empty(trained, key, each) for key, each in saved.items() if key not in of_masters}
    for key, each in masters.items():
        if (there := saved[key]).size != each.shape:
            raise CheckpointError(
                f"{directory}: {key} is of {tuple(there.size)} there and of {tuple(each.shape)} here: resume with the "
                "trainer.lora that it had"
            )
    dcp.load(masters | moments, storage_reader=shards)
    _take_moments(trained, optimizer, moments)


def _take_moments(trained: ShardedTrained, optimizer: OptimizerSet, moments: Mapping[str, Tensor]) -> None:
    for name, parameter in trained.trained.items():
        mine = next(each for each in optimizer.optimizers if any(parameter is p for p in _parameters(each)))
        begins = _MOMENT.format(name, "")
        found = {
            key.removeprefix(begins): value if key.endswith("." + _SCALAR) else trained.here(value)
            for key, value in moments.items()
            if key.startswith(begins) and "." not in key.removeprefix(begins)
        }
        if found and found.keys() != (_OF_MUON if isinstance(mine, Muon) else _OF_ADAMW):
            raise CheckpointError(
                f"the checkpoint has {', '.join(sorted(found))} of {name}, which another optimizer keeps: resume with "
                "the trainer.optimizer that it had"
            )
        mine.state[parameter] = found


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def moments_of(trained: ShardedTrained, optimizer: OptimizerSet) -> dict[str, dict[str, Tensor]]:
    """What an optimizer keeps of what is trained, by its names."""
    states = {id(parameter): each.state[parameter] for each in optimizer.optimizers for parameter in each.state}
    return {name: states[id(parameter)] for name, parameter in trained.trained.items() if id(parameter) in states}


def _empty(trained: ShardedTrained, key: str, saved: TensorStorageMetadata) -> Tensor:
    """Room for a moment."""
    name, _, moment = key.removeprefix(_MOMENT.partition("{")[0]).rpartition(".")
    dtype = saved.properties.dtype
    if moment == _SCALAR:
        return torch.empty(saved.size, dtype=dtype)
    return trained.spread(name, torch.empty_like(trained.trained[name].detach(), dtype=dtype))


def _hashes(group: Any, paths: Iterable[Path]) -> dict[str, str]:
    """Of all ranks' files, by their names. Each rank reads those that it gives."""
    own = {path.name: blake3().update_mmap(path).hexdigest() for path in paths}
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, own, group)
    return {name: each for table in told for name, each in table.items()}
