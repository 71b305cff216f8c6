"""Optimizers for a decoder: Muon for its matrices with AdamW for the rest, or AdamW for all.

Owns Muon and the grouping of parameters. Stacked expert matrices [E, rows, columns] are orthogonalised as a batch,
expert by expert. Never schedules: callers set `scale` of each step (warm-up, decay) through `set_scale`. On a device
rates are tensors there, and a step that is to be skipped changes nothing: the host need not know of either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from etude.errors import ConfigError
from etude.kernels.choice import HOST, Placement
from etude.trainer.config import Keep, OptimizerConfig
from etude.trainer.offload import HostState


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


class Orthogonaliser:
    """How the direction of a step is made of the matrices' means: here, of one after the other."""

    def batches(self, parameters: Sequence[nn.Parameter]) -> Iterable[Sequence[nn.Parameter]]:
        """Which of them go together."""
        return ([each] for each in parameters)

    def shape(self, parameter: nn.Parameter) -> tuple[int, ...]:
        """Of the whole parameter."""
        return tuple(parameter.shape)

    def directions(
        self, parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor], means: Sequence[Tensor]
    ) -> list[tuple[Tensor, Tensor]]:
        """Of a batch: whether a matrix has a gradient, and its direction."""
        del parameters
        return [(_any(gradient), newton_schulz(mean)) for gradient, mean in zip(gradients, means, strict=True)]


def _any(gradient: Tensor) -> Tensor:
    """Matrix by matrix."""
    return gradient.any(dim=-1, keepdim=True).any(dim=-2, keepdim=True)


class Muon(torch.optim.Optimizer):
    """Momentum, then orthogonalisation, of matrices [out, in] or stacks of matrices [E, in, out].

    Orthogonalised, a trace of momentum makes as long a step as a gradient does. So a matrix whose gradient of a step is
    exactly zero, as that of an expert which saw no token, stays where it is. Its momentum decays like all the others:
    the longer it saw nothing, the less its past counts once it has a gradient again.

    `found_inf`, where it is set and not 0, is a step's that changes nothing, as torch's own optimizers have it.
    """

    found_inf: Tensor | None = None

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        momentum: float,
        weight_decay: float,
        kept: torch.dtype = torch.float32,
        orthogonaliser: Orthogonaliser | None = None,
    ) -> None:
        """`kept`: what the momentum is rounded to between two steps."""
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self._kept, self._orthogonaliser = kept, orthogonaliser or Orthogonaliser()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # ty: ignore[incompatible-method-override]
        """One update from the gradients present; parameters without one are left alone, their momentum too."""
        for group in self.param_groups:
            with_gradient = [parameter for parameter in group["params"] if parameter.grad is not None]
            for batch in self.batches(with_gradient):
                self._step(group, batch)

    def batches(self, parameters: Sequence[nn.Parameter]) -> Iterable[Sequence[nn.Parameter]]:
        """Which of them are stepped together."""
        return self._orthogonaliser.batches(parameters)

    def _step(self, group: dict[str, Any], batch: Sequence[nn.Parameter]) -> None:
        gradients, means = zip(*(self._mean(parameter, group["momentum"]) for parameter in batch), strict=True)
        found = self._orthogonaliser.directions(batch, gradients, means)
        for parameter, (has_gradient, direction) in zip(batch, found, strict=True):
            length = group["lr"] * _shape_scale(self._orthogonaliser.shape(parameter))
            _move(parameter, has_gradient, direction, length, group["lr"] * group["weight_decay"])

    def _mean(self, parameter: nn.Parameter, momentum: float) -> tuple[Tensor, Tensor]:
        """The gradient, and what becomes of it with the momentum (Nesterov's)."""
        gradient, fade = parameter.grad, momentum
        assert gradient is not None
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter, dtype=self._kept)
        if self.found_inf is not None:
            skipped = self.found_inf > 0
            gradient, fade = gradient.masked_fill(skipped, 0), torch.where(skipped, 1.0, fade)
        buffer = state["momentum"].to(gradient.dtype).mul_(fade).add_(gradient)
        state["momentum"] = buffer.to(self._kept)  # the very same, but where it is kept rounded
        return gradient, gradient + momentum * buffer


def _move(parameter: Tensor, found: Tensor, direction: Tensor, length: float | Tensor, decay: float | Tensor) -> None:
    """Step in the direction, matrix by matrix, where there is a gradient."""
    moved = parameter * (1 - decay)
    if isinstance(length, Tensor):
        moved.addcmul_(direction, length, value=-1)
    else:
        moved.add_(direction, alpha=-length)
    parameter.copy_(torch.where(found, moved, parameter))


def _shape_scale(shape: Sequence[int]) -> float:
    """sqrt(out / in) for matrices that widen, so that one learning rate fits all shapes."""
    rows, columns = (shape[1], shape[2]) if len(shape) == 3 else shape[::-1]
    return max(1.0, columns / rows) ** 0.5


class RoundedAdamW(torch.optim.Optimizer):
    """AdamW whose two moments are kept in bf16 and computed with in fp32: 4 bytes a parameter in place of 8. A second
    moment moves by 2% of its distance a step, of which bf16 keeps a fifth at the least.
    """

    found_inf: Tensor | None = None

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, betas: tuple[float, float], eps: float, weight_decay: float
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # ty: ignore[incompatible-method-override]
        """One update from the gradients present, or none where `found_inf` says so."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(group, parameter, parameter.grad)

    def _step(self, group: dict[str, Any], parameter: nn.Parameter, gradient: Tensor) -> None:
        state, (first, second) = self.state[parameter], group["betas"]
        if not state:
            like = torch.zeros_like(parameter, dtype=torch.bfloat16)
            state |= {"step": torch.zeros((), device=parameter.device), "exp_avg": like, "exp_avg_sq": like.clone()}
        taken = 1.0 if self.found_inf is None else (self.found_inf == 0).float()
        gradient = gradient if self.found_inf is None else gradient.masked_fill(self.found_inf > 0, 0)
        state["step"] += taken
        mean = state["exp_avg"].float().lerp_(gradient, 1 - first)
        square = state["exp_avg_sq"].float().mul_(second).addcmul_(gradient, gradient, value=1 - second)
        steps = state["step"].clamp(min=1)
        denominator = (square / (1 - second**steps)).sqrt_().add_(group["eps"])
        change = group["lr"] * (mean / (1 - first**steps) / denominator + group["weight_decay"] * parameter)
        if self.found_inf is not None:  # the rate of a step that is to be skipped may be no number either
            change.masked_fill_(self.found_inf > 0, 0)
        parameter.sub_(change)
        for key, new in (("exp_avg", mean), ("exp_avg_sq", square)):
            kept = new.bfloat16()  # what was loaded may have another dtype
            state[key] = kept if self.found_inf is None else torch.where(self.found_inf > 0, state[key].to(kept), kept)


class OptimizerSet:
    """One or two torch optimizers stepped as one, with one learning-rate scale."""

    def __init__(
        self, optimizers: list[torch.optim.Optimizer], placement: Placement = HOST, keep: Keep = "device"
    ) -> None:
        """`keep`: where momentum and moments are between steps. Raises ConfigError for the host where it computes."""
        self.optimizers, self._on_host = optimizers, placement.kernels.on_host
        if keep == "host" and self._on_host:
            raise ConfigError(
                'trainer.optimizer.keep = "host": this trainer computes on the host, where its moments are anyway; '
                "leave it out, or have it compute on a device (ETUDE_KERNELS=torch)"
            )
        self._from_host = HostState(placement.device) if keep == "host" else None
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
        if self._from_host is not None:
            self._from_host.moved = 0
        for optimizer in self.optimizers:
            if not self._on_host and lost is not None:
                vars(optimizer)["found_inf"] = lost.float()
            if self._from_host is None:
                optimizer.step()
            else:
                self._from_host.step(optimizer, _together(optimizer))

    @property
    def offloaded_bytes(self) -> int:
        """What the last step has put back to the host."""
        return 0 if self._from_host is None else self._from_host.moved

    def rest(self) -> None:
        """Hear that momentum and moments were loaded: they go to where they are kept."""
        if self._from_host is not None:
            for optimizer in self.optimizers:
                self._from_host.rest(optimizer)

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
        self.rest()


def _together(optimizer: torch.optim.Optimizer) -> Iterable[Sequence[Tensor]]:
    """The parameters that have a gradient, in the lots in which an optimizer steps them."""
    for group in optimizer.param_groups:
        found = [parameter for parameter in group["params"] if parameter.grad is not None]
        yield from optimizer.batches(found) if isinstance(optimizer, Muon) else ([each] for each in found)


def _with(state: dict[str, Any], **values: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """A state whose groups have other values, where they have any."""
    groups = [
        group | {name: value(group) for name, value in values.items() if name in group}
        for group in state["param_groups"]
    ]
    return state | {"param_groups": groups}


def build_optimizer(
    named: Iterable[tuple[str, nn.Parameter]],
    config: OptimizerConfig,
    placement: Placement = HOST,
    orthogonaliser: Orthogonaliser | None = None,
) -> OptimizerSet:
    """For parameters of a decoder, or the factors of its matrices, by their names. Muon takes every matrix of the
    blocks but the routers, the one for a further token too; AdamW the rest."""
    matrices, others = [], []
    for name, parameter in named:
        is_matrix = name.startswith(("blocks.", "further.")) and parameter.dim() >= 2 and "router" not in name
        (matrices if is_matrix else others).append(parameter)
    if config.name == "adamw":
        return OptimizerSet([_adamw([*matrices, *others], config.lr, config, placement)], placement, config.keep)
    found: list[torch.optim.Optimizer] = []
    if matrices:
        kept = torch.bfloat16 if config.format == "bf16" else torch.float32
        found.append(Muon(matrices, config.lr, config.momentum, config.weight_decay, kept, orthogonaliser))
    if others:
        found.append(_adamw(others, config.scalar_lr, config, placement))
    return OptimizerSet(found, placement, config.keep)


def _adamw(
    parameters: list[nn.Parameter], lr: float, config: OptimizerConfig, placement: Placement
) -> torch.optim.Optimizer:
    """On a device the fused one, which takes its rate from there and knows of skipped steps."""
    if config.format == "bf16":
        return RoundedAdamW(parameters, lr, config.betas, config.eps, config.weight_decay)
    fused = None if placement.kernels.on_host else True
    return torch.optim.AdamW(parameters, lr, config.betas, config.eps, config.weight_decay, fused=fused)
