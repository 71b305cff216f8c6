"""Whether Etude computes a checkpoint as `transformers` does: the same logits, and the same greedy answers.

Owns the prompts, both sides' answers and what counts as the same. Both compute in fp32, one prompt at a time there and
all at once through the paged engine here. An answer may part from the other's only where its two best tokens were as
near to each other as the two sides' logits are. This package is the only one that imports transformers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from etude.engine.foreign.check import logits_of
from etude.engine.torch_engine import TorchEngine
from etude.errors import CheckpointError
from etude.harness.sampler import SampleRequest
from etude.models import files
from etude.models.chat import ChatRenderer, open_chat
from etude.models.chat_template import Message
from etude.models.decoder import Decoder
from etude.models.generation import TOKENIZER_CONFIG, read_template
from etude.models.tokenizer import encode, load_tokenizer

PROMPTS = (
    "What is the capital of France?", "Write a Python function that adds two numbers.", "Name three colours.",
    "  def f(x):\n    return", "Erkläre Rekursion in einem Satz.", "What is 7 times 8?", "List the planets.",
    "Fix this: for i in range(10) print(i)", "日本の首都は？", "Say hello.", "What does `git rebase` do?",
    "Write a haiku about rain.", "Translate 'good morning' to Spanish.", "What is the derivative of x squared?",
    "Explain what a mutex is.", "Reverse the string 'stressed'.", "Which is larger, 9.11 or 9.9?",
    "Write SQL that counts the rows of a table.", "Is 91 a prime number?", "Give a synonym of 'quick'.",
)  # fmt: skip
WITHIN, OF_SPREAD = 1e-4, 1e-5
"""How far the two sides' logits may be apart, or what share of their spread, if that is more: both are in fp32, and add
up in another order. Where a model's logits reach 40, one step of fp32 is 4e-6."""


@dataclass(frozen=True)
class Parity:
    """`gaps` are of the prompts whose answers part: how far the best token there was before the one taken."""

    prompts: int
    prompt_tokens: int
    answer_tokens: int
    logit_difference: float
    logit_spread: float
    """The largest logit less the smallest, of all prompts: what the difference is to be seen beside."""
    same_prompts: int
    """Whose chat template gave the very same tokens on both sides."""
    same_answers: int
    gaps: tuple[float, ...] = ()
    unlike: tuple[str, ...] = ()
    """Prompts that became other tokens there."""
    tokenizer: str = ""
    """The class by which transformers reads them: it may split text in another way than tokenizer.json says."""

    @property
    def ok(self) -> bool:
        ties = all(gap <= 2 * self.logit_difference for gap in self.gaps)
        near = self.logit_difference <= max(WITHIN, OF_SPREAD * self.logit_spread)
        return near and self.same_prompts == self.prompts and ties


def load_peer(directory: Path) -> Any | None:
    """The checkpoint as transformers opens it, in fp32; None where transformers is not installed."""
    try:
        import transformers
    except ImportError:
        return None
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        said = " ".join(str(error).split())[:300]
        raise CheckpointError(f"{directory}: transformers does not open it ({said})") from None
    return model.eval()


class Asked(NamedTuple):
    """The prompts' tokens as Etude makes them, and as transformers does; and what ends an answer."""

    ours: list[list[int]]
    theirs: list[list[int]]
    stops: frozenset[int]
    by: str
    """The class of the others' tokenizer."""


def prompts_of(directory: Path) -> Asked:
    """Without a template on either side they are plain text."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    tokenizer = load_tokenizer(directory)
    # of a checkpoint that names no class transformers takes the architecture's own, which splits text in its own way
    kind = AutoTokenizer if files.read_table(directory, TOKENIZER_CONFIG) else PreTrainedTokenizerFast
    theirs = cast(Any, kind.from_pretrained(directory))
    chat = _chat(directory)
    if chat is None or theirs.chat_template is None:
        ours = [encode(tokenizer, prompt) for prompt in PROMPTS]
        plain = [theirs(prompt, add_special_tokens=False).input_ids for prompt in PROMPTS]
        return Asked(ours, plain, frozenset() if chat is None else chat.stop_ids, type(theirs).__name__)
    by = type(theirs).__name__
    asked = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    told = [theirs.apply_chat_template(each, add_generation_prompt=True, return_dict=False) for each in asked]
    return Asked([chat.conversation([Message("user", prompt)]) for prompt in PROMPTS], told, chat.stop_ids, by)


@torch.no_grad()
def compare(decoder: Decoder, engine: TorchEngine, peer: Any, asked: Asked, answer_tokens: int) -> Parity:
    """Of the same checkpoint on both sides."""
    ours, theirs, stops, by = asked
    answers = asyncio.run(_answers(engine, ours, stops, answer_tokens))
    difference = spread = 0.0
    same, gaps = 0, []
    for ids, answer in zip(ours, answers, strict=True):
        both = ids + list(answer)
        own, other = logits_of(decoder, both), peer(torch.tensor([both])).logits[0]
        for side, logits in (("Etude", own), ("transformers", other)):
            if not logits.isfinite().all():  # no comparison with it is true, and none would be false
                raise CheckpointError(f"logits by {side} are no numbers; take a copy of the weights that is whole")
        difference = max(difference, (own - other).abs().max().item())
        spread = max(spread, (other.max() - other.min()).item())
        gap = _first_gap(other[len(ids) - 1 : -1], answer)
        same += gap is None
        gaps += [] if gap is None else [gap]
    unlike = tuple(said for said, a, b in zip(PROMPTS, ours, theirs, strict=True) if a != list(b))
    return Parity(
        prompts=len(ours),
        prompt_tokens=sum(map(len, ours)),
        answer_tokens=sum(map(len, answers)),
        logit_difference=difference,
        logit_spread=spread,
        same_prompts=len(ours) - len(unlike),
        same_answers=same,
        gaps=tuple(gaps),
        unlike=unlike,
        tokenizer=by,
    )


def _first_gap(logits: torch.Tensor, answer: Sequence[int]) -> float | None:
    """None where every token of the answer is the one that these logits put first: then greedy decoding gives it."""
    taken = torch.tensor(list(answer))
    best = logits.max(dim=-1)
    parted = (best.indices != taken).nonzero()
    if not len(parted):
        return None
    at = int(parted[0])
    return (best.values[at] - logits[at, taken[at]]).item()


async def _answers(
    engine: TorchEngine, prompts: Sequence[Sequence[int]], stops: frozenset[int], tokens: int
) -> list[tuple[int, ...]]:
    asked = [
        engine.sample(SampleRequest(f"parity-{at}", tuple(ids), tokens, stops, 0.0, 1))
        for at, ids in enumerate(prompts)
    ]
    return [reply.token_ids for reply in await asyncio.gather(*asked)]


def _chat(directory: Path) -> ChatRenderer | None:
    """None for a base model that nobody talks to. A template that does not work is an error, as it is to a server."""
    try:
        return open_chat(directory)
    except CheckpointError:
        if read_template(directory) is not None:
            raise
        return None
