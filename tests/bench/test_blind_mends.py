"""The rival that only guesses: what so many blind tries solve, and that its verdicts are the verifier's."""

import asyncio
import sys
from itertools import permutations
from pathlib import Path

import pytest

from etude.tasks.real import real_tasks

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from blind_mends import Mends, figures, played


@pytest.mark.parametrize("tries", [1, 2, 3, 4, 9])
def test_what_blind_tries_solve_is_what_all_orders_say(tries):
    """Of four mends two pass the check, and one of these is paid."""
    ends = []
    for order in permutations(["no", "no", "wrong", "right"]):
        passing = [each for each in order[:tries] if each != "no"]
        ends.append(passing[:1] == ["right"])
    assert Mends("t", 4, 2, 1, True).solved(tries) == pytest.approx(sum(ends) / len(ends))
    assert Mends("t", 4, 0, 0, False).solved(tries) == 0.0


def test_the_authors_line_passes_and_is_paid():
    tasks = [task for task in real_tasks("eval") if "toolz" in task.id or "stdlib.types" in task.id][:2]
    found = asyncio.run(played(tasks))
    assert [each.task for each in found] == [task.id for task in tasks]
    assert all(each.authors and 1 <= each.paid <= each.passing < each.all for each in found)
    said = figures(found, [1, 8], {tasks[0].id: 0.5})
    assert said["model"]["rate"] == 0.5 and said["tries_8"]["rate"] >= said["tries_1"]["rate"] > 0
