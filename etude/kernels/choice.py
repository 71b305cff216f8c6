"""Where a model computes, and with which kernels: the one choice, made in one place.

Owns `Placement`, `choose`, and what a process is told by the variable ETUDE_KERNELS. Nothing else in the tree chooses
by where a tensor lies: a decoder is given its placement once (`Decoder.place`), and its trainer, losses, optimizer and
engine take theirs from it. What a device is, `kernels.devices` says.

    "exact"   the batch-invariant kernels: on a CPU, where trainer and sampler get the same bits; the default there
    "torch"   plain torch operations: on any device, and the default on a GPU
    "triton"  products, norms, attention and experts in Triton, whose bits do not depend on the batch: on a GPU, or in
              Triton's interpreter

Supervised training in bf16 is not asked: it has what `trained_in_bf16` says.
"""

from __future__ import annotations

import os
from typing import NamedTuple, cast, get_args

import torch

from etude.errors import ConfigError, MissingDependency
from etude.kernels.devices import is_host, present
from etude.kernels.exact import EXACT
from etude.kernels.host_kernels import ON_HOST
from etude.kernels.interface import Kernels, Name
from etude.kernels.torch_kernels import TORCH


class Placement(NamedTuple):
    """What a decoder computes with, and the device that it and all its data lie on."""

    kernels: Kernels
    device: torch.device


VARIABLE = "ETUDE_KERNELS"
HOST = Placement(EXACT, torch.device("cpu"))


def choose(name: Name | None = None, device: str | torch.device | None = None) -> Placement:
    """Kernels of that name on that device. Without a device: a GPU where there is one and the kernels run there, else
    the CPU. Without a name: what suits the device. Raises ConfigError for two that do not fit each other.
    """
    if device is None:
        device = "cpu" if name == "exact" else present()
    place = torch.device(device)
    if name is None:
        name = "exact" if is_host(place) else "torch"
    if name == "exact":
        if not is_host(place):
            raise ConfigError(f'kernels = "exact" compute on a CPU, not on {place}: choose "torch" or "triton" there')
        return Placement(EXACT, place)
    if name == "torch":
        return Placement(TORCH, place)
    return Placement(_triton(place), place)


def trained_in_bf16(place: torch.device) -> Placement:
    """What supervised training in bf16 computes with there: nobody samples from it meanwhile."""
    return Placement(ON_HOST if is_host(place) else TORCH, place)


def of_process() -> Placement:
    """What this process was told to compute with, by ETUDE_KERNELS; untold, the exact kernels on the CPU. Processes
    that it starts are told the same. Raises ConfigError for a name that is none.
    """
    name = os.environ.get(VARIABLE, "exact")
    if name not in get_args(Name):
        raise ConfigError(f"{VARIABLE}={name}: there are no such kernels; set it to exact, torch or triton")
    return choose(cast("Name", name))


def _triton(place: torch.device) -> Kernels:
    if is_host(place) and os.environ.get("TRITON_INTERPRET") != "1":
        raise ConfigError(
            'kernels = "triton" need a GPU, and there is none: choose "exact" or "torch", or set TRITON_INTERPRET=1 to '
            "run them in Triton's interpreter, which is for tests"
        )
    try:
        from etude.kernels.triton_kernels import TRITON
    except ModuleNotFoundError:
        raise MissingDependency(
            'kernels = "triton" need Triton, which comes with torch\'s builds for GPUs: pip install triton'
        ) from None
    return TRITON
