"""An adapter apart from its model, in the layout of PEFT: adapter_config.json and adapter_model.safetensors.

Owns what our factors are called there and how they lie. A matrix of ours that holds two published ones (gate and up)
becomes two modules, which share the factor that reads and have a half each of the one that writes: nothing is lost. A
stack of experts is PEFT's `target_parameters`, with the factors of all experts side by side. `peft` adds the product of
the factors to each result, in the precision that the model is loaded in; an engine of ours has it added to the weights
and rounded to bf16 (`models.adapters`), so the two differ by that rounding. Never reads such a directory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from etude.durable import write_whole
from etude.models.adapters import INPUTS, OUTPUTS, SCALE
from etude.models.published import published_modules

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def save_adapter(directory: Path, factors: Mapping[str, Tensor], base: Path, has_experts: bool) -> None:
    """Write an adapter by its factors (`models.adapters`), which hold bf16 values. `base` is where its model lies.

    Of a model that `has_experts`, `peft` takes every module called gate_proj, up_proj or down_proj for experts as they
    were before `transformers` 5; so dense ones are given as parameters there, which it leaves alone.
    """
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    parameters: dict[str, int] = {}
    for name in sorted(key.removesuffix(INPUTS) for key in factors if key.endswith(INPUTS)):
        inputs, outputs = factors[name + INPUTS], factors[name + OUTPUTS]
        modules = published_modules(name)
        if inputs.dim() == 3:
            parameters[modules[0]] = inputs.shape[-1]
            tensors |= _of_experts(modules[0], inputs, outputs)
            continue
        for module, its in zip(modules, outputs.chunk(len(modules)), strict=True):
            if has_experts and ".mlp." in module:
                parameters[f"{module}.weight"] = len(inputs)
            else:
                ranks[module] = len(inputs)
            tensors |= {f"{module}.lora_A.weight": inputs, f"{module}.lora_B.weight": its}
    stored = {f"base_model.model.{name}": each.detach().bfloat16().contiguous() for name, each in tensors.items()}
    directory.mkdir(parents=True, exist_ok=True)
    write_whole(directory / WEIGHTS, lambda file: file.write(save(_apart(stored), {"format": "pt"})))
    text = json.dumps(_config(ranks, parameters, base), indent=2) + "\n"
    write_whole(directory / CONFIG, lambda file: file.write(text.encode()))


def _of_experts(parameter: str, inputs: Tensor, outputs: Tensor) -> dict[str, Tensor]:
    """Of a stack: [E r, in] expert by expert, and [out, r E] with the expert as its last index. PEFT wraps the module
    once for each of its parameters, the one that is named last outermost.
    """
    module, _, own = parameter.rpartition(".")
    wrapper = f"{module}.base_layer" if own == "gate_up_proj" else module
    return {
        f"{wrapper}.lora_A.weight": inputs.mT.flatten(0, 1),
        f"{wrapper}.lora_B.weight": outputs.permute(2, 1, 0).flatten(1),
    }


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share no memory: safetensors stores no views."""
    return {name: each.clone() for name, each in tensors.items()}


def _config(ranks: Mapping[str, int], parameters: Mapping[str, int], base: Path) -> dict[str, Any]:
    usual = next(iter((parameters or ranks).values()))
    unusual = {name: rank for name, rank in (*ranks.items(), *parameters.items()) if rank != usual}
    found: dict[str, Any] = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(base),
        "r": usual, "lora_alpha": SCALE * usual, "lora_dropout": 0.0, "bias": "none", "inference_mode": True,
        "target_modules": sorted(ranks),
        "rank_pattern": unusual, "alpha_pattern": {name: SCALE * rank for name, rank in unusual.items()},
    }  # fmt: skip
    if parameters:
        found["target_parameters"] = sorted(parameters, key=lambda name: (name.rpartition(".")[0], "down" in name))
    return found
