"""Mid-training: makes the small base model from real source, drills and recorded sessions.

Owns the loop, its schedule, its log and its checkpoints; `etude pretrain` calls `pretrain`. Stages follow each other
with mixtures of their own; the learning rate warms up once and decays over the last part of the whole. A resumed run
equals one that never stopped. Never runs a sandbox: sessions are recorded beforehand (`trainer.demonstrations`).
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import signal
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import structlog
import torch
from pydantic import Field, model_validator

from etude.config import Config
from etude.durable import append_whole, write_whole
from etude.errors import CheckpointError, ConfigError, stopped_by
from etude.kernels.choice import of_process, trained_in_bf16
from etude.models.config import ModelConfig
from etude.models.decoder import Decoder
from etude.models.heap import keep_large_arrays
from etude.trainer.clipping import GradientClip, still_learning
from etude.trainer.config import Frozen, OptimizerConfig
from etude.trainer.documents import Document, Mixture, Source
from etude.trainer.figures import read
from etude.trainer.optimizers import build_optimizer
from etude.trainer.supervised import backward, nll
from etude.trainer.trained import left_to_train

TOLD_EVERY_S = 20.0
logger = structlog.get_logger()


class Stage(Config):
    tokens: int
    mixture: dict[str, float]
    """Source name → share of documents."""


class ScheduleConfig(Config):
    """What is trained on, for how long, and how fast."""

    stages: tuple[Stage, ...]
    optimizer: OptimizerConfig = OptimizerConfig()
    tokens_per_step: int = 4096
    warmup_steps: int = 60
    decay_share: float = 0.4
    """The learning rate falls linearly to nearly zero over this last share of all tokens."""
    observation_weight: float = 0.15
    balance: float = 0.01
    further_weight: float = 0.0
    """Weight of the loss of the token after the next, for a model with `further_token`; 0 leaves it out."""
    gradient_clip: float = Field(4.0, gt=1)
    """As `TrainerConfig.gradient_clip`."""
    frozen: Frozen = ()
    """As `TrainerConfig.frozen`: `["embeddings", ":-8"]` trains the last 8 layers, and costs a third of the whole."""
    format: Literal["fp32", "bf16"] = "fp32"
    """What blocks compute in; weights, gradients and the optimizer's state are fp32."""
    threads: int = 1
    checkpoint_every: int = 200
    """Steps. What is held out is measured as often."""


class MidtrainingConfig(ScheduleConfig):
    """Model, data and schedule of mid-training."""

    model: ModelConfig
    seed: int = 0

    @model_validator(mode="after")
    def _further_token_is_trained(self) -> Self:
        if self.model.further_token and not self.further_weight:
            raise ValueError("model.further_token is on, but nothing would train that layer: set further_weight")
        if self.further_weight and not self.model.further_token:
            raise ValueError("further_weight would have no effect: model.further_token is off")
        return self


class Midtraining:
    """The state of a run: everything that a checkpoint must hold."""

    def __init__(
        self, config: MidtrainingConfig, sources: Mapping[str, Source], decoder: Decoder | None = None
    ) -> None:
        self.config = config
        self.decoder = decoder or Decoder(config.model)
        if decoder is None:
            self.decoder.initialise(config.seed)
            self.decoder.place(of_process())
        wanted = {name for stage in config.stages for name in stage.mixture}
        if absent := sorted(wanted - sources.keys()):
            raise ConfigError(f"midtraining.stages: no source {absent[0]}; there are {', '.join(sorted(sources))}")
        if config.format == "bf16":
            self.decoder.place(trained_in_bf16(self.decoder.placement.device))
            self.decoder.computes_in = torch.bfloat16
        trained = left_to_train(self.decoder, config.frozen)
        self.optimizer = build_optimizer(trained.items(), config.optimizer, self.decoder.placement)
        self.clip = GradientClip(config.gradient_clip)
        self.mixture = Mixture(sources, config.seed)
        self.step_count = 0
        self.tokens = 0
        self.skipped = 0
        """Steps in a row that nothing could be learnt from."""

    @property
    def total_tokens(self) -> int:
        return sum(stage.tokens for stage in self.config.stages)

    def stage(self) -> Stage:
        """The stage the next step belongs to."""
        end = 0
        for stage in self.config.stages:
            end += stage.tokens
            if self.tokens < end:
                return stage
        return self.config.stages[-1]

    def lr_scale(self) -> float:
        left = 1 - self.tokens / self.total_tokens
        return min(1.0, (self.step_count + 1) / self.config.warmup_steps, left / self.config.decay_share + 0.01)

    def step(self) -> dict[str, Any]:
        """One optimizer step; returns what the log shows."""
        config, scale = self.config, self.lr_scale()
        documents = self.mixture.draw(
            self.stage().mixture, self.step_count, config.tokens_per_step, config.model.max_context
        )
        losses = backward(self.decoder, documents, config.observation_weight, config.balance, config.further_weight)
        gradient = self.clip.cut(self.decoder.parameters())
        self.optimizer.set_scale(scale)
        self.optimizer.step(gradient.lost)
        self.optimizer.zero_grad()
        found = [losses.total, losses.next_token, losses.further, *gradient, *losses.by_source.values()]
        loss, said, further, norm, clipped, *each = read(found)
        self.skipped = still_learning(norm, self.skipped)
        self.step_count += 1
        self.tokens += sum(len(document.token_ids) for document in documents)
        metrics = {"loss": loss, "said_loss": said, "grad_norm": norm, "clipped": bool(clipped), "lr_scale": scale}
        metrics["said_by_source"] = dict(zip(losses.by_source, each, strict=True))
        return metrics | ({"further_loss": further} if config.further_weight else {})

    def measure(self, held_out: Mapping[str, Sequence[Document]]) -> dict[str, float]:
        """By source, nats a token."""
        found = {name: nll(self.decoder, each, self.config.tokens_per_step) for name, each in held_out.items()}
        return {name: total / max(1, count) for name, (total, count) in found.items()}

    def save(self, path: Path) -> None:
        """Atomic: the old checkpoint stays until the new one is whole."""
        state = {
            "decoder": self.decoder.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "norms": self.clip.state_dict(),
            "step_count": self.step_count,
            "tokens": self.tokens,
            "drawn": self.mixture.drawn,
        }
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_whole(path, buffer.getvalue())

    def load(self, path: Path) -> None:
        try:
            state = torch.load(path, "cpu", weights_only=True)
            self.decoder.load_state_dict(state["decoder"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.clip.load_state_dict(state["norms"])
        except OSError:  # of the machine: the file may be whole, and is not to be deleted
            raise
        except Exception as error:  # torch raises many kinds for a torn file
            raise CheckpointError(f"{path}: cannot resume from it ({error}); delete it to start anew") from None
        self.step_count, self.tokens = state["step_count"], state["tokens"]
        self.mixture.drawn |= state["drawn"]  # a source may have joined since


def pretrain(
    config: MidtrainingConfig,
    sources: Mapping[str, Source],
    directory: Path,
    resume: bool = False,
    decoder: Decoder | None = None,
    held_out: Mapping[str, Sequence[Document]] | None = None,
) -> Midtraining:
    """Run to the end of the last stage, logging to `log.jsonl`. A `decoder` is trained on instead of a new one; what is
    `held_out` is measured before the first step, with every checkpoint and after the last step. Raises Interrupted or
    Terminated where a signal asked it to stop, once all is saved.
    """
    torch.set_num_threads(config.threads)
    keep_large_arrays()  # no engine beside it needs the memory
    directory.mkdir(parents=True, exist_ok=True)
    checkpoint = directory / "midtraining.pt"
    run = Midtraining(config, sources, decoder)
    log = directory / "log.jsonl"
    if resume:
        run.load(checkpoint)
        cut_log(log, run.step_count)
        logger.info("going on", step=run.step_count, tokens=run.tokens)
    else:
        write_whole(log, b"")
    cpu, said = time.process_time(), -math.inf
    with _stop_on_signals() as stop, log.open("ab", buffering=0) as file:
        if held_out and not run.step_count:
            first = {"step": 0, "tokens": 0, "held_out": run.measure(held_out)}
            append_whole(file.fileno(), f"{json.dumps(first)}\n".encode(), log)
        while run.tokens < run.total_tokens and not stop:
            metrics = run.step()
            metrics |= {"step": run.step_count, "tokens": run.tokens, "cpu_s": round(time.process_time() - cpu, 1)}
            saves = run.step_count % config.checkpoint_every == 0
            if held_out and (saves or run.tokens >= run.total_tokens):
                metrics["held_out"] = run.measure(held_out)
            append_whole(file.fileno(), f"{json.dumps(metrics)}\n".encode(), log)
            said = _told(run, metrics, said)
            if saves:
                run.save(checkpoint)
    run.save(checkpoint)
    if stop and run.tokens < run.total_tokens:
        raise stopped_by(stop[0], f"step {run.step_count} is saved in {directory}; the same command goes on with it")
    return run


def _told(run: Midtraining, metrics: Mapping[str, Any], said: float) -> float:
    """Now and then a line for whoever waits; returns when the last was."""
    if (now := time.monotonic()) - said < TOLD_EVERY_S:
        return said
    logger.info("learning", step=run.step_count, tokens=run.tokens, of=run.total_tokens, loss=round(metrics["loss"], 3))
    return now


def cut_log(log: Path, last: int) -> None:
    """Drop the lines of steps made after the checkpoint was saved, a torn one too: those steps are made again."""
    kept = [line for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")] if log.exists() else []
    write_whole(log, "".join(line for line in kept if json.loads(line)["step"] <= last).encode())


@contextlib.contextmanager
def _stop_on_signals() -> Generator[list[int]]:
    """A list that fills when the process is asked to stop."""
    seen: list[int] = []
    before = {
        number: signal.signal(number, lambda received, _: seen.append(received))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
