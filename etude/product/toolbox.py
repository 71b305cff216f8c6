"""The tools of one session: their schemas for the model, and the functions that run.

Owns `Toolbox`, which keeps both in step with what MCP servers add and take away while the session runs. A removed tool
has no permission check: a call of it is answered that the tool is gone, and no question is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from etude.harness.mcp import McpTools
from etude.harness.permissions.gate import Gate
from etude.harness.schema import MalformedCall, ToolCall
from etude.harness.secrets import SecretGuard
from etude.harness.tools import Tool
from etude.product.hooks import Hooks


class Toolbox:
    """`known` and `guarded` have the same names, and change in place."""

    def __init__(self, own: Mapping[str, Tool], mcp: McpTools, gate: Gate, secrets: SecretGuard, hooks: Hooks) -> None:
        self._mcp, self._gate, self._secrets, self._hooks = mcp, gate, secrets, hooks
        self.known: dict[str, Tool] = {**own, **mcp.by_name}
        hooks.check(self.known)
        self.guarded = self._behind_guards(self.known)
        mcp.on_change = self._follow

    async def review(self, calls: Sequence[ToolCall | MalformedCall]) -> None:
        """Ask for what a turn needs, in one go."""
        await self._gate.review(
            [call for call in calls if isinstance(call, ToolCall) and not self.known[call.name].gone]
        )

    def _follow(self) -> None:
        self.known.update(self._mcp.by_name)
        self.guarded.update(self._behind_guards(self._mcp.by_name))

    def _behind_guards(self, tools: Mapping[str, Tool]) -> dict[str, Tool]:
        there = {name: tool for name, tool in tools.items() if not tool.gone}
        return {**tools, **self._gate.guard(self._secrets.guard(self._hooks.guard(there)))}
