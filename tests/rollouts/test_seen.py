"""What a person sees: the live view, and the figures that it and the summary have, from small made-up runs."""

import io
import json
from dataclasses import replace

import pytest
from played import pool_in, rollout, sent
from rich.console import Console

from etude.errors import UnusedFeature, WeightError
from etude.records import Cheated, Scored, Truncated, Version
from etude.rewards.rates import wilson
from etude.rollouts.evaluate import Judged, summarise
from etude.rollouts.faults import FaultConfig, Restarts
from etude.rollouts.links import Swap
from etude.rollouts.proof import require_used, unused
from etude.rollouts.stats import RunStats
from etude.rollouts.view import UNTRAINED, Call, View, ViewState, render, sparkline

LINE = dict(UNTRAINED) | {"step": 7, "version": 7, "dropped": {"zero_variance": 3}}
STATE = ViewState(
    recipe="quickstart", phase="training", elapsed_s=75, left_s=61, engine_busy=0.5, sandboxes=12,
    instruction="Fix it.",
    history=[LINE | {"reward": 0.1, "solve_rate": 0.2}, LINE | {"reward": 0.5, "solve_rate": 0.6}],
)  # fmt: skip
STATE.calls.append(Call("read_file", "ship.py", "def ship(a):", False))
USAGE = {
    "turns": 3, "tool_calls": 4, "parallel_turns": 1, "error_observations": 0, "malformed_calls": 0,
}  # fmt: skip


def drawn(width):
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(render(STATE))
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 160])
def test_the_view_fits_and_says_what_matters(width):
    text = drawn(width)
    assert all(len(line) <= width for line in text.splitlines())
    assert len(text.splitlines()) <= 24
    for part in ("quickstart", "training", "version 7", "60%", "12", "alike 3", "read_file", "def ship(a):", "1:15"):
        assert part in text


def test_a_plain_terminal_gets_lines_and_a_quiet_one_nothing():
    for quiet, expected in ((False, "step 1\n"), (True, "")):
        console = Console(file=io.StringIO(), force_terminal=False)
        with View(STATE, quiet, console) as view:
            view.refresh()
            view.line("step 1")
        assert console.file.getvalue() == expected


def test_sparklines_and_intervals():
    assert sparkline([0, 0.5, 1]) == " ▄█"
    low, high = wilson(80, 100)
    assert (round(low, 3), round(high, 3)) == (0.711, 0.867)
    assert wilson(0, 0) == (0.0, 1.0)


def judged(split, rung, solved):
    return Judged(f"{split}{rung}", split, rung, solved, "Scored", "operator", "pair", USAGE, True, 0)


def test_the_summary_counts_each_set_apart():
    base = [judged("eval", 1, False), judged("eval", 2, True), judged("heldout", 1, False)]
    after = [judged("eval", 1, True), judged("eval", 2, True), judged("heldout", 1, True), judged("real", 0, False)]
    figures = summarise(base, after, base)
    assert (figures["base_pass1"], figures["pass1"], figures["sft_control_pass1"]) == (0.5, 1.0, 0.5)
    assert (figures["heldout_before"], figures["heldout_after"], figures["real_after"]) == (0.0, 1.0, 0.0)
    assert figures["rungs"]["1"] == [0.0, 1.0, 0.0]
    assert figures["real_before"] is None and figures["rungs"]["3"] == [None] * 3  # nothing was played there


def test_a_restart_is_seen_in_a_log_and_above_the_view(tmp_path):
    for terminal in (False, True):
        console = Console(width=120, file=io.StringIO(), force_terminal=terminal)
        restarts = Restarts(FaultConfig(), tmp_path / "metrics.jsonl")
        with View(replace(STATE), console=console) as view:
            restarts.told = view.warn
            restarts.spend("trainer", "rank 1 of the trainer, on vm, died")
        assert console.file.getvalue().count("restart (trainer): rank 1 of the trainer, on vm, died") == 1


def test_an_enabled_feature_that_was_never_used_is_an_error(tmp_path):
    stats = RunStats(tmp_path / "metrics.jsonl")
    stats.counters["tool_calls"] = 3
    counters = stats.counted({"swaps": 1})
    assert counters["swaps"] == 1 and unused(["tool_calls"], counters) == []
    require_used([], counters)
    with pytest.raises(
        UnusedFeature, match=r"never used in this run: routes_given \(of trainer\.router_replay\); leave"
    ):
        require_used(unused(["tool_calls", "routes_given"], counters), counters)


def test_the_parts_of_the_reward_add_up_to_it(tmp_path):
    outcomes = [
        Scored(0.9, {"tests": 1.0, "effort": -0.1}), Scored(1.0, {"tests": 1.0, "effort": 0.0}),
        Truncated("turns", -0.2, {"tests": 0.0, "unfinished": -0.2}), Cheated("changed a test", -0.5),
    ]  # fmt: skip
    pool = pool_in(tmp_path, size=4)
    for slot, outcome in zip(sent(pool, 0), outcomes, strict=True):
        pool.slots.advance_to(slot, 1, "scored")
        pool.add(replace(rollout(slot, 0.0), outcome=outcome), now=0.0)
    line = RunStats(tmp_path / "metrics.jsonl").before_step(pool.take(1, 0, 100), pool, Version(0), 1.0)
    assert line["parts"] == pytest.approx({"tests": 0.5, "effort": -0.025, "unfinished": -0.05, "cheated": -0.125})
    assert sum(line["parts"].values()) == pytest.approx(line["reward"])


def test_effort_is_counted_where_it_was_charged(tmp_path):
    stats = RunStats(tmp_path / "metrics.jsonl")
    for parts in ({"tests": 1.0, "effort": -0.1}, {"tests": 0.0, "effort": -0.0}, {"tests": 1.0}):
        stats.rolled_out(replace(rollout("g0/0", 1.0), outcome=Scored(1.0, parts)))
    stats.rolled_out(replace(rollout("g0/1", 1.0), outcome=Truncated("turns", 0.9, {"tests": 1.0, "effort": -0.1})))
    stats.rolled_out(rollout("g0/2", None))
    assert (stats.counters["effort_charged"], stats.counters["rollouts"]) == (2, 5)


def test_what_engines_counted_is_known_in_the_next_life(tmp_path):
    first = RunStats(tmp_path / "metrics.jsonl")
    first.saw_engine({"prefix_hit_tokens": 5, "swaps": 0, "busy_s": 1.5})
    first.saw_engine({"prefix_hit_tokens": 7, "swaps": 0, "busy_s": 2.5})
    again = RunStats(tmp_path / "metrics.jsonl", first.state())
    counters = again.counted({"prefix_hit_tokens": 0, "swaps": 2})
    assert (counters["prefix_hit_tokens"], counters["swaps"]) == (7, 2)


def swapped(version, pause_ms=1.0, seconds=0.01):
    loaded = {"version": version, "root": "a", "bytes": 5, "deltas": 1, "pause_ms": pause_ms}
    return Swap("engine-0", loaded, seconds)


def test_an_engine_with_another_root_is_an_error(tmp_path):
    stats = RunStats(tmp_path / "metrics.jsonl")
    stats.swapped({"root": "a"}, [swapped(1)])
    assert stats.counters["roots_verified"] == 1
    with pytest.raises(WeightError, match="root"):
        stats.swapped({"root": "b"}, [swapped(2)])


def step_line(step, **facts):
    line = {
        "step": step,
        "version": step,
        "publish_stall_ms": 0.0,
        "snapshot_ms": 2.0,
        "save_stall_ms": 1.0,
        "trained_tokens": 5.0,
        "routes_given": 7.0,
        "used": {"masked_tokens": 2.0, "gated_segments": 0.0},
    }
    line |= {"trained_rollouts": 8, "age_tokens": {"0": 3, "1": 2}, "dropped": {"stale": step}, "max_abs_dlogp": 0.1}
    return line | facts


def publication(version):
    sizes = {"delta_bytes": 10, "raw_bytes": 4_000_000}
    return {"version": version, "root": "r", **sizes, "publish_ms": 30.0, "saved_ms": 20.0 * version}


def test_a_version_is_counted_once_and_its_delivery_written_when_engines_hold_it(tmp_path):
    path = tmp_path / "metrics.jsonl"
    stats = RunStats(path)
    assert stats.delivery()["lag_ms"] is None
    for version in (0, 1, 1, 2, 2):  # the base is none of the run's own; a resumed run is told again
        stats.published(publication(version))
    assert (stats.counters["deltas_published"], stats.counters["delta_bytes_published"]) == (2, 20)
    stats.stepped(step_line(1, publish_stall_ms=0.0))
    stats.stepped(step_line(2, publish_stall_ms=7.0))
    stats.delivered(publication(1), [swapped(1, 1.0, 0.02), swapped(1, 4.0, 0.01)])
    stats.delivered(publication(2), [Swap("engine-0", None, 0.1, lost=True)])
    delivery = stats.delivery()
    assert (delivery["lag_ms"], delivery["swap_pause_ms"], delivery["applied_GBps"]) == (50.0, 4.0, 1.0)
    assert (delivery["publish_stall_ms"], delivery["snapshot_ms"], delivery["save_stall_ms"]) == (7.0, 2.0, 2.0)
    assert [json.loads(line)["kind"] for line in path.read_text().splitlines()] == ["step", "step", "delivery"]
    resumed = RunStats(path, stats.state(), step_line(2, version=0))  # skipped steps alone: version 1 is made again
    assert [json.loads(line)["kind"] for line in path.read_text().splitlines()] == ["step", "step", "step"]
    assert resumed.newest_published == 2


def test_a_switch_of_the_algorithm_that_changed_no_token_is_an_error(tmp_path):
    stats = RunStats(tmp_path / "metrics.jsonl")
    for step in (1, 2):
        stats.stepped(step_line(step))
    counters = stats.counted({})
    assert counters["masked_tokens"] == 4
    assert unused(["masked_tokens", "gated_segments"], counters) == ["gated_segments"]


def test_a_run_killed_after_a_step_was_saved_still_counts_it_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    first = RunStats(path)
    first.stepped(step_line(1, max_abs_dlogp=None))
    assert first.max_abs_dlogp is None
    first.stepped(step_line(2, max_abs_dlogp=0.5))
    saved = first.state()  # goes into the checkpoint of step 3, whose line is written or not before the kill
    for written in ([], [step_line(3)], [step_line(3), step_line(4)]):
        for line in written:
            first.write("step", line)
        with path.open("a") as file:
            file.write('{"kind": "step", "st')
        resumed = RunStats(path, json.loads(json.dumps(saved)), step_line(3))
        assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]
        assert (resumed.steps, resumed.counters["trained_rollouts"], resumed.max_abs_dlogp) == (3, 24, 0.5)
        assert (resumed.ages, resumed.dropped) == ({"0": 9, "1": 6}, {"stale": 3})
        assert [line["step"] for line in resumed.history] == [1, 2, 3]
