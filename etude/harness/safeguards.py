"""What the product puts around a session, around one in a sandbox of its own: `toolset = "agent"`.

Owns `Safeguards`: the project's rules before the session, permissions and redaction before its tools, and what has
changed since it began. Rollouts, evaluations and benchmarks have them with the agent's tools, so that a model meets in
training what its users' agents will meet. The words are the product's own, for the very parts are (`permissions.gate`,
`secrets.guard`, `rules`); what a user adds to theirs is nobody's here:

- Permissions are those that the task's own `.etude/permissions.toml` brings. What a rule denies is refused. Nobody is
  there to be asked, and nothing of anybody's is at stake, so what would be asked about is done: the mode `auto`.
- No secret of this machine is known; what looks like one in a result is a mark all the same. The marks come of the
  session's name, so a rollout that is played again has the same.

Never reads a file of this machine, nor asks anybody. The sandbox's own guard over what a user's programs obey is the
product's alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from etude.environments.base import Sandbox
from etude.errors import CheckpointError
from etude.harness.began import Began
from etude.harness.config import HarnessConfig
from etude.harness.permissions.gate import Gate
from etude.harness.permissions.judge import Judge
from etude.harness.permissions.paths import WorkspacePaths
from etude.harness.permissions.store import IN_REPOSITORY, brought
from etude.harness.prompt import persona
from etude.harness.rules import sandbox_rules
from etude.harness.secrets import Redactor, SecretGuard
from etude.harness.tools import Tool
from etude.harness.turns import Review


@dataclass(frozen=True)
class Safeguards:
    """Of one session."""

    gate: Gate
    guard: SecretGuard
    tools: Mapping[str, Tool]
    """The session's, behind both."""
    review: Review
    began: Began
    sandbox: Sandbox
    files: Mapping[str, bytes]
    closed: tuple[str, ...]

    async def persona(self) -> str:
        """With the rules as they are now, but for files that no rule lets be read."""
        rules = await sandbox_rules(self.sandbox, self._may_read)
        return self.guard.redactor.redact(persona(rules, closed=self.closed))

    async def begin(self) -> dict[str, Any]:
        """Look at the workspace; returns what the log's first event must say of it."""
        with contextlib.suppress(CheckpointError):
            await self.began.look()
        return {"brought": self.began.brought}

    async def take_up(self, begun: Mapping[str, Any]) -> None:
        """Go on in another process, by the log's first event; marks of the task's own secrets stand for the same."""
        self.began.brought = begun.get("brought")
        await asyncio.to_thread(self._look)

    def _may_read(self, path: str) -> bool:
        return self.gate.judge.judge("read_file", {"path": path}).verdict != "deny"

    def _look(self) -> None:
        for data in self.files.values():
            self.guard.redactor.redact(data.decode("utf-8", "surrogateescape"))


def safeguards(config: HarnessConfig, sandbox: Sandbox, files: Mapping[str, bytes], session_id: str) -> Safeguards:
    """For a session of this name whose workspace began with these files. Raises ConfigError where the permissions that
    they bring are none."""
    permissions = brought(files.get(IN_REPOSITORY))
    judge = Judge(permissions, WorkspacePaths(), env={})
    gate = Gate(judge)
    gate.mode = "auto"
    guard = SecretGuard(Redactor(key=hashlib.sha256(session_id.encode()).digest()))
    tools = gate.guard(guard.guard(config.chosen()))
    began = Began(sandbox, config.tool, files)
    return Safeguards(gate, guard, tools, gate.review, began, sandbox, files, permissions.closed())
