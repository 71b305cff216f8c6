"""What the trainer is told. Apart from the trainer itself, so that reading a recipe does not load torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from etude.config import Config


class OptimizerConfig(Config):
    """Which optimizer, and how fast."""

    name: Literal["muon", "adamw"] = "muon"
    lr: float = 0.02
    """Learning rate of the matrices: Muon's, or AdamW's when that has them."""
    scalar_lr: float = 3e-3
    """AdamW's learning rate for embeddings, norms and routers beside Muon."""
    momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.0


class LossConfig(Config):
    """The switches of `losses.policy_loss`, whose docstring has the formula."""

    importance_cap: float = 2.0
    """c of the formula."""
    trust: float = 0.2
    """Largest move in probability before a token is dropped; 1 turns the mask off."""
    normaliser: Literal["constant", "tokens"] = "constant"
    """`tokens` divides by the batch's own count of sampled tokens."""
    token_budget: int = 8192
    """The constant normaliser: sampled tokens of a typical batch."""
    damping: float = 0.0
    """Weight of (logp - behaviour logp)^2 / 2, a pull towards the sampler's policy."""
    entropy_bonus: float = 0.0


class AdvantageConfig(Config):
    baseline: Literal["mean", "leave_one_out"] = "mean"
    """`mean`: Dr. GRPO (arXiv 2503.20783). `leave_one_out`: RLOO (arXiv 2402.14740), larger by G/(G-1) in a group of
    G.
    """
    divide_by_std: bool = False
    """GRPO's (arXiv 2402.03300) normalisation; off, for it inflates small differences in groups that are nearly
    equal.
    """


class CreditConfig(Config):
    """How a trajectory's reward is shared among its segments; `trainer.credit` has the rules."""

    baseline: Literal["trajectory", "segment"] = "trajectory"
    """`trajectory`: every sampled token has the trajectory's advantage. `segment`: each segment is compared with those
    at the same place in the trajectories of its group that came as far."""
    mask_summaries: bool = False
    """Leave the tokens of summaries out of the loss: the ablation that says what training them is worth."""

    @property
    def needs_segments(self) -> bool:
        """Whether it would have no effect on sessions of one segment."""
        return self != CreditConfig()


class TrainerConfig(Config):
    """One step of reinforcement learning."""

    optimizer: OptimizerConfig = OptimizerConfig()
    loss: LossConfig = LossConfig()
    advantages: AdvantageConfig = AdvantageConfig()
    credit: CreditConfig = CreditConfig()
    router_replay: bool = True
    replay_margin: float = 4.0
    """Plausibility filter: how far, in router logits, a replayed expert may lie below the router's own last choice."""
    warmup_steps: int = 0
    final_lr_share: float = 1.0
    """The learning rate falls linearly to this share of itself over the run's budget; 1 keeps it constant."""
    gradient_clip: float = 1.0
    divergence_target: float | None = Field(None, gt=0)
    """A step on a batch whose k3 (an estimate of its divergence from what sampled it) is larger takes a learning
    rate smaller in proportion: a policy that has run ahead waits for samples of its own. None: no step does."""
    piece_tokens: int = 8192
    """Tokens of one forward and backward."""
    witness_tokens: int = Field(1024, ge=0)
    """Tokens a step, context included, that are recomputed with the older version that sampled them, so that every step
    says whether trainer and sampler agree; 0: none."""
    witness_versions: int = Field(6, ge=1)
    """How many versions are kept for it, at 2 bytes a parameter: more than samples may be old."""
    max_skipped: int = 3
    """Steps in a row that may be skipped for a gradient that is not finite."""
    threads: int = 1


class FinetuneConfig(Config):
    """The control: the same optimizer family, a schedule that fits its budget."""

    optimizer: OptimizerConfig = OptimizerConfig(lr=0.01, scalar_lr=1e-3)
    tokens_per_step: int = 4096
    warmup_share: float = 0.03
    balance: float = 0.01
    observation_weight: float = 0.0
    gradient_clip: float = 1.0
    threads: int = 2
