"""A mesh's ranks, from a recipe and a model's files.

Owns the choice of what a mesh computes with, and that each rank reads its own rows. All ranks call it at once, in a
process group of theirs.
"""

from __future__ import annotations

import os
from pathlib import Path

from etude.errors import ConfigError
from etude.kernels.choice import VARIABLE, choose
from etude.models.checkpoint import shape_of
from etude.trainer.config import TrainerConfig
from etude.trainer.mesh.device import DEVICE
from etude.trainer.mesh.layout import Layout
from etude.trainer.mesh.sharding import Sharded, from_checkpoint
from etude.trainer.mesh.sizes import Sizes
from etude.trainer.mesh.together import Mesh


def require_kernels() -> None:
    """Raises ConfigError where this process was told to compute with other operations than torch's."""
    if (told := os.environ.get(VARIABLE, "torch")) != "torch":
        raise ConfigError(
            f"{VARIABLE}={told}: the ranks of a mesh compute with torch's operations, and add up in an "
            "order that depends on the mesh; leave the variable out, or give trainer.ranks a number: ranks that hold "
            "all weights each keep to these kernels and to one order"
        )


def open_mesh(config: TrainerConfig, model: Path) -> Mesh:
    """Of the model at a directory. Raises ConfigError where it cannot be cut as the config says, or where this process
    was told to compute with other operations than torch's.
    """
    assert config.mesh is not None
    require_kernels()
    device = choose("torch", DEVICE).device
    Sizes.of(config.mesh).require(shape_of(model))
    layout = Layout(config.mesh)
    with from_checkpoint(model) as source:
        sharded = Sharded(shape_of(model), layout, device, config.format).fill(source)
    return Mesh(layout, sharded, config)
