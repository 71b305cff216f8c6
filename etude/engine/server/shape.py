"""The parts that answers of several routes have in common.

Owns usage, log-probabilities, routes and versions as they stand in JSON, in OpenAI's names and vLLM's. Pure functions.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from etude.engine.running import Sampled
from etude.engine.server.flight import Choice
from etude.models.chat import ChatRenderer
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
    return chat.tokenizer.decode([token], skip_special_tokens=False)


def chat_logprobs(chat: ChatRenderer, tokens: Sequence[Sampled]) -> dict[str, Any]:
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


def weight_versions(tokens: Sequence[Sampled]) -> list[dict[str, int]]:
    """Which weights sampled which tokens, as spans from `start` up to `end`."""
    spans: list[dict[str, int]] = []
    for place, each in enumerate(tokens):
        if spans and spans[-1]["version"] == each.version:
            spans[-1]["end"] = place + 1
        else:
            spans.append({"version": each.version, "start": place, "end": place + 1})
    return spans


def extras(choice: Choice, ids: bool, routes: bool) -> dict[str, Any]:
    """What a whole choice has beyond OpenAI's fields, as far as it was asked for."""
    found: dict[str, Any] = {}
    if ids:
        found["token_ids"] = [each.token for each in choice.tokens]
        found["weight_versions"] = weight_versions(choice.tokens)
    return found | _routes(choice, routes)


def _routes(choice: Choice, asked: bool) -> dict[str, Any]:
    if not asked:
        return {}
    return {"routed_experts": routed_experts(choice.completion.routed_experts) if choice.completion else None}
