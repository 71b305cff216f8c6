"""Image files that the agent reads, for a model that sees them.

Owns `Images`: `read_file` of an image answers with a mark of one line, and the dialogue asks `get` for what the mark
stands for. So the log, the summaries and every face have the mark, and only the conversation with the model holds the
picture. A model that sees none gets one sentence that says so. Where a session was killed between the two, the mark is
all there is, and the model reads the file again.
"""

from __future__ import annotations

import base64
import errno
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from etude.environments.base import Sandbox
from etude.harness.tools.base import Tool, ToolConfig, ToolError, absolute

_READ = "read_file"
_MOST_BYTES = 3_000_000
"""A third more of it goes into every request of the session from then on."""
_ENDINGS = (".png", ".jpg", ".jpeg", ".gif", ".webp")


def image_kind(data: bytes) -> str | None:
    """`png`, `jpeg`, `gif` or `webp`, by how the file begins; None for anything else."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if data.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    return "webp" if data.startswith(b"RIFF") and data[8:12] == b"WEBP" else None


class Images:
    """Those of one session, for a model that sees them or, with `seen` false, does not."""

    def __init__(self, seen: bool) -> None:
        self._seen = seen
        self._by_mark: dict[str, str] = {}

    def get(self, result: str) -> str | None:
        """The picture that a call's result stands for, as a `data:` address; None for other results."""
        return next((image for mark, image in self._by_mark.items() if result.startswith(mark)), None)

    def shown_by(self, tools: Mapping[str, Tool]) -> dict[str, Tool]:
        """The same tools; reading an image answers with its mark, or why there is none."""
        there = {name: tool for name, tool in tools.items() if name == _READ}
        return {**tools, **{name: replace(tool, run=self._reading(tool)) for name, tool in there.items()}}

    def _reading(self, tool: Tool) -> Callable[[Sandbox, ToolConfig, Mapping[str, Any]], Awaitable[str]]:
        async def run(sandbox: Sandbox, config: ToolConfig, arguments: Mapping[str, Any]) -> str:
            path = str(arguments["path"])
            data = await _image(sandbox, path) if path.lower().endswith(_ENDINGS) else b""
            kind = image_kind(data)
            if kind is None:
                return await tool.run(sandbox, config, arguments)
            if not self._seen:
                raise ToolError(
                    f"{path} is an image, and this model is shown none; where it sees images, the user can set "
                    "`images = true` in agent.toml"
                )
            mark = f"[image {path}: {kind}, {len(data):,} bytes, {hashlib.sha256(data).hexdigest()[:12]}]"
            self._by_mark[mark] = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
            return mark

        return run


async def _image(sandbox: Sandbox, path: str) -> bytes:
    """The file; nothing where there is none, which the tool itself explains."""
    try:
        return await sandbox.read_file(absolute(path), _MOST_BYTES)
    except FileNotFoundError:
        return b""
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise ToolError(
            f"{path} is larger than {_MOST_BYTES:,} bytes, too large to be shown; make it smaller"
        ) from None
