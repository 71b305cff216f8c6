"""What the trainer is told. Apart from the trainer itself, so that reading a recipe does not load torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from etude.config import Config
from etude.plugins import named


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


class GateConfig(Config):
    """The sequence gate: a segment whose geometric-mean importance weight leaves the band is not trained on. Bands in
    the literature run from 1% to a factor of 2: `gate_p01` and `gate_p99` in a run's own metrics say where to put it.
    """

    low: float = Field(0.99, gt=0, lt=1)
    high: float = Field(1.01, gt=1)
    max_rejected: float = Field(0.05, ge=0, le=1)
    """A step that rejects a larger share of its segments raises the alarm: `gate_alarm` in its metrics."""
    patience: int = Field(8, ge=1)
    """Steps in a row under alarm that end the run."""


class KLConfig(Config):
    """A pull towards the model that training began with, of which a frozen copy is kept."""

    coefficient: float = Field(1e-3, gt=0)
    estimator: Literal["k1", "k2", "k3"] = "k1"
    """With d = logp - reference logp. k1: d is taken from the token's advantage. k2: d^2 / 2 is added to the loss. k3:
    exp(-d) - 1 + d is. On samples of the policy itself k1 and k2 have the gradient of the KL divergence, k3 has not.
    """


MaskName = Literal["tv", "kl", "ratio", "band", "off"]


class LossConfig(Config):
    """The switches of `losses.policy_loss`, whose docstring has the formula."""

    formula: Annotated[str, named("losses")] = "policy"
    """The loss: `policy`, another of the group `etude.losses`, or package.module:function. Another reads `normaliser`,
    `token_budget` and `options`, and refuses the switches of `policy`."""
    options: Mapping[str, float] = {}
    """What a formula of somebody else's is told."""
    weight: Literal["token", "segment"] = "token"
    """`segment`: one importance weight a segment, the geometric mean of its tokens' (GSPO, arXiv 2507.18071)."""
    importance_cap: float = Field(2.0, gt=0)
    """c of the formula; inf truncates nothing."""
    importance_floor: float = Field(0.0, ge=0)
    """f of the formula; cap and floor near 1 make it CISPO's (arXiv 2506.13585)."""
    mask: MaskName = "tv"
    trust: float | None = Field(None, gt=0)
    """Where the masks `tv` (a probability) and `kl` (nats) begin; None: 0.2 and 0.05."""
    band: tuple[float, float] | None = None
    """The weights that the masks `ratio` and `band` let through; None: (0.8, 1.28) and (0.5, 5)."""
    gate: GateConfig | None = None
    normaliser: Literal["constant", "tokens", "trajectory", "prompt"] = "constant"
    """`tokens`: the batch's own count of sampled tokens. `trajectory`: every trajectory weighs the same, whatever its
    length. `prompt`: every group does (ScaleRL, arXiv 2510.13786)."""
    token_budget: int = Field(8192, ge=1)
    """The constant normaliser: sampled tokens of a typical batch."""
    damping: float = Field(0.0, ge=0)
    """Weight of (logp - behaviour logp)^2 / 2, a pull towards the sampler's policy."""
    kl: KLConfig | None = None
    entropy_bonus: float = 0.0

    @model_validator(mode="after")
    def _no_key_is_ignored(self) -> LossConfig:
        foreign = self.model_fields_set - {"formula", "options", "normaliser", "token_budget"}
        if self.formula != "policy" and foreign:
            raise ValueError(f"{min(foreign)} has no effect with formula = {self.formula!r}; put its own under options")
        if self.formula == "policy" and self.options:
            raise ValueError("options: are for a formula of your own; that of `policy` has its switches here")
        reads = {"tv": "trust", "kl": "trust", "ratio": "band", "band": "band", "off": None}[self.mask]
        for name in ("trust", "band"):
            if getattr(self, name) is not None and name != reads:
                raise ValueError(f"{name} has no effect with mask = {self.mask!r}, which reads {reads or 'neither'}")
        if not self.lowest < 1 < self.highest:
            raise ValueError(f"band = {self.band}: must hold 1, the weight of a token whose policy has not moved")
        if self.mask == "tv" and self.limit >= 1:
            raise ValueError(f'trust = {self.trust}: no probability moves as far; mask = "off" turns the mask off')
        if self.importance_floor >= self.importance_cap:
            raise ValueError(f"importance_floor = {self.importance_floor}: is not below importance_cap")
        if self.normaliser != "constant" and self.token_budget != LossConfig.model_fields["token_budget"].default:
            raise ValueError(f"token_budget has no effect with normaliser = {self.normaliser!r}")
        return self

    @property
    def limit(self) -> float:
        """`trust`, or what its mask begins at."""
        return self.trust if self.trust is not None else {"kl": 0.05}.get(self.mask, 0.2)

    @property
    def lowest(self) -> float:
        return self.band[0] if self.band is not None else {"band": 0.5}.get(self.mask, 0.8)

    @property
    def highest(self) -> float:
        return self.band[1] if self.band is not None else {"band": 5.0}.get(self.mask, 1.28)

    @property
    def features(self) -> tuple[str, ...]:
        """Counters that a run which set these switches leaves at more than zero."""
        default = LossConfig()
        chosen = {
            "formula_tokens": self.formula != default.formula,
            "segment_weighted_tokens": self.weight != default.weight,
            "capped_tokens": self.importance_cap != default.importance_cap and not math.isinf(self.importance_cap),
            "floored_tokens": self.importance_floor > 0,
            "masked_tokens": self.mask != "off" and (self.mask, self.trust) != (default.mask, default.trust),
            "gated_segments": self.gate is not None,
            "damped_tokens": self.damping > 0,
            "reference_tokens": self.kl is not None,
            "entropy_tokens": self.entropy_bonus != 0,
        }
        return tuple(name for name, wanted in chosen.items() if wanted)


class AdvantageConfig(Config):
    """What a rollout is compared with; `advantages` has the formulas."""

    baseline: Annotated[str, named("advantages")] = "mean"
    """`mean`: Dr. GRPO (arXiv 2503.20783). `leave_one_out`: RLOO (arXiv 2402.14740), larger by G/(G-1) in a group of
    G. Or another of the group `etude.advantages`, or package.module:function.
    """
    normalise: Literal["none", "group", "batch"] = "none"
    """What advantages are divided by: the deviation of their group's rewards (GRPO, arXiv 2402.03300), which inflates
    small differences in groups that are nearly equal, or that of all advantages of the batch.
    """
    train_overlong: bool = True
    """False: a rollout that a limit of its task cut counts in the baseline with its verdict, but its own advantage
    is 0 (`groups.drop_overlong` takes it out of the group altogether).
    """

    @property
    def features(self) -> tuple[str, ...]:
        """Counters that a run which set these switches leaves at more than zero."""
        chosen = {
            "baselined_rollouts": self.baseline != "mean",
            "normalised_rollouts": self.normalise != "none",
            "overlong_rollouts": not self.train_overlong,
        }
        return tuple(name for name, wanted in chosen.items() if wanted)


class FeedbackConfig(Config):
    """Targeted textual feedback on failed trajectories; `trainer.feedback` has the rules."""

    weight: float = Field(1.0, gt=0)
    """Of the distillation's loss, a mean over the tokens of a step's lessons, beside the policy's."""
    most: int = Field(8, ge=1)
    """Lessons of one step."""


class CreditConfig(Config):
    """How a trajectory's reward is shared among its segments; `trainer.credit` has the rules."""

    baseline: Literal["trajectory", "segment"] = "trajectory"
    """`trajectory`: every sampled token has the trajectory's advantage. `segment`: each segment is compared with those
    at the same place in the trajectories of its group that came as far."""
    mask_summaries: bool = False
    """Leave the tokens of summaries out of the loss: the ablation that says what training them is worth."""
    feedback: FeedbackConfig | None = None
    """Beside the reward: hints on the message that went wrong, distilled into the policy that has none."""

    @property
    def needs_segments(self) -> bool:
        """Whether it would have no effect on sessions of one segment."""
        return self.baseline != "trajectory" or self.mask_summaries

    @property
    def features(self) -> tuple[str, ...]:
        """Counters that a run which set these switches leaves at more than zero."""
        return ("lessons", "lesson_tokens") if self.feedback is not None else ()


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
    ranks: int = Field(1, ge=1)
    """Processes that share a step's pieces and the publishing of its version. The weights' bits do not depend on it; a
    batch of fewer pieces (`piece_tokens`) than ranks leaves some of them idle."""

    @property
    def features(self) -> tuple[str, ...]:
        """Counters that a run which changed the algorithm leaves at more than zero: an option without effect fails."""
        return self.loss.features + self.advantages.features + self.credit.features


class FinetuneConfig(Config):
    """The control: the same optimizer family, a schedule that fits its budget."""

    optimizer: OptimizerConfig = OptimizerConfig(lr=0.01, scalar_lr=1e-3)
    tokens_per_step: int = 4096
    warmup_share: float = 0.03
    balance: float = 0.01
    observation_weight: float = 0.0
    gradient_clip: float = 1.0
    threads: int = 2
