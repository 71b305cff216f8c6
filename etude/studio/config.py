"""Where the studio listens, who may use it, and how much it does at once.

Owns `StudioConfig`. Which runs it shows are the places that it is started with.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from etude.host.home import default_home
from etude.serving.process import LOOPBACK, ApiConfig, Port


class StudioConfig(ApiConfig):
    """One server."""

    port: Port = 8490
    tls_certificate: Path | None = None
    """A file of the certificate that it shows, chain included. Needed, with `tls_key`, where `host` is not loopback."""
    tls_key: Path | None = None
    """The file of its private key."""
    max_streams: int = Field(64, ge=1)
    """Tabs that may listen at once."""
    max_body_mb: int = Field(1, ge=1)
    """The longest request."""
    drain_s: float = Field(5.0, gt=0)
    """After SIGTERM: how long agents at work may take to end."""
    store_options: dict[str, str] = Field(default_factory=dict)
    """For stores of runs, in obstore's terms: region, endpoint, …; credentials come from the usual environment."""
    store_cache_gb: float = Field(20.0, gt=0)
    """Most of one store that is kept on this machine, in ~/.cache/etude/studio; what was looked at longest ago goes."""

    @model_validator(mode="after")
    def _encrypted(self) -> StudioConfig:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key: give both, or neither")
        if self.host not in LOOPBACK and self.tls_certificate is None:
            raise ValueError(
                f"host: at {self.host} others could read the token on its way; give tls_certificate and tls_key, or "
                "leave host out and reach this machine through ssh -L"
            )
        return self

    @property
    def tls(self) -> tuple[Path, Path] | None:
        """The files of certificate and key."""
        if self.tls_certificate is None or self.tls_key is None:
            return None
        return self.tls_certificate, self.tls_key

    @property
    def token_path(self) -> Path:
        return self.token_file or default_home() / "studio-token"
