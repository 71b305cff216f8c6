"""Where a sample is: the table is the law, every slot ends once, and its seed is its place alone."""

import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from etude.rollouts.slots import ENDS, PLAYED, REASONS, STATES, TRANSITIONS, Slots, WrongMove, slot_seed

ROOT = Path(__file__).parents[2]


def at(state):
    """Slots with one slot, in that state."""
    found = Slots(0)
    found.open(0, 1)
    for to in ("starting", "running", "sealed", "rewarding", "scored", "grouped", "trained"):
        if state == "dropped" or found["g0/0"].state == state:
            break
        found.move("g0/0", to)
        if to == state:
            break
    return found


@pytest.mark.parametrize("before", [state for state in STATES if state not in ENDS])
@pytest.mark.parametrize("after", STATES)
def test_what_the_table_has_can_be_done_and_nothing_else(before, after):
    found = at(before)
    reason = "infra" if after == "dropped" else None
    if (before, after) in TRANSITIONS:
        assert found.move("g0/0", after, reason).state == after
        assert found.moves[before, after] >= 1
        assert sum(found.counts().values()) == 1
    else:
        with pytest.raises(WrongMove, match=f"no way from {before} to {after}"):
            found.move("g0/0", after, reason)
        assert found["g0/0"].state == before


@pytest.mark.parametrize("end", ENDS)
def test_an_end_is_the_end(end):
    found = at("grouped")
    found.move("g0/0", end, "stale" if end == "dropped" else None)
    assert "g0/0" not in found
    for after in STATES:
        with pytest.raises(WrongMove, match="has ended"):
            found.move("g0/0", after)


def test_a_drop_has_a_reason_and_nothing_else_has_one():
    with pytest.raises(WrongMove):
        at("scored").move("g0/0", "dropped")
    with pytest.raises(WrongMove):
        at("scored").move("g0/0", "grouped", "stale")


def test_a_seed_is_its_place_alone():
    first, again = Slots(7).open(3, 4), Slots(7).open(3, 4)
    assert [slot.seed for slot in first] == [slot.seed for slot in again]
    assert [slot.id for slot in first] == ["g3/0", "g3/1", "g3/2", "g3/3"]
    seeds = {slot_seed(run, index, member) for run in range(3) for index in range(20) for member in range(8)}
    assert len(seeds) == 3 * 20 * 8
    assert all(0 <= seed < 2**48 for seed in seeds)


def test_what_workers_report_is_walked_to_and_never_back():
    found = at("starting")
    assert found.advance_to("g0/0", 1, "rewarding")
    assert found.moves["running", "sealed"] == found.moves["sealed", "rewarding"] == 1
    assert not found.advance_to("g0/0", 1, "running")
    assert found["g0/0"].state == "rewarding"


def test_an_attempt_that_was_given_up_says_nothing_any_more():
    found = at("running")
    found.requeue("g0/0")
    assert found["g0/0"].state == "queued"
    found.move("g0/0", "starting")
    assert not found.advance_to("g0/0", 1, "sealed")
    assert found.advance_to("g0/0", 2, "running")


def test_every_slot_ends_once_whatever_happens():
    draw = random.Random(1)
    found, told = Slots(0), []
    found.on_move = lambda slot, before: told.append((slot.id, slot.state))
    names = [slot.id for index in range(50) for slot in found.open(index, 4)]
    for _ in range(3000):
        name = draw.choice(names)
        if name in found:
            state = found[name].state
            ways = [after for before, after in TRANSITIONS if before == state and after != "dropped"]
            if draw.random() < 0.02:
                found.move(name, "dropped", draw.choice(REASONS))
            elif state in PLAYED[1:5] and draw.random() < 0.1:
                found.requeue(name) if state != "sealed" else found.move(name, "rewarding")
            else:
                found.move(name, draw.choice(ways))
    found.end()
    ended = [name for name, state in told if state in ENDS]
    assert sorted(ended) == sorted(names)
    counts = found.counts()
    assert counts["trained"] + counts["dropped"] == 200 == sum(counts.values())


def test_what_ended_is_counted_on_from_in_the_next_life():
    found = at("grouped")
    found.open(1, 3)
    found.move("g1/0", "dropped", "infra")
    found.move("g1/1", "dropped", "straggler")
    saved = found.after_step(1, Counter({"straggler": 1}))
    later = Slots(0, saved)
    assert (later.trained, dict(later.dropped)) == (1, {"infra": 1})
    assert found.trained == 0


def test_the_picture_in_the_docs_is_current():
    sys.path.append(str(ROOT / "tools"))
    from draw_slots import draw

    assert (ROOT / "docs/slots.svg").read_text() == draw(), "python tools/draw_slots.py docs/slots.svg"
