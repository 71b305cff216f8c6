"""A running job is changed by its operator: keys of its recipe, and processes that new code takes over."""

import json
import shutil

import pytest
from killing import Victim
from small import ROOT, left, lines, steps

pytestmark = pytest.mark.timeout(420)


@pytest.fixture
def copy(tmp_path):
    """A copy of the package, whose code a test may change."""
    shutil.copytree(ROOT / "etude", tmp_path / "copy" / "etude", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "copy"


@pytest.mark.proof(57)
def test_an_operator_changes_keys_and_code_while_the_run_goes_on(tmp_path, copy):
    out, marker = tmp_path / "run", tmp_path / "marker"
    recipe = ("rollouts.max_steps=1000", "rollouts.max_minutes=15", f"model.path={ROOT / 'models/etude-tiny'}")
    with Victim(out, *recipe, root=copy) as run:
        run.wait(lambda: len(steps(out)) >= 1, "the first step")
        done = run.ask("set", "groups.max_staleness=2", "rollouts.concurrency=12")
        assert (done.returncode, "groups.max_staleness=2 holds for the next batch" in done.stdout) == (0, True), done
        done = run.ask("set", "trainer.optimizer.lr=1")
        assert (done.returncode, "trainer.optimizer.lr: cannot change while" in done.stderr) == (42, True)

        with (copy / "etude/rollouts/session.py").open("a") as code:
            code.write(f"\nopen({str(marker)!r}, 'w').close()\n")
        assert "1 of sessions replaced" in run.ask("replace", "sessions").stdout
        assert marker.exists()
        for kind in ("trainer", "engine", "rewards"):
            done = run.ask("replace", kind)
            assert f"1 of {kind} replaced" in done.stdout, done
        with (copy / "etude/rollouts/actors/rewards.py").open("a") as code:
            code.write("\nthis is no code\n")
        done = run.ask("replace", "rewards")
        assert (done.returncode, "cannot be loaded, nothing was replaced" in done.stderr) == (1, True)
        run.last_step()
        summary = json.loads(run.end().splitlines()[-1])
    assert summary["restarts"] == dict.fromkeys(("sessions", "trainer", "engine", "rewards"), 1)
    assert summary["counters"]["infra_failed"] == 0
    assert [line["step"] for line in steps(out)] == list(range(1, summary["steps"] + 1))
    assert lines(out, "change")[0]["set"] == ["groups.max_staleness=2", "rollouts.concurrency=12"]
    assert left() == []
