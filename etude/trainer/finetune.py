"""The control: supervised fine-tuning on clean demonstrations for a given amount of CPU time.

Owns one loop with a schedule that fits its budget. It stands beside every reinforcement-learning curve, so that a lift
which imitation would give as well is not credited to reinforcement learning. It must be as strong as the budget allows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from etude.errors import ConfigError
from etude.models.decoder import Decoder
from etude.models.state import round_to_bf16
from etude.trainer.clipping import GradientClip
from etude.trainer.config import FinetuneConfig
from etude.trainer.documents import Document, Mixture, ShuffledSource
from etude.trainer.figures import read
from etude.trainer.optimizers import build_optimizer
from etude.trainer.supervised import backward


def finetune(
    decoder: Decoder,
    documents: Sequence[Document],
    config: FinetuneConfig,
    cpu_seconds: float,
    seed: int = 0,
    on_step: Callable[[dict[str, float]], None] = lambda metrics: None,
) -> dict[str, float]:
    """Train `decoder` in place until this process has spent `cpu_seconds`; warm-up, then linear decay to zero. Raises
    ConfigError where there are none to spend.
    """
    if cpu_seconds <= 0:
        raise ConfigError("fine-tuning: its demonstrations have used up its CPU time; give it more seconds")
    torch.set_num_threads(config.threads)
    optimizer = build_optimizer(decoder.named_parameters(), config.optimizer, decoder.placement)
    clip = GradientClip(config.gradient_clip)
    mixture = Mixture({"demonstrations": ShuffledSource(documents, seed)}, seed)
    started = time.process_time()
    steps = tokens = clipped = 0
    last: dict[str, float] = {}
    while (spent := (time.process_time() - started) / cpu_seconds) < 1.0:
        drawn = mixture.draw({"demonstrations": 1.0}, steps, config.tokens_per_step, decoder.config.max_context)
        losses = backward(decoder, drawn, config.observation_weight, config.balance)
        gradient = clip.cut(decoder.parameters())
        optimizer.set_scale(min(1.0, (spent + 1e-3) / config.warmup_share, (1 - spent) / (1 - config.warmup_share)))
        optimizer.step()
        optimizer.zero_grad()
        loss, said, acted = read([losses.total, losses.next_token, gradient.acted])
        clipped += int(acted)
        steps, tokens = steps + 1, tokens + sum(len(document.token_ids) for document in drawn)
        last = {
            "loss": loss,
            "said_loss": said,
            "steps": float(steps),
            "tokens": float(tokens),
            "clipped_steps": float(clipped),
            "documents": float(min(mixture.drawn["demonstrations"], len(documents))),
            "cpu_s": spent * cpu_seconds,
        }
        on_step(last)
    round_to_bf16(decoder)
    return last
