"""On-policy distillation: the student plays, and a teacher whose probabilities are known says how it would go on.

    the student's sessions ──► the teacher reads the same tokens ──► KL(student || teacher) at each one ──► one step

The student is taught where it really goes, and not where the teacher would have gone (GKD, arXiv 2306.13649, with
on-policy data and the reverse divergence; MiniLLM, arXiv 2306.08543). As in GKD no gradient goes through the sampling:
a token's divergence is its own. Where only the probability of the sampled token is known, others estimate it as
log q - log p of that token, and take its negative as the token's advantage (Thinking Machines, "On-Policy
Distillation", 2025); here both models are decoders of ours, so it is summed over the whole vocabulary, whose mean that
estimate has. `trainer.distil` computes it, for hints as well. Whether a session was solved is told, and teaches
nothing.

Owns `DistillationStart`. The teacher is another checkpoint with the same tokens. The state is saved every few steps; a
command that is given again goes on there.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from pydantic import Field

from etude.config import Config
from etude.durable import append_whole, write_whole
from etude.engine.config import EngineConfig
from etude.engine.torch_engine import TorchEngine
from etude.environments.base import Backend
from etude.errors import CheckpointError, ConfigError, EtudeError
from etude.harness.dialogue import TokenDialogue
from etude.harness.session import token_dialogue
from etude.made_by import require_same
from etude.models.chat import open_chat
from etude.models.checkpoint import load_checkpoint, save_checkpoint
from etude.models.state import round_to_bf16
from etude.rewards.judgement import Judges
from etude.trainer.attempts import Attempt, Judged, Player, as_they_end
from etude.trainer.clipping import GradientClip, still_learning
from etude.trainer.distil import divergences
from etude.trainer.documents import document_of, taken_together
from etude.trainer.lessons import Made, Tasks, sandboxes
from etude.trainer.midtraining import cut_log
from etude.trainer.optimizers import build_optimizer
from etude.trainer.trained import left_to_train

if TYPE_CHECKING:
    from etude.trainer.warm_start import WarmStartConfig

SAVE_EVERY = 5
"""Steps."""
_WARMUP_STEPS = 5
_MOST_GRADIENT = 4.0
"""As `TrainerConfig.gradient_clip`."""


class DistillationSource(Config):
    """The model itself plays, and another checkpoint teaches."""

    kind: Literal["distillation"] = "distillation"
    teacher: Path
    """A checkpoint with the same tokens."""
    steps: int = Field(50, ge=1)
    """Of the optimizer; `sessions` are played for each."""
    temperature: float = Field(1.0, gt=0)
    """Of the student's sampling, and of both distributions that are compared."""
    engine: EngineConfig = EngineConfig()


class DistillationStart:
    """All that a checkpoint must hold, and who teaches."""

    def __init__(self, config: WarmStartConfig, source: DistillationSource, directory: Path) -> None:
        self.config, self.source, self.directory = config, source, directory
        self.tasks = Tasks(config)
        self.student, self.tokenizer = load_checkpoint(config.model)
        self.teacher, theirs = load_checkpoint(source.teacher)
        same_size = self.student.config.vocab_size == self.teacher.config.vocab_size
        if theirs.get_vocab() != self.tokenizer.get_vocab() or not same_size:
            raise ConfigError(
                f"source.teacher: {source.teacher} has other tokens than {config.model}, and they are compared token "
                'by token; serve it with `etude serve`, and take kind = "teacher"'
            )
        trained = left_to_train(self.student, config.frozen)
        self.optimizer = build_optimizer(trained.items(), config.optimizer, self.student.placement)
        self.clip = GradientClip(_MOST_GRADIENT)
        self.step, self.skipped, self.counts, self.divergence = 0, 0, Counter[str](), 0.0

    def made(self) -> Made:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._load()
        cut_log(self.directory / "log.jsonl", self.step)
        if self.step < self.source.steps:
            asyncio.run(self._steps())
        round_to_bf16(self.student)
        save_checkpoint(self.student, self.directory / "model", self.tokenizer, like=self.config.model)
        counts = {name: self.counts[name] for name in ("played", "solved", "tokens", "not_played")}
        return {"steps": self.step, **counts, "divergence": self.divergence, "model": str(self.directory / "model")}

    async def _steps(self) -> None:
        count, path = self.config.sessions, self.directory / "log.jsonl"
        async with sandboxes(self.config, self.tasks.given) as (backend, judges):
            with path.open("ab", buffering=0) as file:
                while self.step < self.source.steps:
                    tasks = self.tasks.take(self.step * count, count)
                    attempts = [Attempt(task, self.step, 0) for task in tasks]
                    played = await self._played(attempts, backend, judges)
                    line = {**self._learn(played), "step": self.step}
                    append_whole(file.fileno(), f"{json.dumps(line)}\n".encode(), path)
                    if self.step % SAVE_EVERY == 0 or self.step == self.source.steps:
                        self._save()

    async def _played(self, attempts: Sequence[Attempt], backend: Backend, judges: Judges) -> list[Judged]:
        """In the attempts' order, by the student as it is now."""
        config, source = self.config, self.source
        engine, chat = TorchEngine(self.student, source.engine), open_chat(config.model, self.tokenizer)

        def dialogue_of(attempt: Attempt) -> TokenDialogue:
            seed = attempt.seed(config.seed)
            return token_dialogue(
                engine, chat, config.harness, session_id=attempt.id, seed=seed, temperature=source.temperature
            )

        context = min(engine.max_context, self.teacher.config.max_context)
        player = Player(backend, judges, config.harness, context, dialogue_of)
        found: dict[str, Judged] = {}
        try:
            roomy = [each for each in attempts if player.has_room(each.task)]
            async with contextlib.aclosing(as_they_end(roomy, player.play, config.concurrency)) as ended:
                async for judged in ended:
                    found[judged.attempt.id] = judged
        finally:
            engine.close()
        over = [found[attempt.id] for attempt in attempts if attempt.id in found]
        if not any(judged.result for judged in over):
            why = over[0].why if over else "no task leaves room for one turn in the models' context"
            raise EtudeError(f"no session of step {self.step + 1} could be played: {why}; mend that, and go on")
        self.counts["not_played"] += sum(judged.result is None for judged in over) + len(attempts) - len(over)
        return over

    def _learn(self, over: Sequence[Judged]) -> Made:
        """One optimizer step on what the student said in these sessions."""
        sessions = [judged.result for judged in over if judged.result is not None]
        documents = [
            document_of(segment) for result in sessions for segment in result.segments if segment.sampled.any()
        ]
        total = sum(int(document.sampled.sum()) for document in documents)
        summed = 0.0
        for piece in taken_together(documents, self.config.tokens_per_step):
            contexts, places = [each.token_ids for each in piece], [np.flatnonzero(each.sampled) for each in piece]
            both = (contexts, places)
            kl_T = divergences(self.student, self.teacher, both, both, self.source.temperature, reverse=True)
            (kl_T.sum() / total).backward()
            summed += float(kl_T.detach().sum())
        gradient = self.clip.cut(self.student.parameters())
        self.optimizer.set_scale(min(1.0, (self.step + 1) / _WARMUP_STEPS))
        self.optimizer.step(gradient.lost)
        self.optimizer.zero_grad()
        self.skipped = still_learning(float(gradient.norm), self.skipped)
        self.step += 1
        self.divergence = summed / total
        solved = sum(judged.solved for judged in over)
        self.counts.update(played=len(sessions), solved=solved, tokens=total)
        said = {"divergence": self.divergence, "tokens": total, "played": len(sessions), "solved": solved}
        return {**said, "clipped": bool(gradient.acted)}

    def _save(self) -> None:
        state = {
            "of": json.dumps(self.config.identity(), sort_keys=True),
            "student": self.student.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "norms": self.clip.state_dict(),
            "step": self.step,
            "counts": dict(self.counts),
            "divergence": self.divergence,
        }
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_whole(self.directory / "distillation.pt", buffer.getvalue())

    def _load(self) -> None:
        path = self.directory / "distillation.pt"
        if not path.exists():
            return
        try:
            state: Mapping[str, Any] = torch.load(path, "cpu", weights_only=True)
            of = json.loads(state["of"])
        except OSError:  # of the machine: the file may be whole, and is not to be deleted
            raise
        except Exception as error:  # torch raises many kinds for a torn file
            raise CheckpointError(f"{path}: cannot go on from it ({error}); delete it to start anew") from None
        now = json.loads(json.dumps(self.config.identity()))
        require_same(path, of, now)
        self.student.load_state_dict(state["student"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.clip.load_state_dict(state["norms"])
        self.step, self.counts, self.divergence = state["step"], Counter(state["counts"]), state["divergence"]
