"""What a recipe says of the engines of a run. Apart from the fleet, so that reading a recipe loads nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from etude.config import Config

Url = Annotated[str, Field(pattern=r"^https?://[^/]+/?$")]


class BorrowingConfig(Config):
    """Servers of the product (`etude serve`) whose engines the run borrows while their users are few.

    Each server has a `lending` table of its own, which says how soon its engine is back; a user's request to a lent one
    recalls it in any case.
    """

    servers: tuple[Url, ...] = Field(min_length=1)
    """All that share the users' traffic, behind one load balancer: their load decides together."""
    token_file: Path | None = None
    """Holds the token that the servers ask for; None: they ask for none."""
    keep: int = Field(1, ge=0)
    """So many are left to users at any time."""
    borrow_below: float = Field(1.0, ge=0)
    """One is borrowed when those that are left would have fewer users' requests under way each, on average."""
    return_above: float = Field(2.0, gt=0)
    """Some are given back as soon as those that serve users have more each, until they would not."""
    steady_s: float = Field(5.0, ge=0)
    """For how long the traffic must have been low before one is borrowed."""

    @model_validator(mode="after")
    def _apart(self) -> BorrowingConfig:
        if self.borrow_below >= self.return_above:
            raise ValueError("borrow_below must be less than return_above, or engines would go to and fro")
        return self


class FleetConfig(Config):
    """How many engines, and whose."""

    engines: int | None = Field(None, ge=0)
    """Engine processes of the run's own, each with all weights. None: one, or one for each server in `engine.urls`. 0
    where `lending` gives it some: the run then waits while all are with their users."""
    lending: BorrowingConfig | None = None
