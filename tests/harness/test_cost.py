"""What a session has come to, to the token and the cent."""

from __future__ import annotations

from etude.harness.cost import CostLedger, Price, SessionCost
from etude.harness.endpoint.completion import Usage
from etude.records import Event


def test_a_price_is_for_a_million_tokens_and_less_for_cached_ones() -> None:
    price = Price(input=2.0, output=10.0, cached=0.5)
    assert price.of(prompt=100_000, cached=60_000, completion=3_000) == (40_000 * 2 + 60_000 * 0.5 + 3_000 * 10) / 1e6
    assert Price(input=2.0, output=10.0).of(100_000, 60_000, 0) == 0.2, (
        "without a price of their own they cost the same"
    )


def test_a_ledger_takes_up_a_log_and_knows_which_model_was_asked() -> None:
    usage = {"prompt": 1000, "cached": 0, "completion": 100}
    log = [
        (Event("session", 0, {"model": "a"}), {}),
        (Event("completion", 1, {}), {"usage": usage}),
        (Event("model", 2, {"model": "b"}), {}),
        (Event("summary", 3, {}), {"usage": usage}),
        (Event("completion", 4, {}), {"usage": None}),
    ]
    prices = {"a": Price(input=1.0, output=1.0), "b": Price(input=10.0, output=10.0)}
    ledger = CostLedger(prices, log)
    assert ledger.spent == SessionCost(2, 2000, 0, 200, (1100 + 11_000) / 1e6)
    before = ledger.spent
    ledger.add("c", Usage(5, 0, 5))
    assert ledger.spent.money is None, "of a model without a price nothing can be said"
    assert (ledger.spent - before).prompt == 5
    assert CostLedger({}, log).spent.money is None and CostLedger(prices).spent.money == 0.0
