"""The agent's tools: what a model can do to a sandbox, and the words it gets back.

`base` owns what a tool is, `files`, `grep` and `terminal` the six tools, `edit` the matching behind `edit_file`, and
`execute` how the calls of one turn are run. A tool reaches the world only through the `Sandbox` seam, so the same code
serves a rollout, a benchmark and the product. Whatever a model asks for wrongly is answered with `error: …`; the only
exceptions that leave this package are failures of the sandbox itself.
"""

from __future__ import annotations

from etude.harness.tools.base import Tool, ToolConfig, ToolResult
from etude.harness.tools.execute import run_calls
from etude.harness.tools.files import EDIT_FILE, LIST_DIR, READ_FILE, WRITE_FILE
from etude.harness.tools.grep import GREP
from etude.harness.tools.terminal import RUN_TERMINAL_CMD

TOOLS: tuple[Tool, ...] = (READ_FILE, EDIT_FILE, WRITE_FILE, LIST_DIR, GREP, RUN_TERMINAL_CMD)
"""Every tool there is, in the order the prompt lists them."""

__all__ = ["TOOLS", "Tool", "ToolConfig", "ToolResult", "run_calls"]
