"""The agent's tools: what a model can do to a sandbox, and the words it gets back.

`base` owns what a tool is, and `execute` how the calls of one turn are run. There are two sets. The small one, six
tools with short answers for a small model's context, is in `files`, `grep`, `terminal` and `edit`; its bytes are part
of the shipped model. The agent's ten are in `agent`. A tool reaches the world only through the `Sandbox` seam, so the
same code serves a rollout, a benchmark and the product. Whatever a model asks for wrongly is answered with `error: …`;
the only exceptions that leave this package are failures of the sandbox itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from etude.harness.tools.agent import AGENT_TOOLS
from etude.harness.tools.base import Tool, ToolConfig, ToolResult
from etude.harness.tools.execute import run_calls
from etude.harness.tools.files import EDIT_FILE, LIST_DIR, READ_FILE, WRITE_FILE
from etude.harness.tools.grep import GREP
from etude.harness.tools.terminal import RUN_TERMINAL_CMD

TOOLS: tuple[Tool, ...] = (READ_FILE, EDIT_FILE, WRITE_FILE, LIST_DIR, GREP, RUN_TERMINAL_CMD)
"""The small set, in the order the prompt lists them."""

TOOLSETS: Mapping[str, tuple[Tool, ...]] = {"small": TOOLS, "agent": AGENT_TOOLS}
AGENT_ONLY = ("overlong", "edit_tolerance", "lint_base")
"""Keys of ToolConfig that mean something to the agent's tools only."""
WITHOUT_COMMANDS: tuple[Tool, ...] = (READ_FILE, EDIT_FILE, WRITE_FILE, LIST_DIR)
"""Those of the small set that run no command, and so wait for none."""

__all__ = [
    "AGENT_ONLY", "AGENT_TOOLS", "TOOLS", "TOOLSETS", "WITHOUT_COMMANDS",
    "Tool", "ToolConfig", "ToolResult", "run_calls",
]  # fmt: skip
