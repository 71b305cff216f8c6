"""`etude models check`: one report on a checkpoint, from the parts beside this file.

Owns the order (what is measured comes before transformers fills the memory), the names in the report and its text.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from etude.engine.cache_size import available_bytes
from etude.engine.check.memory import GIB, Estimate, estimate
from etude.engine.check.parity import PROMPTS, Parity, compare, load_peer, prompts_of
from etude.engine.check.speed import Speed, Workload, of_engine, of_peer
from etude.engine.config import EngineConfig
from etude.engine.several import one_thread
from etude.engine.torch_engine import TorchEngine
from etude.errors import ConfigError
from etude.models.checkpoint import family_of, load_checkpoint
from etude.models.shipped import model_at
from etude.models.size import parameters_of

ANSWER_TOKENS = 24
_NO_PEER = "transformers is not installed, so nothing was compared: pip install transformers"


@dataclass(frozen=True)
class Report:
    """What was found. `parity` and `peer` are None where transformers is not installed."""

    directory: str
    architecture: str
    parameter_count: int
    speed: Speed
    peer: Speed | None
    parity: Parity | None
    held: int
    """Bytes that the engine was seen to hold when all sequences had run."""
    estimate: Estimate

    @property
    def ok(self) -> bool:
        return self.parity is None or self.parity.ok

    def as_json(self) -> dict[str, Any]:
        """For programs: figures by the names of docs/json.md."""
        parity = {} if self.parity is None else asdict(self.parity)
        peer = {} if self.peer is None else {"peer_prefill": self.peer.prefill, "peer_decode": self.peer.decode}
        return {
            **{name: getattr(self, name) for name in ("directory", "architecture", "parameter_count", "ok")},
            **parity,
            "prefill": self.speed.prefill,
            "decode": self.speed.decode,
            **peer,
            "engine_bytes": self.held,
            "engine_bytes_estimated": self.estimate.engine,
            "training_bytes_estimated": self.estimate.training,
            "free_bytes": self.estimate.free,
            "trains": self.estimate.trains,
            "most_parameters": self.estimate.most_parameters,
            "remarks": [] if self.parity else [_NO_PEER],
        }

    def text(self) -> str:
        """For people."""
        lines = [f"{self.directory}: {self.architecture}, {self.parameter_count / 1e6:,.1f}M parameters"]
        lines += [f"note: {_NO_PEER}"] if self.parity is None else _said(self.parity)
        for name, speed in (("etude", self.speed), ("transformers", self.peer)):
            if speed is not None:
                rates = f"{speed.prefill:,.0f} of prompts, {speed.decode:,.0f} of answers"
                lines.append(f"tokens a CPU-second, 16 side by side, {name}: {rates}")
        lines.append(f"memory of an engine: {self.held / GIB:.2f} GiB held, {self.estimate.engine / GIB:.2f} estimated")
        for name, needed in self.estimate.training.items():
            fits = "fits" if self.estimate.trains[name] else "does not fit"
            most = f"at most about {self.estimate.most_parameters[name] / 1e6:,.0f}M parameters do"
            lines.append(
                f"training all of it with {name}, estimated: {needed / GIB:.1f} GiB, which {fits} the "
                f"{self.estimate.free / GIB:.1f} GiB free ({most})"
            )
        return "\n".join(lines)


def check(directory: Path, answer_tokens: int = ANSWER_TOKENS, load: Workload | None = None) -> Report:
    """Raises ConfigError for what is no checkpoint's directory, CheckpointError for one that is not understood."""
    with one_thread():
        return _checked(model_at(directory), answer_tokens, load)


def _checked(directory: Path, answer_tokens: int, load: Workload | None) -> Report:
    free, before = available_bytes(), psutil.Process().memory_info().rss
    decoder, _ = load_checkpoint(directory)
    load = load or Workload(decoder.config.vocab_size)
    engine = TorchEngine(decoder, EngineConfig())
    try:
        if load.prompt_tokens + load.new_tokens > engine.max_context:
            raise ConfigError(f"{directory}: a context of {engine.max_context} tokens is too short to be measured")
        speed = of_engine(engine, load)
        held = psutil.Process().memory_info().rss - before
        peer = load_peer(directory)
        parity = None if peer is None else compare(decoder, engine, peer, prompts_of(directory), answer_tokens)
    finally:
        engine.close()
    return Report(
        directory=str(directory),
        architecture=family_of(decoder.config).architecture,
        parameter_count=parameters_of(decoder.config),
        speed=speed,
        peer=None if peer is None else of_peer(peer, load),
        parity=parity,
        held=held,
        estimate=estimate(decoder.config, free),
    )


def _said(parity: Parity) -> list[str]:
    apart = f"{parity.logit_difference:.1e} apart at the most, of a spread of {parity.logit_spread:.0f}"
    lines = [
        f"logits of {parity.prompt_tokens + parity.answer_tokens:,} tokens beside transformers, in fp32: {apart}",
        f"greedy answers that are the same: {parity.same_answers} of {parity.prompts}",
    ]
    if parity.same_prompts < parity.prompts:
        lines.append(
            f"prompts that become the same tokens: {parity.same_prompts} of {len(PROMPTS)}; transformers reads "
            f"{parity.unlike[0]!r} otherwise, by its {parity.tokenizer}, and Etude by tokenizer.json as it stands"
        )
    if parity.gaps:
        lines.append(
            f"where answers part, the two best tokens were apart by {', '.join(f'{g:.1e}' for g in parity.gaps)}"
        )
    if not parity.ok:
        lines.append("so transformers does not compute this checkpoint as Etude does, and other servers may not")
    return lines
