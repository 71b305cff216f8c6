"""The planner: rates read back as they were written, a simulator that keeps the controller's rules, and its advice."""

import importlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from etude.cli.main import main
from etude.config import load_recipe
from etude.errors import ConfigError
from etude.records import Cheated, Event, Scored, Trajectory
from etude.rollouts.config import RunConfig
from etude.rollouts.plan.planner import lines_of, plan_of
from etude.rollouts.plan.rates import EngineRate, Played, Rates, TrainerRate, Turn, rates_of, read_rates, rollout_line
from etude.rollouts.plan.simulator import Simulation
from etude.rollouts.proof import used_in_time
from etude.rollouts.sample import sample_of

ENGINE = EngineRate(step_s=0.01, decode_s=0.001, prefill_s=0.0001)
QUICK = EngineRate(step_s=0.002, decode_s=0.0002, prefill_s=0.00001)
STEP = TrainerRate(1.0, 0.0)


def recipe(*sets):
    """The synchronous recipe of most tests here, with these keys set."""
    known = ["name=p", "rollouts.concurrency=64", "rollouts.groups_per_step=2", "groups.size=4"]
    return load_recipe(None, RunConfig, [*known, 'rollouts.schedule="lockstep"', *sets])


SYNC = recipe()
FREE = 'rollouts.schedule="free"'
DROP = 'groups.when_stale="drop"'


def played(reward, tools_s=0.1, tokens=20, turns=2):
    return Played(tuple(Turn(50, tokens, tools_s) for _ in range(turns)), 0.05, 0.05, reward)


def rates(groups, trainer=STEP, delivery_s=0.2, engine=ENGINE):
    return Rates(tuple(groups), engine, trainer, delivery_s)


def long_tailed(count=60, size=4, seed=0):
    """Groups whose tools mostly take 0.1 s, and one in a hundred 3 s."""
    rng = np.random.default_rng(seed)
    tools = 0.1 * np.exp(1.46 * rng.standard_normal((count, size, 3)))
    return [
        tuple(Played(tuple(Turn(30, 12, float(s)) for s in tools[g, m]), 0.02, 0.1, float(m % 2)) for m in range(size))
        for g in range(count)
    ]


def test_one_synchronous_step_is_as_long_as_its_parts():
    """Eight rollouts: 0.05 s before, twice (read 8 x 50 tokens, 20 steps of eight, tools), 0.05 s after; then the step,
    and its version's way. All go in step, so nothing overlaps."""
    group = tuple(played(float(at % 2)) for at in range(4))
    forecast = Simulation(rates([group]), SYNC).run(5)
    turn = 8 * 50 * 0.0001 + 20 * (0.01 + 8 * 0.001) + 0.1
    assert forecast.step_s == pytest.approx(0.05 + 2 * turn + 0.05 + 1.0 + 0.2)
    assert forecast.trainer_busy == pytest.approx(1.0 / forecast.step_s)
    assert forecast.engine_busy == pytest.approx(2 * (turn - 0.1) / forecast.step_s)
    assert (forecast.samples, forecast.ages) == (40, {0: 40})


def test_what_runs_together_shares_a_step_and_leaves_when_it_is_done():
    """Alone 10 steps of 11 ms; then two at a time for 10 (12 ms), and the longer one alone for 20 more."""
    short, long = played(1.0, 0.0, 10, 1), played(0.0, 0.0, 30, 1)
    free = replace(ENGINE, prefill_s=0.0)
    setup = recipe("rollouts.groups_per_step=1", "groups.size=2")
    forecast = Simulation(rates([(short, long)], TrainerRate(0.0, 0.0), 0.0, free), setup).run(3)
    assert forecast.step_s == pytest.approx(0.1 + 10 * 0.012 + 20 * 0.011)


def test_a_run_of_which_no_group_can_be_trained_on_is_told_and_not_played_for_ever():
    """Its recipe drops groups whose rollouts all earn the same."""
    alike = rates([tuple(played(0.0) for _ in range(4))] * 7)
    with pytest.raises(ConfigError, match=r"no step would be made: none of the 7 groups .* zero_variance") as error:
        Simulation(alike, SYNC).run(5)
    assert 'groups.drop_zero_variance = "never"' in str(error.value)
    assert Simulation(alike, recipe('groups.drop_zero_variance="never"')).run(5).steps == 5
    one = tuple(played(float(at % 2)) for at in range(4))
    rare = rates([*alike.groups * 20, one])
    assert Simulation(rare, SYNC).run(2).steps == 2, "one group of 141 is enough"


def test_nothing_waits_in_a_free_schedule_and_no_sample_is_older_than_its_bound():
    known = rates(long_tailed(), TrainerRate(0.4, 0.0))
    sync = Simulation(known, SYNC).run(30)
    for bound in (0, 1, 4):
        free = Simulation(known, recipe(FREE, DROP, f"groups.max_staleness={bound}")).run(30)
        assert max(free.ages) <= bound
    held = Simulation(known, recipe(FREE, "groups.max_staleness=2")).run(30)
    assert max(held.ages) <= 2
    assert "stale" not in held.dropped
    assert free.step_s < 0.3 * sync.step_s
    assert free.engine_busy > 0.85 > 0.4 > sync.engine_busy
    even = rates([tuple(played(float(at % 2)) for at in range(4))], TrainerRate(0.4, 0.0), engine=QUICK)
    free = Simulation(even, recipe(FREE)).run(30)
    assert free.trainer_busy > 0.98  # the trainer is what bounds it now
    assert free.step_s == pytest.approx(0.4, rel=0.02)


def test_one_step_ahead_lies_between():
    known = rates(long_tailed(), TrainerRate(0.4, 0.0))
    steps = [Simulation(known, recipe(f"rollouts.lag={lag}")).run(30).step_s for lag in (0, 1)]
    assert steps[1] < steps[0] - 0.3  # the step and its delivery are hidden
    assert max(Simulation(known, recipe("rollouts.lag=1")).run(30).ages) == 1


def test_stragglers_are_left_behind_and_groups_alike_make_no_step():
    slow, quick = played(1.0, tools_s=60.0), [played(float(at % 2)) for at in range(3)]
    small = (FREE, DROP, "rollouts.groups_per_step=1", "rollouts.concurrency=8")
    setup = recipe(*small, "groups.straggler_s=2.0")
    forecast = Simulation(rates([(*quick, slow)]), setup).run(10)
    assert forecast.samples == 30
    assert forecast.step_s < 10
    alike = tuple(replace(played(1.0 - at / 100), verdict=1.0) for at in range(4))  # they differ by effort alone
    mixed = Simulation(
        rates([alike, (*quick, played(0.0))]), recipe(*small, "groups.straggler_s=100.0"), seed=None
    ).run(10)
    assert mixed.dropped["zero_variance"] >= 9
    assert mixed.samples == 40


def test_a_question_has_one_answer():
    known = rates(long_tailed())
    first, second, other = (Simulation(known, SYNC, seed).run(20) for seed in (1, 1, 2))
    assert first == second != other


def lines(steps=6):
    """The metrics of a run whose engine takes 2 ms a step, 0.5 ms a sequence and 0.02 ms a token read."""
    rng = np.random.default_rng(0)
    gauges, total = [], np.zeros(3)
    for at in range(10):
        gauges.append({
            "steps": total[0], "decode_tokens": total[1], "prefill_tokens": total[2],
            "busy_s": float(total @ [0.002, 0.0005, 0.00002]), "elapsed_s": 2.0 * at,
        })  # fmt: skip
        total += [rng.integers(100, 200), rng.integers(500, 4000), rng.integers(1000, 9000)]
    step = [
        {"batch_tokens": n, "step_s": 0.3 + n * 2e-5, "step_wall_s": 0.35 + n * 2e-5}
        for n in rng.integers(5_000, 20_000, steps)
    ]
    each = {"seconds": 3.0, "session_s": 2.0, "turns": [[100, 40, 0.5], [60, 20, 0.0]]}
    rollouts = [{"id": str(at), "group": f"g{at // 4}", "reward": at % 2, **each} for at in range(33)]
    rollouts.append(rollouts[-2])  # told again when the run was resumed
    return {"engine": gauges, "step": step, "rollout": rollouts, "delivery": [{"lag_ms": 200.0}, {"lag_ms": 400.0}]}


def test_rates_are_learnt_from_what_a_run_wrote_down():
    known = rates_of(lines(), "run")
    assert (known.engine.step_s, known.engine.decode_s) == (pytest.approx(0.002), pytest.approx(0.0005))
    assert 0 < known.engine.prefill_s <= 0.00002 + 1e-9  # part of it was in a cache
    assert known.trainer.token_s == pytest.approx(2e-5)
    assert (known.trainer.step_s, known.trainer.handover_s) == (pytest.approx(0.3), pytest.approx(0.05))
    assert known.delivery_s == pytest.approx(0.3)
    assert len(known.groups) == 8  # the ninth has one member, and was under way
    assert known.groups[0][0] == Played((Turn(100, 40, 0.5), Turn(60, 20, 0.0)), 0.5, 0.5, 0)
    with pytest.raises(ConfigError, match=r"3 rollouts.*too few"):
        rates_of({**lines(), "rollout": lines()["rollout"][:3]}, "run")


def test_a_rollouts_line_has_its_turns():
    log = [("prompt", 0.0, {}), ("completion", 1.0, {"tokens": 30, "context": 130})]
    log += [("tool_result", 1.5, {}), ("tool_result", 1.8, {}), ("completion", 2.5, {"tokens": 10, "context": 180})]
    events = tuple(Event(kind, at, data) for kind, at, data in [*log, ("end", 2.6, {})])
    line = rollout_line(sample_of(Trajectory("g3/1", "t", "g3", (), events, Scored(1.0, {}), seconds=4.0)))
    assert line["turns"] == [[100, 30, 0.8], [40, 10, 0.0]]
    assert (line["group"], line["reward"], line["session_s"], line["seconds"]) == ("g3", 1.0, 2.6, 4.0)
    cheat = Trajectory("g3/1", "t", "g3", (), events, Cheated("it read the tests", -0.1))
    assert [rollout_line(sample_of(cheat))[key] for key in ("reward", "verdict")] == [-0.1, -1.0]


def write_metrics(directory):
    told = lines()
    text = "".join(json.dumps({"kind": kind, **line}, default=float) + "\n" for kind in told for line in told[kind])
    (directory / "metrics.jsonl").write_text(text)


SMALL = load_recipe(
    None,
    RunConfig,
    ["name=p", "rollouts.concurrency=8", "groups.size=4", "rollouts.groups_per_step=2", "groups.straggler_s=2.0"],
)


def test_the_plan_says_what_would_do_more(tmp_path, capsys):
    plan = plan_of(SMALL, rates(long_tailed(), TrainerRate(0.3, 1e-5), 0.05, QUICK))
    assert plan.better.config.rollouts.concurrency > 8
    assert plan.better.samples_per_s > 1.3 * plan.now.samples_per_s
    assert plan.better.forecast.age(0.99) <= SMALL.groups.max_staleness
    assert any("<- the recipe" in line for line in lines_of(plan))
    write_metrics(tmp_path)
    assert main(["plan", "recipes/quickstart.toml", "--from", str(tmp_path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["now"]["concurrency"] == 64
    assert 0 < said["inference_share"] < 1
    assert main(["plan", "recipes/quickstart.toml", "--from", str(tmp_path / "none")]) == 42


@pytest.mark.proof(3.5)
def test_a_slower_trainer_wants_fewer_engines_and_the_command_prints_its_rows(tmp_path, capsys):
    plan, again = (
        plan_of(SMALL, rates(long_tailed(), trainer, 0.05, QUICK))
        for trainer in (TrainerRate(0.3, 1e-5), TrainerRate(0.6, 2e-5))
    )
    assert again.trainer_s == pytest.approx(2 * plan.trainer_s, rel=0.05)
    assert again.engines_per_trainer < plan.engines_per_trainer
    write_metrics(tmp_path)
    assert main(["plan", "recipes/quickstart.toml", "--from", str(tmp_path)]) == 0
    assert "<- the recipe" in capsys.readouterr().out


def test_what_a_run_must_have_used_depends_on_its_schedule():
    def wanted(*sets):
        return set(used_in_time(load_recipe(None, RunConfig, ["name=p", *sets])))

    step = 'rollouts.schedule="lockstep"'
    assert wanted() == {"in_flight_swaps", "parity_tokens", "effort_charged"}
    assert wanted("groups.max_staleness=0") == {"in_flight_swaps", "effort_charged"}
    assert wanted(step) == {
        "effort_charged"
    }  # no older version samples what is trained on, and none is swapped in meanwhile
    effortless = "rewards.effort.enabled=false"
    assert wanted(step, "rollouts.lag=1", effortless) == {"parity_tokens"}
    assert wanted("trainer.parity_tokens=0", "groups.overlong=drop", effortless) == {"in_flight_swaps", "truncated"}
    assert wanted(step, "rewards.effort.scale=0") == set()
    assert "masked_tokens" in wanted("trainer.loss.band=0.1")


def test_the_pipeline_benchmark_reads_two_runs_and_says_what_it_promises(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    pipeline = importlib.import_module("pipeline")
    sides = []
    for name, every_s, sets in (("sync", 4.0, pipeline.SYNC), ("async", 2.0, [])):
        told = lines()
        for at, line in enumerate(told["step"]):
            line |= {"elapsed_s": every_s * at, "trained_rollouts": 32, "solve_rate": 0.1 * at, "step_s": 0.4}
        for line in told["engine"]:
            line["work_s"] = 1.25 * line["busy_s"]
        where = tmp_path / name
        where.mkdir()
        text = "".join(json.dumps({"kind": k, **line}, default=float) + "\n" for k in told for line in told[k])
        (where / "metrics.jsonl").write_text(text)
        counted = {"age_tokens": {"0": 900, "1": 90, "2": 10}, "groups_dropped": {}}
        (where / "summary.json").write_text(json.dumps({"lost": 0, "trained_twice": 0, "counters": counted}))
        config = load_recipe(pipeline.RECIPE, RunConfig, [*pipeline.COMMON, *sets])
        sides.append(pipeline.figures_of(config, where))
    figures = pipeline.summarise(*sides, trl=8.0)
    assert (figures["speedup"], figures["trl_ratio"]) == (pytest.approx(2.0), pytest.approx(2.0))
    assert (figures["engine_busy"], figures["age_p99"]) == (pytest.approx(0.8), 1)
    assert figures["trainer_busy"] == pytest.approx(
        0.4 / np.mean([x["step_wall_s"] for x in lines()["step"]]), abs=0.001
    )
    assert (figures["lost"], figures["trained_twice"], figures["equal_samples"]) == (0, 0, 192)
    assert figures["solve_rate_at_equal_samples"] == {"sync": 0.5, "async": 0.5}
    assert figures["sim_error"] > 0
    assert sides[0]["simulated_samples_per_s"] < sides[1]["simulated_samples_per_s"]


def test_a_run_that_was_too_short_is_told_of_in_one_sentence(tmp_path):
    """A probe by its option, and not by a directory that is gone by then."""
    (tmp_path / "metrics.jsonl").write_text('{"kind": "rollout", "id": "g0/0"}\n')
    for name, origin in (("", str(tmp_path)), ("--probe 5", "--probe 5")):
        with pytest.raises(ConfigError) as error:
            read_rates(tmp_path, name)
        assert str(error.value) == (
            f"{origin}: 1 rollouts, 0 steps and 0 gauges of the engine are too few to learn rates from: 16, 2 and 2 "
            "are needed; let it go on for longer"
        )
