"""Which of the long proofs a run of the tests plays: one slice of them, or all of them where ETUDE_PROOFS=all.

A test marked `proof(seconds)` is a proof; `seconds` is how long one process has it on two quiet cores. All other tests
are always played. The proofs are cut into slices of SLICE seconds, neighbours together, as they share what their
fixtures start. ETUDE_PROOFS_SEED chooses the slice; where it is not set, chance does, and the run says at its end which
seed it had. Where tests are asked for by name, by a node id or by -k, all of those are played.

Every promise of a room keeps a real test that is always played: of what is asked of many backends, shapes, formats or
attacks alike, the first of each kind (`one_of_each`), so that no way of doing it is left to chance; of what is one long
story, another test of the same promise, which the proof then is the long form of. A whole run, killed and gone on with,
is always played: e2e/test_run.py. A test that asks the same thing many times, for which few are enough as a rule, says
so by `often`.
"""

import os
import random
from collections.abc import Callable, Iterable, Sequence

import pytest
from _pytest.mark import ParameterSet

MODES = ("slice", "all")
MODE = os.environ.get("ETUDE_PROOFS", "slice")
SEED = os.environ.setdefault("ETUDE_PROOFS_SEED", str(random.randrange(10**6)))
"""Set for the processes beside this one: they inherit it."""
SLICE = 75.0


def often(as_a_rule: int, in_full: int) -> int:
    """How often to do a thing: many times only where all proofs are played."""
    return in_full if MODE == "all" else as_a_rule


def one_of_each(seconds: float, values: Iterable, kind: Callable = lambda *value: None) -> list:
    """As parameters: the first value of each kind is always played, every other is a proof that takes so long."""
    seen, found = set(), []
    for value in values:
        one = value if isinstance(value, ParameterSet) else pytest.param(*(value if type(value) is tuple else (value,)))
        of = kind(*one.values)
        marks = [pytest.mark.proof(seconds)] if of in seen else []
        seen.add(of)
        found.append(pytest.param(*one.values, id=one.id, marks=[*one.marks, *marks]))
    return found


def slices(costs: Sequence[float]) -> list[range]:
    """The positions of proofs that take so long, in slices: each in one, no slice longer than SLICE seconds."""
    found, begin, taken = [], 0, 0.0
    for at, cost in enumerate(costs):
        if at > begin and taken + cost > SLICE:
            found.append(range(begin, at))
            begin, taken = at, 0.0
        taken += cost
    return [*found, range(begin, len(costs))]


def cost_of(item: pytest.Item) -> float | None:
    """None for a test that is no proof."""
    mark = item.get_closest_marker("proof")
    if mark is None:
        return None
    seconds = mark.args[0] if len(mark.args) == 1 and not mark.kwargs else None
    if not isinstance(seconds, int | float) or not 0 < seconds <= SLICE:
        raise pytest.UsageError(f"{item.nodeid}: proof(seconds) takes one number, at most {SLICE:.0f}: cut it in two")
    return seconds


def choose(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the proofs of all slices but one."""
    if MODE not in MODES or not SEED.isdigit():
        raise pytest.UsageError(f"ETUDE_PROOFS is one of {', '.join(MODES)}, ETUDE_PROOFS_SEED a whole number")
    costs = {item: cost for item in items if (cost := cost_of(item)) is not None}
    if MODE == "all" or not costs or config.option.keyword or any("::" in each for each in config.args):
        return
    proofs = sorted(costs, key=lambda item: item.nodeid)
    cut = slices([costs[item] for item in proofs])
    at = int(SEED) % len(cut)
    kept = set(proofs[cut[at].start : cut[at].stop])
    for item in kept:  # xdist hands it on to the process that prints the summary
        item.user_properties.append(
            ("proofs", f"slice {at + 1} of {len(cut)}: ETUDE_PROOFS_SEED={SEED} plays it again")
        )
    left_out = [item for item in proofs if item not in kept]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in costs or item in kept]


def summary(reports: Sequence[pytest.TestReport]) -> str:
    """What was played, for the end of a run; nothing where no proof was."""
    played = [report for report in reports if "proof" in report.keywords]
    slices = {said for report in played for name, said in report.user_properties if name == "proofs"}
    which = f"{', '.join(slices)}, `make prove` plays all" if slices else "all that were asked for"
    return f"{len({report.nodeid for report in played})} proofs played, {which}" if played else ""
