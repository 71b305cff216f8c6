"""The rivals of `scale.py`'s race: transformers' Qwen3-MoE and torchtitan's, each under FSDP2, in the same step.

Rows are those of our own ranks: all of one length, so that nobody pads. Weights, sums and products are fp32, AdamW is
torch's fused one, and logits are made of the sampled tokens alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scale
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard


def cpu_of_plain(steps: int) -> float:
    """CPU seconds of steps by transformers' model."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = scale.SHAPES["experts"]
    shape = Qwen3MoeConfig(
        vocab_size=config.vocab_size, hidden_size=config.width, num_hidden_layers=config.layers,
        num_attention_heads=config.heads, num_key_value_heads=config.kv_heads, head_dim=config.head_width,
        num_experts=config.experts, num_experts_per_tok=config.experts_per_token,
        moe_intermediate_size=config.expert_width, norm_topk_prob=True, tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    model = Qwen3MoeForCausalLM(shape)
    model.set_experts_implementation("grouped_mm")  # the fastest on a CPU, too
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for module in (*model.model.layers, model):
        fully_shard(module, mesh=mesh)
    return _cpu_of_peer(model, lambda ids: model(input_ids=ids).logits, steps)


def cpu_of_titan(steps: int) -> float:
    """The same of torchtitan's model."""
    from mesh_titan import sharded

    model = sharded(scale.SHAPES["experts"])
    return _cpu_of_peer(model, model, steps)


def _cpu_of_peer(model: Any, logits_of: Callable[[Tensor], Tensor], steps: int) -> float:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no other
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, betas=scale.ADAMW.betas, weight_decay=0.0, fused=True)
    batch = scale.batch_of_rows(scale.SHAPES["experts"], scale.ROWS, scale.ROW)
    ids, mask, advantages = (
        torch.from_numpy(array).view(scale.ROWS, scale.ROW)[dist.get_rank() :: dist.get_world_size()]
        for array in (batch.token_ids.astype(np.int64), batch.loss_mask, batch.advantages)
    )
    kept = mask[:, 1:]
    kept_rows = torch.cat((kept, torch.zeros_like(kept[:, :1])), 1)
    model.lm_head.register_forward_pre_hook(lambda module, given: (given[0][kept_rows],))

    def step() -> None:
        logps = torch.log_softmax(logits_of(ids).float(), -1).gather(1, ids[:, 1:][kept][:, None]).squeeze(1)
        (-(logps * advantages[:, 1:][kept]).sum() / 8192).backward()
        optimizer.step()
        optimizer.zero_grad()

    return cpu_of(step, steps)


def cpu_of(step: Callable[[], Any], steps: int) -> float:
    """CPU seconds of steps after one that warms up."""
    step()
    started = time.process_time()
    for _ in range(steps):
        step()
    return time.process_time() - started
