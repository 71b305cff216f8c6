"""Where the ranks of a mesh compute, and what is said of it to whoever counts on GPUs.

Owns the device and the one sentence about it: a dry run ends with it, `etude cluster manifest` and the start of a run
say it where a GPU would have nothing to do. Needs no torch.
"""

from __future__ import annotations

from etude.trainer.config import TrainerConfig

DEVICE = "cpu"
"""Ranks meet by gloo."""


def caveat(config: TrainerConfig, follows: str) -> str | None:
    """What is to be known of this trainer on GPUs, and what follows from it; None where its ranks are no mesh's."""
    if config.mesh is None:
        return None
    return f"the ranks of a mesh compute on CPUs today, also where there are GPUs (docs/limits.md): {follows}"
