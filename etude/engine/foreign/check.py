"""Whether a server serves the weights it was told to: its log-probabilities against our own forward.

Owns the probe, a fixed prompt of random tokens, and the verdict. A server's word is not enough: there are engines that
answer 200 to an update and go on with weights that are neither the old nor the new ones. Two questions are asked. Are
the log-probabilities ours, but for rounding? And is the difference to the version before, position by position, the one
that the update makes? The second finds weights that were not taken even where an update is far smaller than rounding,
for it looks along one direction only. Talks to: the decoder. Never to a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from etude.engine.foreign.dialect import ForeignCompletion
from etude.errors import WeightError
from etude.harness.sampler import SampleRequest
from etude.models.attention import PackedAttention
from etude.models.decoder import Decoder
from etude.models.state import load_bits
from etude.records import Version

_SEED = 20_261_121
_SAMPLED = 8
_TEMPERATURE = 0.7
_CERTAIN = 6.0
"""Standard deviations between an update that was taken and one that was not, before the second question is answered."""


@dataclass(frozen=True)
class CheckResult:
    """What a passed check saw. `taken` is the share of the update that is served, near 1; None where rounding hides
    it, or there was no version before.
    """

    mean_abs: float
    max_abs: float
    taken: float | None


class WeightCheck:
    """Holds a decoder of its own, and what the version before was expected to say. One check at a time."""

    def __init__(self, decoder: Decoder, tokens: int, tolerance: float) -> None:
        self.decoder, self._tolerance = decoder, tolerance
        tokens = min(tokens, decoder.config.max_context - _SAMPLED)
        prompt = np.random.default_rng(_SEED).integers(0, decoder.config.vocab_size, tokens)
        self.request = SampleRequest("weight check", tuple(prompt.tolist()), _SAMPLED, frozenset(), _TEMPERATURE, 1)
        self._before: np.ndarray | None = None

    def load(self, bits: Mapping[str, np.ndarray]) -> None:
        """What the server is expected to serve next."""
        load_bits(self.decoder, bits)

    def compare(self, answer: ForeignCompletion, version: Version, origin: str) -> CheckResult:
        """Raises WeightError unless the answer is what the loaded weights say."""
        prompt, sampled = self.request.prompt_ids, answer.token_ids
        if len(answer.prompt_logprobs) != len(prompt) - 1 or not sampled:
            raise WeightError(
                f"{origin}: the check of version {version} asked for {len(prompt) - 1} log-probabilities of its prompt "
                f"and {_SAMPLED} sampled tokens, and got {len(answer.prompt_logprobs)} and {len(sampled)}"
            )
        ours = logits_of(self.decoder, [*prompt, *sampled])
        expected = chosen(ours[: len(prompt) - 1], prompt[1:])
        served = np.array(answer.prompt_logprobs)
        difference = np.abs(served - expected)
        if not difference.mean() <= self._tolerance:  # a NaN fails too
            raise WeightError(
                f"{origin}: what is served as version {version} is not that version: log-probabilities differ by "
                f"{difference.mean():.3g} on average from our own forward ({difference.max():.3g} at most), "
                f"engine.tolerance is {self._tolerance:.3g}"
            )
        taken = self._taken(served, expected)
        if taken is not None and not 0.5 < taken < 1.5:
            raise WeightError(
                f"{origin}: version {version} was announced and {taken:.0%} of the update to it is served; the weights "
                "before are still there"
            )
        self._check_sampled(ours[len(prompt) - 1 : -1], sampled, np.array(answer.logprobs), origin)
        self._before = expected
        return CheckResult(float(difference.mean()), float(difference.max()), taken)

    def forget(self) -> None:
        """After a check that failed nobody knows what is served."""
        self._before = None

    def _taken(self, served: np.ndarray, expected: np.ndarray) -> float | None:
        """The served difference to the version before, measured along the expected one."""
        if self._before is None:
            return None
        step, moved = expected - self._before, served - self._before
        length = float(step @ step)
        if length == 0.0:
            return None
        taken = float(moved @ step) / length
        noise = moved - taken * step
        deviation = float(np.sqrt(noise @ noise / len(noise) / length))
        return taken if deviation * _CERTAIN < 1.0 else None

    def _check_sampled(self, logits: torch.Tensor, sampled: tuple[int, ...], reported: np.ndarray, origin: str) -> None:
        """Log-probabilities must be of the distribution that was sampled from: training divides by them."""
        off = np.abs(reported - chosen(logits / _TEMPERATURE, sampled)).mean()
        raw = np.abs(reported - chosen(logits, sampled)).mean()
        if off <= self._tolerance and raw > off / 4:
            return
        why = "they are not ours"
        if raw < off / 4:
            why = "they leave the temperature out; start vLLM with --logprobs-mode processed_logprobs, and SGLang "
            why += "without SGLANG_RETURN_ORIGINAL_LOGPROB"
        raise WeightError(f"{origin}: log-probabilities of sampled tokens are off by {off:.3g} on average: {why}")


@torch.no_grad()
def logits_of(decoder: Decoder, token_ids: list[int]) -> torch.Tensor:
    """fp32 logits [T, V] of one sequence, by the plain forward, on the host."""
    place, count = decoder.placement, len(token_ids)
    ids, positions = torch.tensor(token_ids, device=place.device), torch.arange(count, device=place.device)
    output = decoder(ids, positions, PackedAttention([count], place))
    return decoder.logits(output.hidden_ND).cpu()


def chosen(logits: torch.Tensor, token_ids: tuple[int, ...]) -> np.ndarray:
    """Log-probabilities of the tokens, one a row."""
    picked = logits.log_softmax(-1).gather(1, torch.tensor(token_ids)[:, None]).squeeze(1)
    return picked.double().numpy()
