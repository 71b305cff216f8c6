"""What of a policy is trained: all of it, the tensors that are not frozen, or adapters of its matrices (LoRA).

Owns the fp32 masters, the policy that is rounded from them, and what of both is published. A tensor that is trained
whole has a master. A matrix with an adapter keeps its bf16 values, has masters of its two factors, and the policy holds
what they make together (`models.adapters`), which is what an engine serves: its gradient is turned into those of the
factors as soon as it is there, and is kept for no other matrix meanwhile. A frozen tensor costs its bf16 values, no
gradient, no master, no moments, and nothing of a version but a row in its manifest. Never chooses a learning rate.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from etude.engine.adapted import ROOT, merged_root
from etude.engine.served import export_served, served_names
from etude.errors import CheckpointError, ConfigError
from etude.models.adapters import INPUTS, OUTPUTS, factor_gradients, kind_of, layer_of, merge, new_factors
from etude.models.checkpoint import save_checkpoint
from etude.models.decoder import Decoder
from etude.models.peft import save_adapter
from etude.models.state import bf16_bits, round_to_bf16
from etude.trainer.config import AdaptedKind, OptimizerConfig, TrainerConfig
from etude.trainer.losses import Figure
from etude.trainer.optimizers import OptimizerSet, build_optimizer
from etude.weights.manifest import Bits


class Trained:
    """A policy and the masters behind it. `moved` counts the matrices whose adapters changed them in the last step."""

    def __init__(self, policy: Decoder, config: TrainerConfig) -> None:
        """The policy is rounded to bf16 values, its masters are not. Raises ConfigError where nothing is left to train,
        and for what the config names and the model lacks.
        """
        named = self._choose(policy, config)
        shared = {id(parameter): parameter for name, parameter in named.items() if name not in self.whole}
        self.masters = copy.deepcopy(policy, shared)
        """A decoder of fp32 masters; what is not trained whole is the policy's own tensor."""
        round_to_bf16(policy)
        self._adapt(named)

    def _choose(self, policy: Decoder, config: TrainerConfig) -> dict[str, nn.Parameter]:
        """Say what of a policy is trained; returns all of it by its names."""
        self.policy = policy
        named = dict(policy.named_parameters())
        frozen = frozen_by(named, config.frozen)
        kept = {name: each for name, each in named.items() if name not in frozen}
        self.ranks = ranks_of(kept, config.lora)
        self.whole = set(kept) if config.lora is None else set()
        """The tensors that are trained as they are."""
        for name, parameter in named.items():
            parameter.requires_grad_(name in self.whole or name in self.ranks)
        self.moved: Figure = 0
        self._constant: Bits = {}
        return named

    def here(self, tensor: Tensor) -> Tensor:
        """What of a tensor of the policy, or of its gradient, is in this process: all of it."""
        return tensor

    def renewed(self) -> None:
        """Hear that what of the policy is here is about to have other values, or has: forget what was made of it."""

    def _adapt(self, named: Mapping[str, nn.Parameter]) -> None:
        """Give each matrix of `ranks` its adapter. Whatever order it is given, it starts from the same factors."""
        self._base = {name: self.here(named[name].detach()).bfloat16() for name in self.ranks}
        made: dict[str, Tensor] = {}
        for name, rank in self.ranks.items():
            device = self._base[name].device
            made |= {key: each.to(device) for key, each in self._new_factors(name, named[name], rank).items()}
        self.factors = {name: nn.Parameter(factor) for name, factor in made.items()}
        """The adapters' fp32 masters, and what they are rounded to."""
        self._rounded = {name: nn.Parameter(factor.detach().bfloat16().float()) for name, factor in made.items()}
        for name in self.ranks:
            named[name].register_post_accumulate_grad_hook(partial(self._to_factors, name))

    def _new_factors(self, name: str, weight: Tensor, rank: int) -> dict[str, Tensor]:
        return new_factors(name, weight, rank)

    def _to_factors(self, name: str, parameter: Tensor) -> None:
        """Called when a backward has made the gradient of an adapted matrix."""
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None
        gradient = self.here(gradient)
        factors = self._rounded[name + INPUTS], self._rounded[name + OUTPUTS]
        with torch.no_grad():
            found = factor_gradients(self._base[name], gradient, *factors)
            for factor, of_factor in zip(factors, found, strict=True):
                factor.grad = of_factor if factor.grad is None else factor.grad.add_(of_factor)

    @property
    def leaves(self) -> dict[str, nn.Parameter]:
        """Where a backward leaves its gradients: tensors of the policy, and adapters as it is made of them."""
        named = dict(self.policy.named_parameters())
        return {name: named[name] for name in named if name in self.whole} | self._rounded

    def optimizer(self, config: OptimizerConfig) -> OptimizerSet:
        """What moves the masters."""
        return build_optimizer(self.trained.items(), config, self.policy.placement)

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """Of all gradients of a step together."""
        return get_total_norm(gradients)

    def frozen_copy(self) -> Decoder:
        """The policy as it is now, for good."""
        return copy.deepcopy(self.policy).requires_grad_(False)

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """The masters of these, in their order: what the optimizer moves."""
        named = dict(self.masters.named_parameters())
        return {name: named[name] for name in named if name in self.whole} | self.factors

    @property
    def frozen_weights(self) -> int:
        """How many numbers of the policy no step can move."""
        held = {*self.whole, *self.ranks}
        return sum(each.numel() for name, each in self.policy.named_parameters() if name not in held)

    def take_gradients(self) -> list[nn.Parameter]:
        """Hand the gradients to the masters; returns all of these."""
        masters = list(self.trained.values())
        for master, leaf in zip(masters, self.leaves.values(), strict=True):
            master.grad, leaf.grad = leaf.grad, None
        return masters

    @torch.no_grad()
    def round(self) -> None:
        """Make the policy anew from its masters."""
        for master, leaf in zip(self.trained.values(), self.leaves.values(), strict=True):
            self.here(leaf).copy_(master.to(torch.bfloat16))
        moved = []
        for name, parameter in self.policy.named_parameters():
            if name in self.ranks:
                inputs, outputs = self._rounded[name + INPUTS], self._rounded[name + OUTPUTS]
                made, adapted = merge(self._base[name], inputs, outputs, self.policy.kernels), self.here(parameter)
                moved.append((made != adapted).any())
                adapted.copy_(made)
        self.moved = self._count(torch.stack(moved)) if moved else 0

    def _count(self, moved: Tensor) -> Tensor:
        """How many matrices have moved, of each of which it is said."""
        return moved.sum()

    def saved(self, optimizer: OptimizerSet) -> dict[str, Any]:
        """What a checkpoint holds of what is trained: the very tensors."""
        return {"masters": self.state_dict(), "optimizer": optimizer.state_dict()}

    def written(self, state: dict[str, Any], shards: Path | None) -> dict[str, Any]:
        """What a checkpoint's file is to hold of a trainer's copied state, once what else there is lies in `shards`, a
        new directory: here it holds all. Called beside the next step, in another thread.
        """
        del shards
        return state

    def take(self, state: Mapping[str, Any], optimizer: OptimizerSet, directory: Path | None) -> None:
        """Go on from what was saved, in a checkpoint of `directory`. Raises CheckpointError where it does not fit."""
        del directory
        if "shards" in state:
            raise CheckpointError(
                "the checkpoint was saved by a mesh of ranks: resume with trainer.ranks as a table, which may have "
                "other numbers: {fsdp = 1} is one rank"
            )
        self.load_state_dict(state["masters"])
        optimizer.load_state_dict(state["optimizer"])

    def state_dict(self) -> dict[str, Tensor]:
        """The masters alone: what is frozen comes with the checkpoint that training began from."""
        return {name: master.detach() for name, master in self.trained.items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Raises CheckpointError if other tensors were trained when it was saved."""
        masters, buffers = self.trained, dict(self.policy.named_buffers())
        if differing := sorted(masters.keys() ^ (state.keys() - buffers.keys())):
            raise CheckpointError(
                f"the checkpoint was saved by a run that trained other tensors ({differing[0]} is in one of both): "
                "resume with the trainer.lora and trainer.frozen that it had"
            )
        for name, master in masters.items():
            if master.shape != state[name].shape:
                raise CheckpointError(
                    f"{name} is of {tuple(state[name].shape)} in the checkpoint and of {tuple(master.shape)} here: "
                    "resume with the trainer.lora that it had"
                )
            master.copy_(state[name])
        self.round()

    def save_adapter(self, directory: Path, base: Path) -> None:
        """Write the adapters as they are served, apart from the model at `base`; nothing where there are none."""
        if self._rounded:
            save_adapter(directory, self._rounded, base, bool(self.policy.config.moe_layers))

    def save_model(self, directory: Path, tokenizer: Tokenizer | None, like: Path) -> None:
        """Write the policy as a published checkpoint, trained from the one at `like`."""
        save_checkpoint(self.policy, directory, tokenizer, like=like)

    # --- what is published --------------------------------------------------------------------------------------------

    def sizes(self) -> dict[str, int]:
        """The arrays of a version, and their bytes."""
        return {name: array.nbytes for name, array in self.export().items()}

    def owns(self, ranks: Sequence[frozenset[str]]) -> None:
        """Hear which arrays of a version each rank publishes: here all ranks have all of them."""

    def export(self, into: Bits | None = None, only: Collection[str] | None = None) -> Bits:
        """A copy of what a version holds, or of `only` some arrays of it, in the arrays of an earlier one if given.
        Arrays that never change are the same ones each time: nobody may write to them.
        """
        if not self._constant:
            self._constant = self._frozen_bits()
        names, former = served_names(self.policy), into or {}
        whole = {key for name in self.whole for key in names[name] if only is None or key in only}
        bits = export_served(self.policy, into, whole) if whole else {}
        for name, factor in self._rounded.items():
            if only is None or name in only:
                bits[name] = bf16_bits(name, factor, former.get(name))
        if self.ranks and (only is None or ROOT in only):
            adapted = {name: each for name, each in self.policy.named_parameters() if name in self.ranks}
            bits[ROOT] = merged_root((name, bf16_bits(name, each)) for name, each in sorted(adapted.items()))
        return bits | {name: array for name, array in self._constant.items() if only is None or name in only}

    def _frozen_bits(self) -> Bits:
        """Of frozen tensors what is served, of adapted ones what their adapters are added to."""
        names = served_names(self.policy)
        frozen = {key for name in names.keys() - self.whole - self.ranks.keys() for key in names[name]}
        bits = export_served(self.policy, None, frozen) if frozen else {}
        return bits | {name: base.view(torch.uint16).cpu().numpy() for name, base in self._base.items()}


def left_to_train(decoder: Decoder, frozen: Collection[str]) -> dict[str, nn.Parameter]:
    """Freeze what entries of `frozen` name; returns the rest."""
    named = dict(decoder.named_parameters())
    for name in frozen_by(named, frozen):
        named.pop(name).requires_grad_(False)
    return named


def frozen_by(named: Mapping[str, Tensor], frozen: Collection[str]) -> set[str]:
    """The parameters that entries of `frozen` name. Raises ConfigError for one that names none, and where none
    is left to train.
    """
    found: set[str] = set()
    layers = 1 + max(layer for name in named if (layer := layer_of(name)) is not None)
    for entry in frozen:
        blocks = range(layers)[slice(*(int(end) if end else None for end in entry.split(":")))] if ":" in entry else ()
        its = {name for name in named if kind_of(name) == entry or layer_of(name) in blocks}
        if not its:
            raise ConfigError(f"frozen: {entry!r} is nothing of this model of {layers} layers; leave it out")
        found |= its
    if found >= {name for name in named if not name.startswith("further.")}:
        raise ConfigError("frozen: nothing is left to train; freeze less")
    return found


def ranks_of(named: Mapping[str, Tensor], lora: Mapping[AdaptedKind, int] | None) -> dict[str, int]:
    """Which matrices get an adapter, of which rank. Raises ConfigError where the model has none of a kind, or a rank is
    no smaller than a matrix.
    """
    found: dict[str, int] = {}
    for kind, rank in (lora or {}).items():
        its = [
            name
            for name, each in named.items()
            if kind_of(name) == kind and each.dim() > 1 and layer_of(name) is not None
        ]
        if not its:
            raise ConfigError(f"trainer.lora: no {kind} matrix of this model is trained; leave {kind} out")
        for name in its:
            if rank >= min(named[name].shape[-2:]):
                raise ConfigError(
                    f"trainer.lora: a rank of {rank} is not below both sides of {name} {tuple(named[name].shape)}: "
                    f"give {kind} a smaller one"
                )
            found[name] = rank
    return dict(sorted(found.items()))
