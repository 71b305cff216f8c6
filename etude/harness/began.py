"""The workspace of a sandbox as it was when its session began: which files have changed since, and what they were.

Owns `Began`. The product knows this by its snapshots (`harness.shadow`); a rollout's sandbox has none that can be read,
but whoever made it knows its files. What else was there at the beginning, of an image or of commands that set it up, is
known by its digest alone, and that stands in the session's log: so another process that goes on with the session knows
the same. Changes nothing in the sandbox.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from etude.environments.base import Sandbox
from etude.errors import CheckpointError
from etude.harness.tools.agent.listing import listing
from etude.harness.tools.base import ToolConfig

_DIGESTS = f"{listing('.')} | xargs -0 -r sha256sum -- 2>/dev/null; true"
_MOST_BYTES = 16_000_000


class Began:
    """Implements `Baseline`. `files` are what the workspace was made with."""

    def __init__(self, sandbox: Sandbox, config: ToolConfig, files: Mapping[str, bytes]) -> None:
        self._sandbox, self._config, self._files = sandbox, config, files
        self.brought: Mapping[str, str] | None = None
        """Files that were there and are none of those, or not as those, by their digests; None where nobody looked."""

    async def look(self) -> None:
        """The session begins now. Raises CheckpointError where the files cannot be read in time."""
        self.brought = {name: now for name, now in (await self._digests()).items() if now != self._given(name)}

    async def changed(self) -> list[str]:
        brought, now = self._known(), await self._digests()
        return sorted(name for name in now if now[name] != (brought.get(name) or self._given(name)))

    async def read(self, path: str) -> bytes | None:
        return None if path in self._known() else self._files.get(path)

    def _known(self) -> Mapping[str, str]:
        if self.brought is None:
            raise CheckpointError("nobody looked at the files when the session began")
        return self.brought

    def _given(self, name: str) -> str | None:
        return hashlib.sha256(self._files[name]).hexdigest() if name in self._files else None

    async def _digests(self) -> dict[str, str]:
        done = await self._sandbox.exec(
            _DIGESTS, timeout_s=self._config.command_timeout_s, max_output_bytes=_MOST_BYTES
        )
        if done.timed_out or done.log_path:
            raise CheckpointError("the files of the workspace are too many to be compared")
        lines = done.output.decode("utf-8", "surrogateescape").splitlines()
        return {name: digest for digest, _, name in (line.partition("  ") for line in lines) if name}
