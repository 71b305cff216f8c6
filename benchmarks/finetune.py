"""A step of supervised training of a published model in bf16, beside plain torch with transformers' own model.

    python benchmarks/finetune.py [--checkpoint DIR] [--tokens 4096] [--length 1400] [--turns 3] [--threads 1]
        [--at-once 1]

Both take the same documents, of which the same tokens are learned: this repository's pages, in pieces of --length
tokens with spans that are said and spans that are read, as in an agent's session. Both compute in bf16, keep weights,
gradients and AdamW's state in fp32, train every weight but the embedding, and cut the gradient. Theirs: transformers'
class with autocast, SDPA, torch's fused AdamW, --at-once documents as one batch (all are of one length, so nothing is
padded; one at a time is the fastest), and the head on learned tokens alone, as on all it would cost it more. Both have
the same allocator setting, and take turns in one process. CPU time of the process, all threads; the least of all turns
but the first. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import transformers
from real_model import imported
from torch.nn import functional as F

from etude.models.checkpoint import load_checkpoint, shape_of
from etude.models.heap import keep_large_arrays
from etude.trainer.config import OptimizerConfig
from etude.trainer.documents import Document
from etude.trainer.midtraining import Midtraining, MidtrainingConfig, Stage

ROOT = Path(__file__).parents[1]
LR = 1e-5
SAID, READ = 60, 90
"""Tokens of a span: four in ten are said, as in the sessions of real code."""


class Pages:
    """Pieces of pages, in order; `drawn` is what was asked for since it was emptied."""

    def __init__(self, checkpoint: Path, length: int) -> None:
        tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
        text = "\n\n".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
        ids = tokenizer(text, verbose=False)["input_ids"]
        said = np.arange(length) % (SAID + READ) >= READ
        self.pieces = [
            Document(np.asarray(ids[at : at + length], np.int32), said) for at in range(0, len(ids) - length, length)
        ]
        self.drawn: list[Document] = []

    def document(self, index: int) -> Document:
        self.drawn.append(self.pieces[index % len(self.pieces)])
        return self.drawn[-1]


def our_step(checkpoint: Path, pages: Pages, tokens: int, threads: int) -> Callable[[], float]:
    """A whole step; says its loss."""
    config = MidtrainingConfig(
        model=shape_of(checkpoint), stages=(Stage(tokens=10**9, mixture={"pages": 1.0}),), tokens_per_step=tokens,
        optimizer=OptimizerConfig(name="adamw", lr=LR), observation_weight=0.0, frozen=("embeddings",), format="bf16",
        warmup_steps=1, threads=threads,
    )  # fmt: skip
    training = Midtraining(config, {"pages": pages}, load_checkpoint(checkpoint)[0])
    return lambda: training.step()["said_loss"]


def their_step(checkpoint: Path, at_once: int) -> Callable[[Sequence[Document]], float]:
    """The same of transformers' model."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="sdpa"
    ).train()
    model.config.use_cache = False
    model.get_input_embeddings().weight.requires_grad_(False)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, fused=True)

    def step(documents: Sequence[Document]) -> float:
        count, whole = sum(int(each.sampled[1:].sum()) for each in documents), 0.0
        for at in range(0, len(documents), at_once):
            batch = documents[at : at + at_once]
            ids_BT = torch.from_numpy(np.stack([each.token_ids for each in batch])).long()
            said_BT = torch.from_numpy(np.stack([each.sampled[1:] for each in batch]))
            with torch.autocast("cpu", torch.bfloat16):
                hidden_BTD = model.model(ids_BT).last_hidden_state
                logits = model.lm_head(hidden_BTD[:, :-1][said_BT])
            loss = F.cross_entropy(logits.float(), ids_BT[:, 1:][said_BT], reduction="sum") / count
            loss.backward()
            whole += float(loss)
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return whole

    return step


def timed(step: Callable[[], float]) -> tuple[float, float]:
    """Seconds of CPU time, and the loss."""
    started = time.process_time()
    loss = step()
    return time.process_time() - started, loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--checkpoint", type=Path, help="one of SmolLM2 (default: made of the package)")
    parser.add_argument("--tokens", type=int, default=4096, help="of a step, at least")
    parser.add_argument("--length", type=int, default=1400, help="tokens of a document")
    parser.add_argument("--turns", type=int, default=3, help="steps of each that count")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=1, help="documents of a batch of theirs")
    options = parser.parse_args()
    keep_large_arrays()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory(prefix="finetune-") as scratch:
        checkpoint = options.checkpoint or imported(Path(scratch))
        pages = Pages(checkpoint, options.length)
        ours = our_step(checkpoint, pages, options.tokens, options.threads)
        theirs = their_step(checkpoint, options.at_once)
    seconds: dict[str, list[float]] = {"etude": [], "transformers": []}
    losses = []
    for turn in range(1 + options.turns):
        pages.drawn.clear()
        took, loss = timed(ours)
        documents = list(pages.drawn)
        their_took, their_loss = timed(lambda documents=documents: theirs(documents))
        losses.append((round(loss, 4), round(their_loss, 4)))
        if turn:  # the first compiles, and fills the heap
            seconds["etude"].append(took)
            seconds["transformers"].append(their_took)
        print(f"step {turn}: {took:.1f} and {their_took:.1f} CPU-s, loss {losses[-1]}", file=sys.stderr, flush=True)
    count = sum(len(each.token_ids) for each in documents)
    speed = {name: round(count / min(each), 1) for name, each in seconds.items()}
    found = {"tokens": count, "documents": len(documents), "threads": options.threads, "load": os.getloadavg()[0]}
    found |= {f"{name}_tokens_per_cpu_s": each for name, each in speed.items()}
    print(json.dumps({**found, "ratio": round(speed["etude"] / speed["transformers"], 3), "losses": losses}))


if __name__ == "__main__":
    main()
