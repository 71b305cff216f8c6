"""What an agent is given: its tools, and how long its messages, answers and contexts may be.

Owns `HarnessConfig` and `SummaryConfig`. Both are part of what a trained model is, so a recipe and a release carry
them. The defaults are those of training; the product has its own.
"""

from __future__ import annotations

from pydantic import Field, field_validator

from etude.config import Config
from etude.harness.tools import TOOLS, Tool, ToolConfig


class SummaryConfig(Config):
    """When a session that outgrows its context is summarised by its own model, and how long a summary may be."""

    trigger_tokens: int = Field(ge=64)
    """A context this long is summarised before its next turn; one without room for another turn and a summary is too,
    whatever this says."""
    max_tokens: int = Field(2048, ge=16)
    """Longest summary, with the thinking before it."""


class HarnessConfig(Config):
    """What the agent is given."""

    tools: tuple[str, ...] = tuple(tool.name for tool in TOOLS)
    """Which tools there are; the prompt lists them in the order of `TOOLS`, whatever the order here."""
    max_turn_tokens: int = Field(4096, ge=1)
    """Longest single message; a longer one is cut off and the model told so."""
    min_turn_tokens: int = Field(16, ge=1)
    """A session whose context has less room than this for another message has outgrown it."""
    summary: SummaryConfig | None = None
    """None: a session that outgrows its context ends."""
    tool: ToolConfig = ToolConfig()

    @field_validator("tools")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        known = [tool.name for tool in TOOLS]
        if not names or len(set(names)) < len(names) or not set(names) <= set(known):
            raise ValueError(f"name each tool once, from {', '.join(known)}; got {', '.join(names) or 'none'}")
        return names

    def chosen(self) -> dict[str, Tool]:
        """The tools by name, in the prompt's order."""
        return {tool.name: tool for tool in TOOLS if tool.name in self.tools}
