"""Development tasks are played beside training, and the end of training breaks off what goes on."""

import json

import pytest
from killing import Victim
from small import archived, left, lines, steps

from etude.archive.query import Filter
from etude.archive.reader import ArchiveReader

pytestmark = pytest.mark.timeout(420)


@pytest.mark.proof(45)
def test_development_tasks_are_played_beside_training(tmp_path):
    out = tmp_path / "run"
    pace = ("rollouts.max_steps=1000", "rollouts.max_minutes=15", "evaluation.beside={max_steps=1, per_rung=1}")
    with Victim(out, *pace) as run:
        run.wait(lambda: any("dev_pass1" in line for line in steps(out)), "a step after an evaluation")
        run.last_step()
        summary = json.loads(run.end().splitlines()[-1])
    told = lines(out, "development")
    assert told and all(line["played"] == 8 and 0 <= line["solved"] <= 8 for line in told)
    assert all(0 <= line["versions"][0] <= line["versions"][1] <= summary["steps"] for line in told)
    assert summary["counters"]["evaluated_beside"] == 8 * len(told)
    assert (summary["lost"], summary["trained_twice"]) == (0, 0)
    first = next(line for line in steps(out) if "dev_pass1" in line)
    assert first["dev_pass1"] in {line["solved"] / 8 for line in told}
    with ArchiveReader(out) as reader:
        played = list(reader.every(Filter(phase="development")))
    assert len(played) >= 8 * len(told) and not any(row.step for row in played)
    assert archived(out) and left() == []
    assert not list((out / "evaluated").glob("development*")), "what was broken off is gone"
