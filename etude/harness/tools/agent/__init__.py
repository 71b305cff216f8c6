"""The ten tools of the product's agent, and of a model trained to be one.

They reach further than the small set, and say more: each module owns its tools' words. Like all tools they act
through the `Sandbox` seam and keep nothing between calls that the sandbox or the log could not give back; so product,
rollout and bench run the very same.
"""

from __future__ import annotations

from etude.harness.tools.agent.codebase import CODEBASE_SEARCH
from etude.harness.tools.agent.files import EDIT_FILE, LIST_DIR, READ_FILE, WRITE_FILE
from etude.harness.tools.agent.find import GLOB, GREP
from etude.harness.tools.agent.lints import READ_LINTS
from etude.harness.tools.agent.terminal import RUN_TERMINAL_CMD
from etude.harness.tools.agent.todo import TODO_WRITE
from etude.harness.tools.base import Tool

AGENT_TOOLS: tuple[Tool, ...] = (
    READ_FILE,
    EDIT_FILE,
    WRITE_FILE,
    LIST_DIR,
    GREP,
    GLOB,
    CODEBASE_SEARCH,
    READ_LINTS,
    RUN_TERMINAL_CMD,
    TODO_WRITE,
)
"""In the order the prompt lists them."""

__all__ = ["AGENT_TOOLS"]
