"""Looks for endpoints: in the variables that providers' own clients read, and on this machine's usual ports.

Owns `Candidate` and `candidates`, and `with_own_context`, for a model that the user's file does not name. Asks each for
its list of models and for nothing else; keys are read and never told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx2

from etude.config import overridden, parse, read_toml
from etude.deadlines import scaled
from etude.errors import ConfigError
from etude.harness.endpoint import EndpointConfig
from etude.harness.endpoint.wire import NoModels, list_models
from etude.host.home import default_home
from etude.host.sockets import is_noted
from etude.product.config import LEAST_CONTEXT, AgentConfig
from etude.serving.trust import trust

_LOOK_S = 3.0
_OPENAI, _ANTHROPIC = "https://api.openai.com/v1", "https://api.anthropic.com/v1"
LOCAL: tuple[tuple[str, int], ...] = (
    ("etude serve", 8450), ("vLLM", 8000), ("llama.cpp", 8080), ("Ollama", 11434), ("SGLang", 30000),
    ("LM Studio", 1234),
)  # fmt: skip
"""Servers that speak OpenAI's protocol, and the port that each has unless it is told another."""


@dataclass(frozen=True)
class Model:
    """One that an endpoint has; `context` is its longest, in tokens, where the server says so."""

    name: str
    context: int | None = None


@dataclass(frozen=True)
class Candidate:
    """An endpoint that could be used, and how it was come by."""

    name: str
    url: str
    key_env: str = ""
    key_file: Path | None = None
    model: str = ""
    """The one that a variable names."""
    models: tuple[Model, ...] = ()
    answers: bool = False
    """Whether it told its models when it was asked."""

    def config(self, model: str) -> EndpointConfig:
        """Raises ConfigError where the address is none."""
        given = {"url": self.url, "model": model, "key_env": self.key_env, "key_file": self.key_file}
        return parse(given, EndpointConfig, origin=self.name)

    def context(self, model: str) -> int | None:
        return next((each.context for each in self.models if each.name == model), None)


async def candidates(env: Mapping[str, str], ports: Sequence[tuple[str, int]] = LOCAL) -> list[Candidate]:
    """What there is, servers of this machine first. Those of this machine that do not answer are left out; those that
    variables name are not, since their key is here."""
    local = await asyncio.gather(*(looked_at(_local(name, port)) for name, port in ports))
    named = await asyncio.gather(*map(looked_at, _named(env)))
    return [*(each for each in local if each.answers), *named]


async def looked_at(candidate: Candidate) -> Candidate:
    """The same with the models that it says it has, and with the token of `etude serve` where it is that server."""
    seen = await _asked(candidate)
    if seen.answers or candidate.key_env or candidate.key_file is not None:
        return seen
    token = _own_token(candidate)
    own = seen if token is None else await _asked(replace(candidate, key_file=token))
    return own if own.answers else seen


def _own_token(candidate: Candidate) -> Path | None:
    """The token of `etude serve`, where it is that server which listens on this machine: it has noted beside its token
    which process it is, and on which port."""
    try:
        config = candidate.config("?")
    except ConfigError:
        return None
    token, port = default_home() / "engine" / "token", urlsplit(config.url).port
    return token if config.is_local and token.exists() and port is not None and is_noted(token, port) else None


async def _asked(candidate: Candidate) -> Candidate:
    try:
        config = candidate.config(candidate.model or "?")
        key = config.read_key()
    except ConfigError:  # a key or an address that is none: found out when it is tried
        return candidate
    headers, env = {"Authorization": f"Bearer {key}"} if key else {}, not config.is_local
    if candidate.url.startswith(_ANTHROPIC) and key:
        headers |= {"x-api-key": key, "anthropic-version": "2023-06-01"}
    try:
        async with (
            asyncio.timeout(scaled(_LOOK_S)),
            httpx2.AsyncClient(headers=headers, trust_env=env, verify=trust(config.url, by_environment=env)) as client,
        ):
            models = tuple(Model(str(each["id"]), _context(each)) for each in await list_models(client, config.url))
    except (TimeoutError, NoModels):
        return candidate
    return replace(candidate, models=models, answers=True)


async def with_own_context(config: AgentConfig, file: Path) -> tuple[AgentConfig, str]:
    """The config with the context of the model it asks, where `file`, which may not be there, names another model or
    none; and what to tell the user where the context is still the other model's, or too short."""
    named = read_toml(file) if file.exists() else {}
    asked, url = config.endpoint.model, config.endpoint.url
    if named.get("endpoint", {}).get("model") == asked:
        return config, ""
    found = await looked_at(Candidate(url, url, config.endpoint.key_env, config.endpoint.key_file, asked))
    context = found.context(asked)
    if context is None:
        said = (
            f"how long the context of {asked} is, {url} does not say; the {config.context_tokens} tokens that {file} "
            "has for another model are used; --set context_tokens=N gives it its own"
        )
        return config, said if "context_tokens" in named else ""
    short = f"the context of {asked} is {context} tokens; --set harness.toolset=small gives it fewer tools, which fit"
    tight = context < LEAST_CONTEXT and config.harness.toolset == "agent"
    return overridden(config, [f"context_tokens={context}"]), short if tight else ""


def _local(name: str, port: int) -> Candidate:
    """Anybody may listen on the port of `etude serve`."""
    candidate = Candidate(name, f"http://127.0.0.1:{port}/v1")
    return replace(candidate, key_file=_own_token(candidate)) if name == LOCAL[0][0] else candidate


def _named(env: Mapping[str, str]) -> list[Candidate]:
    """By OpenAI's and Anthropic's variables. An address without a key is a server that wants none."""
    found = []
    for prefix, usual in (("OPENAI", _OPENAI), ("ANTHROPIC", _ANTHROPIC)):
        key = f"{prefix}_API_KEY" if env.get(f"{prefix}_API_KEY") else ""
        url = env.get(f"{prefix}_BASE_URL") or env.get(f"{prefix}_API_BASE") or ""
        if key or url:
            url = url.rstrip("/") or usual
            if prefix == "ANTHROPIC" and not url.endswith("/v1"):  # its own clients add it
                url += "/v1"
            found.append(Candidate(f"${key or f'{prefix}_BASE_URL'}", url, key, model=env.get(f"{prefix}_MODEL", "")))
    return found


def _context(model: Mapping[str, object]) -> int | None:
    """vLLM, SGLang and `etude serve` say it in one way, llama.cpp in another."""
    meta = model.get("meta")
    said = model.get("max_model_len") or model.get("context_length")
    said = said or (meta.get("n_ctx") or meta.get("n_ctx_train") if isinstance(meta, dict) else None)
    return said if isinstance(said, int) and said > 0 else None
