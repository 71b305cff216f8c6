"""Where the server of sessions listens, who may use it, and how much it does at once.

Owns `SessionsConfig`. Which model the agents ask, and what they may do, is the user's `AgentConfig` and permissions.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from etude.config import Config
from etude.host.home import default_home
from etude.serving.connections import HttpLimits
from etude.serving.process import LOOPBACK


class SessionsConfig(Config):
    """One server."""

    host: str = "127.0.0.1"
    port: int = Field(8470, ge=0, le=65535)
    """0: a free one, which is printed."""
    hosts: tuple[str, ...] = LOOPBACK
    """The names a request may give as its Host, without port. Name this machine's own when `host` is not loopback."""
    origins: tuple[str, ...] = ()
    """The web pages that may use it, such as https://studio.example.com; programs send no Origin."""
    token_file: Path | None = None
    """None: `token` beside the sessions. Made when it is not there."""
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
    http: HttpLimits = HttpLimits()
    drain_s: float = Field(10.0, gt=0)
    """How long prompts may go on after SIGTERM. What is cut short can be gone on with."""

    @property
    def token_path(self) -> Path:
        return self.token_file or default_home() / "token"
