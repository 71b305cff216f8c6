"""Does low precision learn as bf16 does? One tiny mixture-of-experts language model, trained once in each recipe.

    python benchmarks/low_precision_loss.py [--steps 2000] [--seeds 1]

The model (2 layers, width 64, 4 experts of width 64, 2 a token) predicts the bytes of Etude's own sources. Runs of a
seed share initial weights and batches; only the experts' products differ: bf16 operands, "mxfp8", "nvfp4" (see
`etude.kernels.low_precision`; on CPU through the references, bit-exact formats with sums in fp64). Everything else,
router and masters included, is fp32 in all of them. Loss is nats a byte: the mean over the last 5% of steps, and on
held-out bytes at the end. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from etude.kernels.low_precision import ExpertLinear
from etude.models.attention import PackedAttention
from etude.models.config import ModelConfig
from etude.models.decoder import Decoder
from etude.models.experts import ExpertProduct, multiply_by_expert

MODEL = ModelConfig(
    vocab_size=256, width=64, layers=2, heads=4, kv_heads=2, head_width=16, experts=4, expert_width=64, max_context=128
)
SEQUENCES, LENGTH = 4, 128


def in_bf16(rows_MK: Tensor, weight_EKN: Tensor, counts_E: Tensor) -> Tensor:
    return multiply_by_expert(rows_MK.bfloat16(), weight_EKN.bfloat16(), counts_E).float()


def corpus() -> tuple[Tensor, Tensor]:
    """Bytes to train on and to evaluate on."""
    sources = sorted((Path(__file__).parents[1] / "etude").rglob("*.py"))
    data = torch.tensor(list(b"".join(path.read_bytes() for path in sources)))
    return data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]


def loss_of(decoder: Decoder, data: Tensor, starts: Tensor) -> Tensor:
    windows = data[starts[:, None] + torch.arange(LENGTH + 1)]
    positions = torch.arange(LENGTH).repeat(len(starts))
    output = decoder(windows[:, :-1].flatten(), positions, PackedAttention([LENGTH] * len(starts)))
    return F.cross_entropy(decoder.logits(output.hidden_ND), windows[:, 1:].flatten())


def train(product: ExpertProduct, steps: int, seed: int, data: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Loss at the end, on training and held-out bytes, and the milliseconds of a step."""
    decoder = Decoder(MODEL)
    decoder.initialise(seed)
    decoder.set_expert_product(product)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
    generator = torch.Generator().manual_seed(seed)
    losses, began = [], time.process_time()
    for _ in range(steps):
        loss = loss_of(decoder, data[0], torch.randint(len(data[0]) - LENGTH, (SEQUENCES,), generator=generator))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    cpu_ms = (time.process_time() - began) / steps * 1e3
    with torch.no_grad():
        starts = torch.arange(0, len(data[1]) - LENGTH, max(LENGTH, len(data[1]) // 256))
        held_out = torch.stack([loss_of(decoder, data[1], part) for part in starts.split(SEQUENCES)]).mean().item()
    last = max(1, steps // 20)
    return {"first": losses[0], "train": sum(losses[-last:]) / last, "held_out": held_out, "cpu_ms_per_step": cpu_ms}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = corpus()
    results: dict[str, list[dict[str, float]]] = {}
    for seed in range(options.seeds):
        low: dict[str, ExpertLinear] = {recipe: ExpertLinear(recipe) for recipe in ("mxfp8", "nvfp4")}
        products: dict[str, ExpertProduct] = {"bf16": in_bf16, **low}
        for recipe, product in products.items():
            figures = train(product, options.steps, seed, data)
            if isinstance(product, ExpertLinear) and not product.rows:
                raise SystemExit(f"{recipe} was enabled and multiplied nothing: the decoder does not use its product")
            results.setdefault(recipe, []).append(figures)
            print(f"seed {seed} {recipe:6} " + "  ".join(f"{name} {value:.4f}" for name, value in figures.items()))
    final: dict[str, Any] = {"steps": options.steps, "seeds": options.seeds}
    for recipe, runs in results.items():
        final[recipe] = {name: sum(run[name] for run in runs) / len(runs) for name in runs[0]}
    for recipe in ("mxfp8", "nvfp4"):
        final[f"{recipe}_over_bf16"] = final[recipe]["train"] / final["bf16"]["train"]
    print(json.dumps(final))


if __name__ == "__main__":
    main()
