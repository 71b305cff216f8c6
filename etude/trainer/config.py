"""What the trainer is told. Apart from the trainer itself, so that reading a recipe does not load torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, get_args

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from etude.config import Config
from etude.errors import ConfigError
from etude.plugins import named

if TYPE_CHECKING:
    from etude.models.config import ModelConfig


Keep = Literal["device", "host"]
MOST_RANKS = 1 << 14
"""Some times what anybody has trained with: a dry run of more would lay them out for minutes."""
Threads = Annotated[int, Field(ge=1, le=1024)]


class OptimizerConfig(Config):
    """Which optimizer, and how fast."""

    name: Literal["muon", "adamw"] = "muon"
    """`muon`: Muon for matrices and AdamW for the rest. `adamw`: AdamW for all."""
    lr: float = Field(0.02, ge=0, allow_inf_nan=False)
    """Learning rate of the matrices: Muon's, or AdamW's when that has them."""
    scalar_lr: float = Field(3e-3, ge=0, allow_inf_nan=False)
    """AdamW's learning rate for embeddings, norms and routers beside Muon."""
    momentum: float = Field(0.95, ge=0, lt=1)
    """Muon's."""
    format: Literal["fp32", "bf16"] = "fp32"
    """What momentum and moments are kept in between steps."""
    keep: Keep = "device"
    """Where they are between steps: on the device, or on the host, from where those of one parameter at a time are
    brought to be updated. That saves a device up to 8 bytes a parameter, for the way there and back each step."""
    eps: float = Field(1e-8, gt=0, allow_inf_nan=False)
    """AdamW's, of all that it trains, beside Muon too: a parameter whose gradients are mostly smaller moves less."""
    betas: ClassVar[tuple[float, float]] = (0.9, 0.98)
    """AdamW's: runs are short, and a second moment over a thousand steps would never settle."""
    weight_decay: ClassVar[float] = 0.0
    """A policy is to stay near what it was, and decay pulls it elsewhere."""

    def idle(self) -> dict[str, str]:
        return dict.fromkeys(("scalar_lr", "momentum") if self.name == "adamw" else (), 'with name = "adamw"')


class GateConfig(Config):
    """The sequence gate: a segment whose geometric-mean importance weight leaves the band is not trained on. Bands in
    the literature run from 1% to a factor of 2: `gate_p01` and `gate_p99` in a run's own metrics say where to put it.
    """

    band: tuple[float, float] = (0.99, 1.01)
    """Where it begins and ends."""
    max_rejected: ClassVar[float] = 0.05
    """A step that rejects a larger share of its segments raises the alarm: `gate_alarm` in its metrics."""
    patience: ClassVar[int] = 8
    """Steps in a row under alarm that end the run: fewer can be chance."""

    @model_validator(mode="after")
    def _holds_one(self) -> GateConfig:
        if not 0 < self.low < 1 < self.high:
            raise ValueError(f"band = {self.band}: must hold 1, the weight of a segment whose policy has not moved")
        return self

    @property
    def low(self) -> float:
        return self.band[0]

    @property
    def high(self) -> float:
        return self.band[1]


class KLConfig(Config):
    """A pull towards the model that training began with, of which a frozen copy is kept."""

    weight: float = Field(1e-3, gt=0)
    """How hard it pulls."""
    estimator: Literal["k1", "k2", "k3"] = "k1"
    """With d = logp - reference logp. k1: d is taken from the token's advantage. k2: d^2 / 2 is added to the loss. k3:
    exp(-d) - 1 + d is. All have the importance weights of the policy gradient: k1 and k2 have the gradient of the KL
    divergence as far as these are not truncated, k3 that of the divergence the other way round."""


MaskName = Literal["tv", "kl", "ratio", "band", "off"]


class LossOptions(dict[str, float]):
    """The numbers that a recipe gives to a formula; one that it lacks is named where the formula reads it."""

    def __missing__(self, name: str) -> float:
        raise ConfigError(
            f"trainer.loss.options: the formula reads `{name}`, which the recipe lacks; it has "
            f"{', '.join(sorted(self)) or 'none'}. Add {name} = NUMBER there"
        )


class LossConfig(Config):
    """The switches of `losses.policy_loss`, whose docstring has the formula."""

    formula: Annotated[str, named("losses")] = "policy"
    """The loss: `policy`, another of the group `etude.losses`, or package.module:function. Another reads `normaliser`
    and `options`, and refuses the switches of `policy`."""
    options: Annotated[Mapping[str, float], AfterValidator(LossOptions)] = LossOptions()
    """Numbers for a formula that is not Etude's own, by name; each formula says which it takes."""
    weight: Literal["token", "segment"] = "token"
    """`segment`: one importance weight a segment, the geometric mean of its tokens' (GSPO, arXiv 2507.18071)."""
    importance_cap: float = Field(2.0, gt=0)
    """c of the formula; inf truncates nothing."""
    importance_floor: float = Field(0.0, ge=0)
    """f of the formula; cap and floor near 1 make it CISPO's (arXiv 2506.13585)."""
    mask: MaskName = "tv"
    """The trust region: which tokens get no gradient because the policy has moved too far at them. `losses` has the
    formulas; `off` lets every token through."""
    band: float | tuple[float, float] | None = None
    """What the mask lets through: a number for `tv` (a probability) and `kl` (nats), the lowest and highest weight for
    `ratio` and `band`; None: 0.2, 0.05, (0.8, 1.28) and (0.5, 5)."""
    gate: GateConfig | None = None
    """Leaves whole segments out beside it; None: none."""
    normaliser: Literal["constant", "trajectory", "prompt"] = "constant"
    """What weighs the same, however long it is: every token, every trajectory (`trajectory`), or every group (`prompt`;
    ScaleRL, arXiv 2510.13786)."""
    token_budget: ClassVar[int] = 8192
    """What tokens that weigh the same are divided by: a scale, which neither optimizer knows."""
    kl: KLConfig | None = None
    """A pull towards the first policy; None: none."""
    entropy_bonus: float = 0.0
    """Weight of the policy's entropy, a push to keep sampling broadly."""

    def idle(self) -> dict[str, str]:
        if self.formula == "policy":
            found = {"options": 'with formula = "policy", which has its switches beside it'}
        else:
            others = LossConfig.model_fields.keys() - {"formula", "options", "normaliser"}
            why = f"with formula = {self.formula!r}, whose own switches go under options"
            found = dict.fromkeys(sorted(others), why)
        if self.mask == "off":
            found.setdefault("band", 'with mask = "off"')
        return found

    @model_validator(mode="after")
    def _checked(self) -> LossConfig:
        self._check_band()
        if self.importance_floor >= self.importance_cap:
            raise ValueError(f"importance_floor = {self.importance_floor}: is not below importance_cap")
        return self

    def _check_band(self) -> None:
        wanted = {"tv": float, "kl": float, "ratio": tuple, "band": tuple}.get(self.mask)
        if self.band is not None and not isinstance(self.band, wanted or ()):
            form = "one number" if wanted is float else "[lowest, highest]"
            raise ValueError(f"band = {self.band}: mask = {self.mask!r} wants {form}")
        if wanted is tuple and not self.lowest < 1 < self.highest:
            raise ValueError(f"band = {self.band}: must hold 1, the weight of a token whose policy has not moved")
        if wanted is float and self.limit <= 0:
            raise ValueError(f"band = {self.band}: must be above 0")
        if self.mask == "tv" and self.limit >= 1:
            raise ValueError(f'band = {self.band}: no probability moves as far; mask = "off" turns the mask off')

    @property
    def trains_entropy(self) -> bool:
        """Whether gradients are to flow through entropies: here by the bonus, and another formula may use them."""
        return self.entropy_bonus != 0 or self.formula != "policy"

    @property
    def limit(self) -> float:
        """How far the masks `tv` and `kl` let a token's probability move."""
        return self.band if isinstance(self.band, float) else {"kl": 0.05}.get(self.mask, 0.2)

    @property
    def lowest(self) -> float:
        return self.band[0] if isinstance(self.band, tuple) else {"band": 0.5}.get(self.mask, 0.8)

    @property
    def highest(self) -> float:
        return self.band[1] if isinstance(self.band, tuple) else {"band": 5.0}.get(self.mask, 1.28)

    @property
    def features(self) -> tuple[str, ...]:
        """Counters that a run which set these switches leaves at more than zero."""
        default = LossConfig()
        chosen = {
            "formula_tokens": self.formula != default.formula,
            "segment_weighted_tokens": self.weight != default.weight,
            "capped_tokens": self.importance_cap != default.importance_cap and not math.isinf(self.importance_cap),
            "floored_tokens": self.importance_floor > 0,
            "masked_tokens": self.mask != "off" and (self.mask, self.band) != (default.mask, default.band),
            "gated_segments": self.gate is not None,
            "reference_tokens": self.kl is not None,
            "entropy_tokens": self.entropy_bonus != 0,
            "reshared_tokens": self.normaliser != default.normaliser,
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
    overlong: Literal["train", "leave"] = "train"
    """`leave`: a rollout that a limit of its task cut counts in the baseline with its verdict, but its own advantage
    is 0 (`groups.overlong` takes it out of the group altogether).
    """

    @property
    def features(self) -> tuple[str, ...]:
        """Counters that a run which set these switches leaves at more than zero."""
        chosen = {
            "baselined_rollouts": self.baseline != "mean",
            "normalised_rollouts": self.normalise != "none",
            "overlong_rollouts": self.overlong == "leave",
        }
        return tuple(name for name, wanted in chosen.items() if wanted)


class FeedbackConfig(Config):
    """Targeted textual feedback on failed trajectories; `trainer.feedback` has the rules."""

    weight: float = Field(1.0, gt=0)
    """What a token of a hint weighs in the loss, beside one sampled token of advantage 1."""
    most: ClassVar[int] = 8
    """Hints of one step: each costs two forwards, and a step is to stay about the reward."""


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
        taught = ("hints", "hint_tokens") if self.feedback is not None else ()
        return (*taught, "recredited_segments") if self.baseline == "segment" else taught


AdaptedKind = Literal["attention", "dense", "experts"]
MeshAxis = Literal["replicate", "fsdp", "ep", "cp"]
MESH_AXES: tuple[MeshAxis, ...] = get_args(MeshAxis)
_Count = Annotated[int, Field(ge=1, le=MOST_RANKS, strict=True)]
_Axes = Annotated[Mapping[MeshAxis, _Count], Field(min_length=1), Tag("Mapping")]
RanksChoice = Annotated[
    Annotated[_Count, Tag("int")] | _Axes,
    Discriminator(lambda given: "Mapping" if isinstance(given, Mapping) else "int"),
]
"""Ranks that hold all weights each, or the axes of a mesh; an error is said of the one that was meant."""
_FROZEN = r"^(embeddings|head|norms|routers|attention|dense|experts|(-?\d+)?:(-?\d+)?)$"
Frozen = tuple[Annotated[str, Field(pattern=_FROZEN)], ...]
"""What is not trained, as in `TrainerConfig.frozen`."""


class TrainerConfig(Config):
    """One step of reinforcement learning."""

    optimizer: OptimizerConfig = OptimizerConfig()
    loss: LossConfig = LossConfig()
    advantages: AdvantageConfig = AdvantageConfig()
    credit: CreditConfig = CreditConfig()
    router_replay: bool | None = None
    """Train each token with the experts that its sampler chose for it, where they are plausible. None: where the model
    has routers."""
    replay_margin: float = 4.0
    """Plausibility filter: how far, in router logits, a replayed expert may lie below the router's own last choice."""
    warmup_steps: int = 0
    """Over so many steps the learning rate rises to its value."""
    final_lr_share: float = 1.0
    """The learning rate falls linearly to this share of itself over the run's budget; 1 keeps it constant."""
    lora: Mapping[AdaptedKind, Annotated[int, Field(ge=1)]] | None = Field(None, min_length=1)
    """Train low-rank adapters in place of the weights (LoRA, arXiv 2106.09685), by the kind of their matrices: the rank
    of each. `{attention = 8, dense = 8}` leaves experts as they are. A version then holds the adapters alone, and
    engines serve them merged. None: the weights themselves are trained."""
    frozen: Frozen = ()
    """What no step may move: `embeddings` (with a head that is tied to them), `head`, `norms`, `routers`, `attention`,
    `dense` and `experts` for what is called so in all layers, and layers as Python's slices: `:22` the first 22, `:-8`
    all but the last 8. With `lora` all but the adapters is frozen anyway: it then takes layers alone."""
    divergence_target: float | None = Field(None, gt=0)
    """A step on a batch whose k3 (an estimate of its divergence from what sampled it) is larger takes a learning
    rate smaller in proportion: a policy that has run ahead waits for samples of its own. It is the mean without the
    thousandth of the tokens that have the largest, as one token can outweigh all others. None: no step does."""
    gradient_clip: float = Field(4.0, gt=1)
    """A gradient longer than so many times the median norm of the last 16 steps is cut to that; inf: none is. A fixed
    limit would do nothing, as neither optimizer knows a gradient's scale."""
    piece_tokens: int = Field(8192, ge=2, le=1 << 22)
    """Tokens of one forward and backward."""
    parity_tokens: int = Field(1024, ge=0)
    """Tokens a step, context included, that are recomputed with the older version that sampled them, so that every step
    says whether trainer and sampler agree; 0: none."""
    threads: Threads = 1
    """Of the arithmetic, in each rank."""
    ranks: RanksChoice = 1
    """Processes that share a step's pieces and the publishing of its version. A number: each holds all weights, whose
    bits do not depend on it. A table, as `{fsdp = 2, ep = 2}`: a mesh of as many as its product, each of which holds
    its share of the weights (docs/ranks.md). A batch of fewer pieces (`piece_tokens`) than ranks leaves some idle."""
    format: Literal["fp32", "bf16"] = "fp32"
    """What the ranks of a mesh gather weights in and compute with; masters and sums of gradients are fp32."""

    @property
    def mesh(self) -> Mapping[MeshAxis, int] | None:
        """How long the axes of the ranks' mesh are; None where each rank holds all."""
        return None if isinstance(self.ranks, int) else self.ranks

    @property
    def processes(self) -> int:
        return self.ranks if isinstance(self.ranks, int) else math.prod(self.ranks.values())

    def idle(self) -> dict[str, str]:
        found = {"replay_margin": "with router_replay = false"} if self.router_replay is False else {}
        if self.mesh is None:
            found["format"] = "where each rank holds all weights (ranks is a number)"
        if self.lora is not None and self.optimizer.name == "muon":
            beside = ("optimizer.scalar_lr", "optimizer.eps")
            found |= dict.fromkeys(beside, "with lora, whose matrices are all Muon's")
        return found

    @model_validator(mode="after")
    def _few_enough(self) -> TrainerConfig:
        if self.processes > MOST_RANKS:
            raise ValueError(f"ranks: are {self.processes} in all; give at most {MOST_RANKS}")
        return self

    @model_validator(mode="after")
    def _layers_of_adapters(self) -> TrainerConfig:
        if self.lora is not None and (kinds := [entry for entry in self.frozen if ":" not in entry]):
            raise ValueError(f"frozen: {kinds[0]!r} has no effect with lora, which says what is trained; leave it out")
        return self

    def replays(self, model: ModelConfig) -> bool:
        """Whether routes are replayed with this model. Raises ConfigError where they are to be and it has none."""
        if self.router_replay and not model.moe_layers:
            raise ConfigError("trainer.router_replay: the model has no routers to replay; leave the key out")
        return self.router_replay is not False and bool(model.moe_layers)

    @property
    def features(self) -> tuple[str, ...]:
        """Counters that a run which changed the algorithm leaves at more than zero: an option without effect fails."""
        clipped = ("clipped_steps",) if self.gradient_clip < TrainerConfig().gradient_clip else ()
        adapted = ("adapters_moved",) if self.lora is not None else ()
        frozen = ("frozen_weights",) if self.frozen else ()
        offloaded = ("offloaded_bytes",) if self.optimizer.keep == "host" else ()
        of_step = clipped + adapted + frozen + offloaded
        return self.loss.features + self.advantages.features + self.credit.features + of_step


class FinetuneConfig(Config):
    """The control: the same optimizer family, a schedule that fits its budget."""

    optimizer: OptimizerConfig = OptimizerConfig(lr=0.01, scalar_lr=1e-3)
    tokens_per_step: int = 4096
    warmup_share: float = 0.03
    balance: float = 0.01
    observation_weight: float = 0.0
    gradient_clip: float = Field(4.0, gt=1)
    """As `TrainerConfig.gradient_clip`."""
    threads: Threads = 1
    """Two wait for each other in a small model: it is then slower by the clock, too."""
