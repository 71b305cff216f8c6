"""The books: no move that is not drawn, every request counted in one state, whatever is forgotten."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.environments.scheduling.headroom import shape_of
from etude.environments.scheduling.ledger import FINAL, MOVES, Ledger, Refusal, State
from etude.environments.scheduling.messages import Request
from etude.errors import EtudeError, Overloaded, SandboxError


def open_ticket(ledger, name):
    request = Request(name, "t")
    return ledger.open(request, shape_of(request, 64), 0.0)


def test_a_move_that_is_not_drawn_is_refused():
    ledger = Ledger(keep_final=10)
    ticket = open_ticket(ledger, "r")
    with pytest.raises(EtudeError, match="cannot go from None to placing"):
        ledger.move(ticket, State.PLACING, 0.0)
    for state in (State.QUEUED, State.PLACING, State.READY, State.ENDED):
        ledger.move(ticket, state, 0.0)
    with pytest.raises(EtudeError, match="cannot go from ended to failed"):
        ledger.move(ticket, State.FAILED, 0.0)


def test_final_states_are_final_but_a_refusal():
    assert {state for state in State if not MOVES[state]} == FINAL - {State.REFUSED}


@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from(list(State))), max_size=80), st.integers(0, 3))
def test_the_count_is_of_every_request_ever_whatever_is_forgotten(moves, keep):
    ledger, seen = Ledger(keep_final=keep), {}
    for name, state in moves:
        ticket = ledger.tickets.get(f"r{name}")
        if ticket is None or ticket.state is State.REFUSED:
            if state not in MOVES[None]:
                continue
            ticket = open_ticket(ledger, f"r{name}")
            seen[id(ticket)] = ticket
        if state in MOVES[ticket.state]:
            ledger.move(ticket, state, 0.0)
        ledger.check()
        assert sum(ticket.state in FINAL for ticket in ledger.tickets.values()) <= keep
    assert sum(ledger.counts.values()) == ledger.submitted


def test_a_refused_request_is_asked_again_under_its_own_id():
    ledger = Ledger(keep_final=10)
    ledger.move(open_ticket(ledger, "r"), State.REFUSED, 0.0)
    again = open_ticket(ledger, "r")
    ledger.move(again, State.QUEUED, 1.0)
    assert ledger.submitted == 1 and ledger.counts[State.REFUSED] == 0
    with pytest.raises(EtudeError, match="cannot be opened again"):
        open_ticket(ledger, "r")


def test_a_refusal_names_how_long_to_wait_or_that_waiting_is_vain():
    error = Refusal("5 requests wait", 7.0).error()
    assert isinstance(error, Overloaded) and error.retry_after_s == 7.0 and "7 s" in str(error)
    assert pickle.loads(pickle.dumps(error)).retry_after_s == 7.0
    assert type(Refusal("too large", None).error()) is SandboxError
