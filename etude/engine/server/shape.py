"""The parts that answers of several routes have in common.

Owns usage, log-probabilities, routes and versions as they stand in JSON, in OpenAI's names and vLLM's. Pure functions.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from etude.engine.running import SampledToken
from etude.engine.server.bodies import Common, GenerateBody
from etude.engine.server.flight import Choice
from etude.models.chat import ChatRenderer
from etude.models.tokenizer import decode
from etude.records import Routes


def usage(choices: Sequence[Choice], prompts: int = 1) -> dict[str, Any]:
    """Tokens of a request; the choices of a prompt stand together, and count it once."""
    each = len(choices) // prompts
    prompt = sum(len(choice.request.prompt_ids) for choice in choices[::each])
    cached = sum(choice.completion.cached_tokens for choice in choices[::each] if choice.completion)
    sampled = sum(len(choice.tokens) for choice in choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def token_text(chat: ChatRenderer, token: int) -> str:
    """A token by itself, those that end a message included."""
    return decode(chat.tokenizer, [token])


def chat_logprobs(chat: ChatRenderer, tokens: Sequence[SampledToken]) -> dict[str, Any]:
    """As chat completions and responses tell them."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        text = token_text(chat, token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    content = [
        {**entry(each.token, each.logprob), "top_logprobs": [entry(*pair) for pair in each.top]} for each in tokens
    ]
    return {"content": content, "refusal": None}


def routed_experts(routes: Routes) -> str:
    """Routes [tokens - 1, layers, top_k] as base64 of a .npy file."""
    file = io.BytesIO()
    np.save(file, routes, allow_pickle=False)
    return base64.b64encode(file.getvalue()).decode("ascii")


def weight_versions(tokens: Sequence[SampledToken]) -> list[dict[str, int]]:
    """Which weights sampled which tokens, as spans from `start` up to `end`."""
    spans: list[dict[str, int]] = []
    for place, each in enumerate(tokens):
        if spans and spans[-1]["version"] == each.version:
            spans[-1]["end"] = place + 1
        else:
            spans.append({"version": each.version, "start": place, "end": place + 1})
    return spans


def sampling_mask(tokens: Sequence[SampledToken]) -> dict[str, list[int]]:
    """The tokens each one was drawn from: of the n-th, `token_ids[offsets[n] : offsets[n + 1]]`; none if from all."""
    lengths = (len(each.mask) for each in tokens)
    return {"token_ids": [token for each in tokens for token in each.mask], "offsets": [0, *accumulate(lengths)]}


def prompt_logprobs(chat: ChatRenderer, choice: Choice) -> list[dict[str, Any] | None] | None:
    """Of each token of the prompt but the first, and of the most likely ones there, by token id; None of what was
    aborted.
    """
    if choice.completion is None:
        return None

    def entry(token: int, logprob: float, rank: int) -> dict[str, Any]:
        return {"logprob": logprob, "rank": rank, "decoded_token": token_text(chat, token)}

    told: list[dict[str, Any] | None] = [None]
    for each in choice.completion.prompt_scores:
        top = {str(token): entry(token, logprob, rank + 1) for rank, (token, logprob) in enumerate(each.top)}
        told.append({str(each.token): entry(each.token, each.logprob, each.rank), **top})
    return told


def extras(choice: Choice, body: Common | GenerateBody) -> dict[str, Any]:
    """What a whole choice has beyond OpenAI's fields: as far as it was asked for, and what malformed calls were."""
    found: dict[str, Any] = {} if choice.as_written is None else {"as_written": choice.as_written}
    if isinstance(body, GenerateBody) or body.return_token_ids:
        found["token_ids"] = [each.token for each in choice.tokens]
        found["weight_versions"] = weight_versions(choice.tokens)
    if body.return_sampling_mask:
        found["sampling_mask"] = sampling_mask(choice.tokens)
    if body.return_routed_experts:
        done = choice.completion
        found["routed_experts"] = None if done is None else routed_experts(done.routed_experts)
    return found
