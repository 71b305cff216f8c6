"""Where the server of sessions listens, who may use it, and how much it does at once.

Owns `SessionsConfig`. Which model the agents ask, and what they may do, is the user's `AgentConfig` and permissions.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from etude.host.home import default_home
from etude.serving.process import ApiConfig, Port


class SessionsConfig(ApiConfig):
    """One server."""

    port: Port = 8470
    directories: tuple[Path, ...] = ()
    """Agents may work in these and below. None named: wherever this user may."""
    max_open: int = Field(8, ge=1)
    """Sessions that are open at once, each with its sandbox; one that rests makes room for another."""
    max_streams: int = Field(64, ge=1)
    """Listeners at once, of all sessions."""
    rest_s: float = Field(1800.0, gt=0)
    """A session that nobody asked anything of for so long is closed, with what it left running. The next request opens
    it again."""
    max_body_mb: int = Field(4, ge=1)
    """The longest request."""
    drain_s: float = Field(10.0, gt=0)
    """How long prompts may go on after SIGTERM. What is cut short can be gone on with."""

    @property
    def token_path(self) -> Path:
        return self.token_file or default_home() / "token"
