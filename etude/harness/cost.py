"""What a session has cost, in tokens and in money.

Owns `Price`, `SessionCost` and `CostLedger`. Tokens are the endpoint's own count. There is an amount of money only if
the user's config has a price for the model. What was undone or cancelled was paid for too, so everything in the log
counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from pydantic import Field

from etude.config import Config
from etude.harness.endpoint.completion import Usage
from etude.harness.events import Record
from etude.records import Event


class Price(Config):
    """Of one model, for a million tokens."""

    input: float = Field(ge=0)
    """Of tokens of the prompt that the endpoint had not cached."""
    output: float = Field(ge=0)
    """Of sampled tokens."""
    cached: float | None = Field(None, ge=0)
    """Of input that the endpoint had in its cache; None: the same as other input."""

    def of(self, prompt: int, cached: int, completion: int) -> float:
        """`cached` are some of the `prompt` tokens."""
        rate = self.input if self.cached is None else self.cached
        return ((prompt - cached) * self.input + cached * rate + completion * self.output) / 1e6


@dataclass(frozen=True)
class SessionCost:
    """Tokens of requests that were answered; `money` is None where one of them has no price."""

    requests: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    money: float | None = 0.0

    def __add__(self, other: SessionCost) -> SessionCost:
        money = None if self.money is None or other.money is None else self.money + other.money
        counts = (getattr(self, each.name) + getattr(other, each.name) for each in fields(self)[:4])
        return SessionCost(*counts, money)

    def __sub__(self, other: SessionCost) -> SessionCost:
        money = None if self.money is None or other.money is None else self.money - other.money
        counts = (getattr(self, each.name) - getattr(other, each.name) for each in fields(self)[:4])
        return SessionCost(*counts, money)


class CostLedger:
    """One session's bill: what its log tells, and what is added to it from then on."""

    def __init__(self, prices: Mapping[str, Price], log: Iterable[tuple[Event, Record]] = ()) -> None:
        self._prices = prices
        self.spent = SessionCost()
        model = ""
        for event, record in log:
            if event.kind in ("session", "model"):
                model = event.data.get("model", "")
            elif event.kind in ("completion", "summary") and (usage := record.get("usage")):
                self.add(model, Usage(**usage))

    def add(self, model: str, usage: Usage) -> None:
        """One more request that was answered."""
        price = self._prices.get(model)
        money = price.of(usage.prompt, usage.cached, usage.completion) if price else None
        self.spent += SessionCost(1, usage.prompt, usage.cached, usage.completion, money)
