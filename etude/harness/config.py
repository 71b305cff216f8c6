"""What an agent is given: its tools, and how long its messages, answers and contexts may be.

Owns `HarnessConfig` and `SummaryConfig`. Both are part of what a model was trained with, so a recipe contains them. The
defaults are those of training; the product has its own.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, model_validator

from etude.config import Config
from etude.errors import ConfigError
from etude.harness.tools import AGENT_ONLY, TOOLSETS, WITHOUT_COMMANDS, Tool, ToolConfig
from etude.harness.tools.delay import Delay, delayed
from etude.plugins import find, known
from etude.search import index_version
from etude.search.embedder import Embedder


class SummaryConfig(Config):
    """When a session that outgrows its context is summarised by its own model, and how long a summary may be."""

    trigger_tokens: int = Field(ge=64)
    """A context this long is summarised before its next turn; one without room for another turn and a summary is too,
    whatever this says."""
    max_tokens: int = Field(2048, ge=16)
    """Longest summary, with the thinking before it."""
    request: str = ""
    """What the model is asked; empty: Etude's own words (`harness.summary.REQUEST`), for which a very small model has
    neither the room nor the English."""
    history: bool = True
    """Whether everything said before a cut can be read in the sandbox; else the summary is all there is to remember
    by."""


class HarnessConfig(Config):
    """What the agent is given."""

    toolset: Literal["small", "agent"] = "small"
    """Six tools with short answers, for a small model's context; or the product's form whole: its ten tools, the rules
    of the project's AGENTS.md files, permissions, and marks in the place of secrets."""
    tools: tuple[str, ...] = Field(default_factory=lambda data: _names(data.get("toolset", "small")))
    """Which tools of the set there are; the prompt lists them in the set's order, whatever the order here. Behind them
    may stand others, of the group `etude.tools` or as package.module:attribute, which the prompt lists last."""
    max_turn_tokens: int = Field(4096, ge=1)
    """Longest single message; a longer one is cut off and the model told so."""
    min_turn_tokens: ClassVar[int] = 16
    """A session whose context has less room than this for another message has outgrown it: no call is shorter."""
    lenient_calls: bool = False
    """Take values that are not quite of their type, as `7.0` or `"7"` for 7; else they are answered with what is wrong,
    which a model can learn from. Calls that come as native function calls always are taken so."""
    summary: SummaryConfig | None = None
    """None: a session that outgrows its context ends."""
    tool: ToolConfig = ToolConfig()
    delay: tuple[PositiveFloat, PositiveFloat] | None = None
    """Makes every call wait, to rehearse a run whose tools are slow: the median in seconds, and for how long one in a
    hundred waits. None: as fast as they are."""

    def idle(self) -> dict[str, str]:
        if self.toolset != "small":
            return {}
        found = dict.fromkeys((f"tool.{key}" for key in AGENT_ONLY), 'with toolset = "small"')
        if set(self.tools) <= {tool.name for tool in WITHOUT_COMMANDS}:
            found["tool.command_timeout_s"] = "where no tool runs a command"
        return found

    @model_validator(mode="after")
    def _in_order(self) -> HarnessConfig:
        if self.delay is not None and self.delay[1] < self.delay[0]:
            raise ValueError(f"delay: {self.delay[1]} is less than the median, {self.delay[0]}")
        return self

    @model_validator(mode="after")
    def _known(self) -> HarnessConfig:
        names = self.tools
        if not names or len(set(names)) < len(names):
            raise ValueError(f"tools: name each tool once; got {', '.join(names) or 'none'}")
        for name in self._added():
            known("tools", name, of=_names(self.toolset))
        return self

    def chosen(self) -> dict[str, Tool]:
        """The tools by name, in the prompt's order."""
        chosen = [tool for tool in TOOLSETS[self.toolset] if tool.name in self.tools]
        chosen += [find("tools", name, Tool) for name in self._added()]
        if twice := [name for name, count in Counter(tool.name for tool in chosen).items() if count > 1]:
            raise ConfigError(f"tools: two are called {twice[0]}")
        return {tool.name: tool if self.delay is None else delayed(tool, Delay(*self.delay)) for tool in chosen}

    def identity(self) -> dict[str, Any]:
        """What decides what a model sees, beside its task: these keys, and of tools that rank, the version of how."""
        return {**self.model_dump(mode="json"), "versions": self.versions()}

    def versions(self, embedder: Embedder | None = None) -> dict[str, str]:
        """Of what stands behind the tools and is in no key; `embedder` where it is not our own."""
        return {"search": index_version(embedder)} if "codebase_search" in self.tools else {}

    def _added(self) -> list[str]:
        """Tools that are not of the set."""
        return [name for name in self.tools if name not in _names(self.toolset)]


def _names(toolset: Any) -> tuple[str, ...]:
    return tuple(tool.name for tool in TOOLSETS.get(toolset, ()))
