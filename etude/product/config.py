"""How a user has set up their agent.

Owns `AgentConfig`, where its file is, and how the commands read it. The harness's own defaults are those of training;
the product's are here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from etude.config import Config, check_names, load_recipe, parse, read_toml
from etude.deadlines import DeadlineConfig
from etude.environments.local import WorkspaceConfig
from etude.errors import ConfigError
from etude.harness.config import HarnessConfig, SummaryConfig
from etude.harness.cost import Price
from etude.harness.endpoint import EndpointConfig
from etude.harness.fleet import FleetConfig, RankingConfig
from etude.harness.mcp import McpConfig
from etude.product.hooks import HookConfig
from etude.records import Limits
from etude.search.others import SearchConfig

LEAST_CONTEXT = 4096
"""The shortest context, in tokens, that the product's ten tools and a summary fit into."""


class AgentConfig(Config):
    """One agent: its model, what it is given, and what it may use."""

    endpoint: EndpointConfig
    context_tokens: int = Field(128_000, ge=256)
    """The model's context. A session is summarised when it has used four fifths of it; below LEAST_CONTEXT it has no
    room for that, and the session ends where its context does."""
    images: bool = False
    """Whether the model sees images: `read_file` then shows it PNG, JPEG, GIF and WebP files."""
    max_turns: int = Field(200, ge=1)
    """Of one prompt."""
    max_sampled_tokens: int = Field(5_000_000, ge=1)
    """Of a whole session: what a runaway costs at most."""
    wall_s: float = Field(4 * 3600.0, gt=0)
    """Of one prompt: so long may its tools run, in all. Waiting for the model or for your answer does not count."""
    prices: dict[str, Price] = {}
    """By the model's name, for a million tokens: `[prices.qwen3-coder]`, `input = 0.3`. None is known but yours."""
    currency: str = "$"
    """The sign before what prices come to."""
    harness: HarnessConfig = HarnessConfig(toolset="agent", max_turn_tokens=16_000)
    surroundings: bool = True
    """Whether the system prompt says where the agent works: system, date, git, network, limits. False gives a model of
    your own the prompt that it was trained with."""
    workspace: WorkspaceConfig = WorkspaceConfig()
    deadlines: DeadlineConfig = DeadlineConfig()
    mcp: McpConfig = McpConfig()
    """Servers whose tools the agent has beside its own. They are the user's to name, never a repository's."""
    hooks: tuple[HookConfig, ...] = ()
    """Commands before or after a tool's call and at a session's end, outside the sandbox. They too are the user's."""

    fleet: FleetConfig = FleetConfig()
    """Of agents side by side: what their worktrees start from and how each is made ready."""
    ranking: RankingConfig = RankingConfig()
    """What tells which of them did best."""

    search: SearchConfig = SearchConfig()
    """By whose vectors `codebase_search` finds code; without it, by Etude's own."""

    spans_to: str | None = Field(None, pattern=r"^https?://")
    """A collector of OpenTelemetry spans, in OTLP over HTTP: http://127.0.0.1:4318/v1/traces, say. None: the one that
    OTEL_EXPORTER_OTLP_ENDPOINT names, or none. Needs the extra `otel`."""
    spans_content: bool = False
    """Whether prompts, messages, arguments and results stand in the spans."""

    @model_validator(mode="before")
    @classmethod
    def _a_model_is_named(cls, raw: Any) -> Any:
        """The first thing that a new user meets, so it is said in full."""
        endpoint = raw.get("endpoint", {}) if isinstance(raw, dict) else None
        if isinstance(endpoint, dict) and (missing := [key for key in ("url", "model") if key not in endpoint]):
            said = (
                f"no model is named: endpoint.{' and endpoint.'.join(missing)} must be set. `etude init` finds one and "
                f"tries it. Or write a table [endpoint] "
                f"""to {config_file()}, with url = "http://127.0.0.1:8000/v1" (of any OpenAI-compatible server), """
                """model = "NAME" (as that server calls it) and, if it wants a key, key_env = "VARIABLE", with it; """
                "or give --endpoint URL and --model NAME"
            )
            raise PydanticCustomError("nameless", "{said}", {"said": said})
        return raw

    @property
    def limits(self) -> Limits:
        return Limits(self.max_turns, self.context_tokens, self.max_sampled_tokens, self.wall_s)

    @property
    def summarised(self) -> HarnessConfig:
        """The harness, with summaries where there is room for them."""
        if self.harness.summary or self.context_tokens < LEAST_CONTEXT:
            return self.harness
        summary = SummaryConfig(
            trigger_tokens=self.context_tokens * 4 // 5, max_tokens=min(4096, self.context_tokens // 8)
        )
        return self.harness.model_copy(update={"summary": summary})


def config_file() -> Path:
    """Below XDG_CONFIG_HOME, or ~/.config."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "etude" / "agent.toml"


def search_config() -> SearchConfig:
    """The table `[search]` of the user's own file; of what else is in it, only the names are looked at."""
    own = config_file()
    raw = read_toml(own) if own.exists() else {}
    check_names(raw, AgentConfig, str(own))
    return parse(raw.get("search", {}), SearchConfig, f"{own}: search")


def load_agent(file: Path | None, overrides: Sequence[str]) -> AgentConfig:
    """`file`, or the user's own if it is there, with other values for some keys. Its deadlines hold from now on."""
    own = config_file()
    if file is not None and not file.exists():
        raise ConfigError(f"{file}: no such file; write one with a table [endpoint], or leave it out, for {own}")
    config = load_recipe(file or (own if own.exists() else None), AgentConfig, overrides)
    config.deadlines.apply()
    return config
