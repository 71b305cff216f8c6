"""TRL's half: GRPOTrainer on the same model, tasks, harness, sandboxes, verifier and reward.

How TRL is driven, and why. GRPOTrainer 1.16 has three ways to multi-turn tool use. `tools` and `environment_factory`
parse calls with a response template, render results with a chat template, run the tools of one rollout after another
and give every turn the whole completion budget: other prompt bytes, another parser, other limits, and the sandboxes
worked on one at a time. `rollout_func` hands over the prompts and takes token ids back, so the sessions can be exactly
ours: `etude.rollouts.session.play`, unchanged, all sandboxes of a step at once. It is what TRL users take for an agent
loop of their own, and the fastest of the three; tool results are masked out of the loss with `env_mask`. No chat
template is needed, so none can differ from ours. Messages are sampled by TRL's own `_generate_single_turn`
(transformers' `generate`, left-padded, sampling), all sessions in lock-step (`waves`), with the longest remaining limit
of the wave as its own. The alternative TRL offers on CPU, `use_transformers_continuous_batching`, took four times as
long for 64 prompts of 150 to 400 tokens and 48 new ones (one thread, transformers 5.23), for its paged attention has no
CPU kernel. vLLM's CPU build is left out: TRL's weight transfer to it needs CUDA's NCCL.

The trainer's settings are those a user with this machine would choose: fp32, no gradient checkpointing, no reference
model, no router loss, one optimizer step a batch of fresh samples (so the ratio is 1 and no second forward is needed),
AdamW at a constant rate, all cores for torch; all else is TRL's default (DAPO loss, rewards scaled by the group's
deviation). Micro-batches of 16 rows, padded by TRL to the longest of the step.

Started by quickstart_vs_trl.py, and by gpu/session.py to compute on a GPU; its wall budget begins with the first
dispatch and ends with the first optimizer step past it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from typing import Any

import pyarrow
import torch
from datasets import Dataset
from measure import Measured, training_task
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from waves import Desk, Waves

from etude.config import load_recipe
from etude.environments.backends import open_backend
from etude.environments.base import Backend
from etude.models.chat import ChatRenderer
from etude.models.tokenizer import END, END_OF_TEXT, load_tokenizer
from etude.records import Event, Trajectory, reward_of
from etude.rewards.judgement import Judges
from etude.rollouts.config import RunConfig
from etude.rollouts.session import RolloutRequest, play

MICRO_BATCH = 16
WAVE_DEADLINE_S = 600.0
"""A session's own wall limit is shorter."""
TASKS = 100_000
"""More prompts than any budget reaches; each is the index of a task."""


class Rollouts:
    """TRL's `rollout_func`: plays a step's prompts through the harness."""

    def __init__(self, config: RunConfig, measured: Measured) -> None:
        self.config, self.measured = config, measured
        self.chat = ChatRenderer(load_tokenizer(config.model.path))
        self.desk = Desk()
        self.backend: Backend | None = None
        self.judges: Judges | None = None
        self.in_step: list[list[Trajectory]] = []
        self.played = 0

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """Prompts come repeated, a group's members side by side."""

        def generate(prompts_ids: list[list[int]], longest: int) -> list[list[int]]:
            trainer.generation_config.max_new_tokens = longest
            sampled, _ = trainer._generate_single_turn(prompts_ids, None, {}, num_generations=1)
            return sampled

        trajectories = self.desk.serve(self._play(prompts), generate, WAVE_DEADLINE_S)
        size = self.config.groups.size
        self.in_step = [trajectories[start : start + size] for start in range(0, len(trajectories), size)]
        return as_columns(trajectories, self.chat.end_id)

    async def _play(self, prompts: list[str]) -> list[Trajectory]:
        # both belong to this loop; a verdict that is known is known to this side, too
        backend = self.backend = self.backend or open_backend(self.config.environment)
        judges = self.judges = self.judges or self.config.rewards.judges()
        orders = [self._order(index, prompt) for index, prompt in enumerate(prompts, self.played)]
        self.played += len(orders)

        waves = Waves(self.desk.generate, [order.id for order in orders])

        def on_event(order: RolloutRequest, event: Event) -> None:
            if event.kind == "end":
                waves.ended(order.id)

        async def rollout(order: RolloutRequest) -> Trajectory:
            try:
                trajectory = await play(order, self.config, backend, waves, self.chat, judges, on_event)
            finally:
                waves.ended(order.id)  # a session that broke tells no end
            self.measured.rolled_out(trajectory)
            return trajectory

        return list(await asyncio.gather(*map(rollout, orders)))

    def _order(self, number: int, prompt: str) -> RolloutRequest:
        task = training_task(self.config, int(prompt))
        return RolloutRequest(f"t{number}", f"g{prompt}", task, number, self.config.rollouts.temperature)

    def close(self) -> None:
        for used in (self.judges, self.backend):
            if used is not None:
                asyncio.run_coroutine_threadsafe(used.close(), self.desk.loop).result(timeout=60)
        self.desk.close()


def as_columns(trajectories: list[Trajectory], end_id: int) -> dict[str, list[Any]]:
    """What TRL asks for. A rollout that infrastructure broke has no reward, which TRL leaves out of its baseline."""
    columns: dict[str, list[Any]] = {name: [] for name in ("prompt_ids", "completion_ids", "env_mask", "reward")}
    for trajectory in trajectories:
        if trajectory.segments and trajectory.segments[0].sampled.any():
            [segment] = trajectory.segments
            opening = int(segment.sampled.argmax())
            ids, mask = segment.token_ids.tolist(), segment.sampled.astype(int).tolist()
        else:
            opening, ids, mask = 1, [end_id, end_id], [0, 0]
        columns["prompt_ids"].append(ids[:opening])
        columns["completion_ids"].append(ids[opening:])
        columns["env_mask"].append(mask[opening:])
        columns["reward"].append(reward_of(trajectory.outcome))
    return {**columns, "logprobs": None}  # type: ignore[dict-item]  # TRL reads them with vLLM only


def given_reward(reward: list[float | None], **_: Any) -> list[float | None]:
    """The verifier has spoken during the rollout."""
    return reward


class Budget(TrainerCallback):
    """Counts finished steps, tells of them, and stops after the one that ends past the budget."""

    def __init__(self, rollouts: Rollouts, minutes: float, out: Path) -> None:
        self.rollouts, self.minutes, self.out = rollouts, minutes, out

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        measured = self.rollouts.measured
        measured.trained(self.rollouts.in_step)
        curve = measured.curve()
        print(
            f"TRL step {state.global_step}: {measured.elapsed():.0f} s, solve rate {curve[-1][1] if curve else 0:.3f}",
            flush=True,
        )
        measured.write(self.out, threads=torch.get_num_threads(), lr=args.learning_rate)  # it may be ended any time
        control.should_training_stop = measured.elapsed() >= 60 * self.minutes


def prompts() -> Dataset:
    """Named by us: datasets 5.2 makes a name of what a table pickles to, and with pyarrow 26 none can be pickled."""
    return Dataset(pyarrow.table({"prompt": [str(index) for index in range(TASKS)]}), fingerprint="prompts")


def grpo_config(config: RunConfig, lr: float, directory: Path, on_cpu: bool) -> GRPOConfig:
    rollouts, group = config.rollouts.groups_per_step * config.groups.size, config.groups.size
    return GRPOConfig(
        output_dir=str(directory), use_cpu=on_cpu, seed=config.seed, report_to="none", save_strategy="no",
        disable_tqdm=True, logging_steps=10_000, max_steps=1_000_000, shuffle_dataset=False,
        bf16=False, gradient_checkpointing=False, beta=0.0, router_aux_loss_coef=0.0,
        per_device_train_batch_size=MICRO_BATCH, gradient_accumulation_steps=rollouts // MICRO_BATCH,
        num_generations=group, max_completion_length=1024, temperature=config.rollouts.temperature,
        learning_rate=lr, lr_scheduler_type="constant", max_grad_norm=1.0,
    )  # fmt: skip


def train(config: RunConfig, lr: float, threads: int, directory: Path, out: Path, on_cpu: bool) -> None:
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(config.model.path, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(config.model.path / "tokenizer.json"), eos_token=END, pad_token=END_OF_TEXT
    )
    rollouts = Rollouts(config, Measured())
    trainer = GRPOTrainer(
        model=model,
        args=grpo_config(config, lr, directory, on_cpu),
        processing_class=tokenizer,
        train_dataset=prompts(),
        reward_funcs=given_reward,
        rollout_func=rollouts,
        callbacks=[Budget(rollouts, config.rollouts.max_minutes, out)],
    )
    try:
        rollouts.measured = Measured()  # the clock starts when all is loaded, as it does on the other side
        trainer.train()
    finally:
        rollouts.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpu", action="store_true", help="compute on the GPU, in fp32 as ours does; else on the CPU")
    options = parser.parse_args()
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    config = load_recipe(options.recipe, RunConfig, options.set)
    train(config, options.lr, options.threads, options.directory, options.out, not options.gpu)


if __name__ == "__main__":
    main()
