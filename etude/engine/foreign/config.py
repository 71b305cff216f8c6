"""What an engine that is not ours is told: where its servers are, how it takes weights, how closely it is watched.

Owns `VllmConfig` and `SglangConfig`. No torch: a recipe is read without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from etude.engine.plugin import EngineTable

Url = Annotated[str, Field(pattern=r"^https?://[^/]+(/.*)?$")]


class ForeignConfig(EngineTable):
    """What both kinds share. Servers are started by whoever runs them; each url is one replica with all weights."""

    request_s: ClassVar[float] = 120.0
    """A request that has no result after this long fails: a long message of a large model takes a minute."""
    update_s: ClassVar[float] = 600.0
    """New weights that are not served and checked after this long are an error: a server reads a terabyte from disk."""
    probe_tokens: ClassVar[int] = 192
    """Length of the prompt whose log-probabilities are compared with our own forward after every update: enough that a
    wrong layer shows in their mean, and little to compute."""

    urls: tuple[Url, ...] = Field(min_length=1)
    """Where the servers are: each is an engine with all weights."""
    model: str | None = None
    """The name the server gives the model; None: requests name none."""
    token_file: Path | None = None
    """Holds the server's API key; None: requests carry none."""
    weights_dir: Path
    """Where new weights are written as checkpoints. The server must see it under the same path."""
    routes: bool = True
    """Whether the server returns the experts of every token; one that was asked to and does not is an error."""
    tolerance: float = Field(0.1, gt=0)
    """Largest mean |log-probability difference| there, in nats: what rounding in another engine may explain."""

    @property
    def replicas(self) -> int:
        return len(self.urls)

    @property
    def features(self) -> tuple[str, ...]:
        return ("checks", "routed_positions") if self.routes else ("checks",)


class VllmConfig(ForeignConfig):
    """`vllm serve MODEL --enable-scale-out --logprobs-mode processed_logprobs`, with VLLM_SERVER_DEV_MODE=1."""

    kind: Literal["vllm"] = "vllm"
    in_flight: Literal["keep", "wait", "abort"] = "keep"
    """What becomes of running requests when weights change: they go on with the cache they have, are waited for, or are
    sampled anew."""
    update: Literal["reload", "rebuild"] = "reload"
    """`reload` is vLLM's own reload of weights. `rebuild` is for CPU servers, whose reload serves wrong weights: they
    are started with --worker-extension-cls etude.engine.foreign.vllm_worker.Rebuild and --enforce-eager."""


class SglangConfig(ForeignConfig):
    """`python -m sglang.launch_server --model-path MODEL`, with --enable-return-routed-experts where `routes`."""

    kind: Literal["sglang"] = "sglang"
    in_flight: Literal["in_place", "retract", "abort"] = "in_place"
    """What becomes of running requests when weights change: they go on with the cache they have, are computed anew from
    their tokens so far, or are sampled anew."""
