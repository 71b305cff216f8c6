"""What a recipe says of the engines of a run. Apart from the fleet, so that reading a recipe loads nothing else."""

from __future__ import annotations

from pydantic import Field

from etude.config import Config


class FleetConfig(Config):
    """How many engines, and how long is waited for them."""

    engines: int | None = Field(None, ge=1)
    """Engine processes of the run's own, each with all weights. None: one, or one for each server in `engine.urls`."""
    deadline_s: float = Field(240.0, gt=0)
    """How long a turn waits in all for an engine that serves: all may have died, or be lent back."""
    load_deadline_s: float = Field(180.0, gt=0)
    """How long an engine may take to fetch a version, tries included; to serve it has its own limit
    (`engine.update_deadline_s`)."""
    stall_s: float = Field(120.0, gt=0)
    """An engine that holds requests and computes nothing for so long is killed and replaced."""
