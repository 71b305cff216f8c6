"""Optimizers for a decoder: Muon for its matrices with AdamW for the rest, or AdamW for all.

Owns Muon and the grouping of parameters. Stacked expert matrices [E, rows, columns] are orthogonalised as a batch,
expert by expert. Never schedules: callers set `scale` of each step (warm-up, decay) through `set_scale`. On a device
rates are tensors there, and a step that is to be skipped changes nothing: the host need not know of either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from etude.kernels.choice import HOST, Placement
from etude.trainer.config import OptimizerConfig


def newton_schulz(matrices: Tensor, steps: int = 5) -> Tensor:
    """Approximate U V^T of each matrix's SVD (the last two axes), by the quintic iteration of Muon (arXiv
    2502.16982).
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices if matrices.dim() == 3 else matrices[None]
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.transpose(1, 2)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    if tall:
        x = x.transpose(1, 2)
    return x.reshape(matrices.shape)


class Muon(torch.optim.Optimizer):
    """Momentum, then orthogonalisation, of matrices [out, in] or stacks of matrices [E, in, out].

    Orthogonalised, a trace of momentum makes as long a step as a gradient does. So a matrix whose gradient of a step is
    exactly zero, as that of an expert which saw no token, stays where it is. Its momentum decays like all the others:
    the longer it saw nothing, the less its past counts once it has a gradient again.

    `found_inf`, where it is set and not 0, is a step's that changes nothing, as torch's own optimizers have it.
    """

    found_inf: Tensor | None = None

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # ty: ignore[incompatible-method-override]
        """One update from the gradients present; parameters without one are left alone, their momentum too."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                gradient, fade = parameter.grad, group["momentum"]
                if self.found_inf is not None:
                    skipped = self.found_inf > 0
                    gradient, fade = gradient.masked_fill(skipped, 0), torch.where(skipped, 1.0, fade)
                buffer = state["momentum"].mul_(fade).add_(gradient)
                mean = gradient + group["momentum"] * buffer
                rate = group["lr"]
                _move(parameter, gradient, mean, rate * _shape_scale(parameter), rate * group["weight_decay"])


def _move(parameter: Tensor, gradient: Tensor, mean: Tensor, length: float | Tensor, decay: float | Tensor) -> None:
    """Step by the orthogonalised mean, matrix by matrix, where there is a gradient."""
    found = gradient.any(dim=-1, keepdim=True).any(dim=-2, keepdim=True)
    moved, direction = parameter * (1 - decay), newton_schulz(mean)
    if isinstance(length, Tensor):
        moved.addcmul_(direction, length, value=-1)
    else:
        moved.add_(direction, alpha=-length)
    parameter.copy_(torch.where(found, moved, parameter))


def _shape_scale(parameter: Tensor) -> float:
    """sqrt(out / in) for matrices that widen, so that one learning rate fits all shapes."""
    rows, columns = (parameter.shape[1], parameter.shape[2]) if parameter.dim() == 3 else parameter.shape[::-1]
    return max(1.0, columns / rows) ** 0.5


class OptimizerSet:
    """One or two torch optimizers stepped as one, with one learning-rate scale."""

    def __init__(self, optimizers: list[torch.optim.Optimizer], placement: Placement = HOST) -> None:
        self.optimizers, self._on_host = optimizers, placement.kernels.on_host
        self._base = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
        self._device = placement.device
        self.set_scale(1.0)

    def set_scale(self, scale: float | Tensor) -> None:
        """Learning rates become `scale` times those configured."""
        for optimizer, rates in zip(self.optimizers, self._base, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * float(scale) if self._on_host else self._on_device(rate * scale)

    def _on_device(self, rate: float | Tensor) -> Tensor:
        if isinstance(rate, Tensor):
            return rate.float()
        return torch.full((), rate, device=self._device)

    def step(self, lost: Tensor | None = None) -> None:
        """One update, or none where the gradients are `lost`."""
        if self._on_host and lost is not None and bool(lost):
            return
        for optimizer in self.optimizers:
            if not self._on_host and lost is not None:
                vars(optimizer)["found_inf"] = lost.float()
            optimizer.step()

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict[str, Any]]:
        """The same whatever device it comes from."""
        return [_with(optimizer.state_dict(), lr=lambda group: float(group["lr"])) for optimizer in self.optimizers]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Of whichever device."""
        for optimizer, state in zip(self.optimizers, states, strict=True):
            fused = optimizer.param_groups[0].get("fused")
            optimizer.load_state_dict(_with(state, fused=lambda group, fused=fused: fused))


def _with(state: dict[str, Any], **values: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """A state whose groups have other values, where they have any."""
    groups = [
        group | {name: value(group) for name, value in values.items() if name in group}
        for group in state["param_groups"]
    ]
    return state | {"param_groups": groups}


def build_optimizer(
    named: Iterable[tuple[str, nn.Parameter]], config: OptimizerConfig, placement: Placement = HOST
) -> OptimizerSet:
    """For parameters of a decoder, or the factors of its matrices, by their names. Muon takes every matrix of the
    blocks but the routers, the one for a further token too; AdamW the rest."""
    matrices, others = [], []
    for name, parameter in named:
        is_matrix = name.startswith(("blocks.", "further.")) and parameter.dim() >= 2 and "router" not in name
        (matrices if is_matrix else others).append(parameter)
    if config.name == "adamw":
        return OptimizerSet([_adamw([*matrices, *others], config.lr, config, placement)], placement)
    found: list[torch.optim.Optimizer] = []
    if matrices:
        found.append(Muon(matrices, config.lr, config.momentum, config.weight_decay))
    if others:
        found.append(_adamw(others, config.scalar_lr, config, placement))
    return OptimizerSet(found, placement)


def _adamw(
    parameters: list[nn.Parameter], lr: float, config: OptimizerConfig, placement: Placement
) -> torch.optim.AdamW:
    """On a device the fused one, which takes its rate from there and knows of skipped steps."""
    fused = None if placement.kernels.on_host else True
    return torch.optim.AdamW(parameters, lr, config.betas, config.eps, config.weight_decay, fused=fused)
