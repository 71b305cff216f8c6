"""Optimizers for a decoder: Muon for its matrices with AdamW for the rest, or AdamW for all.

Owns Muon and the grouping of parameters. Stacked expert matrices [E, rows, columns] are orthogonalised as a batch,
expert by expert. Never schedules: callers set `scale` of each step (warm-up, decay) through `set_scale`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

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
    """

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
                buffer = state["momentum"].mul_(group["momentum"]).add_(parameter.grad)
                mean = parameter.grad + group["momentum"] * buffer
                _move(parameter, mean, group["lr"] * _shape_scale(parameter), group["lr"] * group["weight_decay"])


def _move(parameter: Tensor, mean: Tensor, length: float, decay: float) -> None:
    """Step by the orthogonalised mean, matrix by matrix, where there is a gradient."""
    grad = parameter.grad
    assert grad is not None
    found_E = grad.reshape(-1, *grad.shape[-2:]).any(dim=2).any(dim=1)
    if found_E.all():
        parameter.mul_(1 - decay).add_(newton_schulz(mean), alpha=-length)
    elif found_E.any():  # some experts of a stack
        parameter[found_E] = parameter[found_E].mul_(1 - decay).add_(newton_schulz(mean[found_E]), alpha=-length)


def _shape_scale(parameter: Tensor) -> float:
    """sqrt(out / in) for matrices that widen, so that one learning rate fits all shapes."""
    rows, columns = (parameter.shape[1], parameter.shape[2]) if parameter.dim() == 3 else parameter.shape[::-1]
    return max(1.0, columns / rows) ** 0.5


class OptimizerSet:
    """One or two torch optimizers stepped as one, with one learning-rate scale."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers
        self._base = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]

    def set_scale(self, scale: float) -> None:
        """Learning rates become `scale` times those configured."""
        for optimizer, rates in zip(self.optimizers, self._base, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * scale

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict[str, Any]]:
        return [optimizer.state_dict() for optimizer in self.optimizers]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        for optimizer, state in zip(self.optimizers, states, strict=True):
            optimizer.load_state_dict(state)


def build_optimizer(named: Iterable[tuple[str, nn.Parameter]], config: OptimizerConfig) -> OptimizerSet:
    """For parameters of a decoder, or the factors of its matrices, by their names. Muon takes every matrix of the
    blocks but the routers, the one for a further token too; AdamW the rest."""
    matrices, others = [], []
    for name, parameter in named:
        is_matrix = name.startswith(("blocks.", "further.")) and parameter.dim() >= 2 and "router" not in name
        (matrices if is_matrix else others).append(parameter)
    if config.name == "adamw":
        return OptimizerSet(
            [torch.optim.AdamW([*matrices, *others], config.lr, config.betas, config.eps, config.weight_decay)]
        )
    found: list[torch.optim.Optimizer] = []
    if matrices:
        found.append(Muon(matrices, config.lr, config.momentum, config.weight_decay))
    if others:
        found.append(torch.optim.AdamW(others, config.scalar_lr, config.betas, config.eps, config.weight_decay))
    return OptimizerSet(found)
