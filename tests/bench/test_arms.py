"""The benchmark of arms: its bootstrap, its records, and what its rivals learn from."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from etude.config import parse
from etude.environments.backends import open_backend
from etude.errors import ConfigError
from etude.harness.config import HarnessConfig
from etude.models.chat import ChatRenderer
from etude.models.tokenizer import load_tokenizer
from etude.tasks.expert import CLEAN
from etude.tasks.ladder import ladder_task
from etude.trainer.demonstrations import record
from etude.trainer.hindsight import confirmed
from etude.trainer.taught import balanced

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
from arms import records  # noqa: E402
from arms.figures import SETS, difference, draw, interval, matrix, rate, report  # noqa: E402
from arms.records import Point, Record, Settings  # noqa: E402
from arms.rejection import RejectionConfig  # noqa: E402

SETTINGS = Settings("b", "t", 6.0, None, ("rft.rounds=2",))


def bits(rates):
    return "".join(str(int(each)) for each in rates)


def two_arms(rng, seeds, tasks, apart):
    """Outcomes of arms that are so far apart, [seeds, tasks] each: tasks differ, and so does every training."""
    base = rng.uniform(0.2, 0.6, tasks)
    ours, others = (base + shift + rng.normal(0, 0.03, (seeds, 1)) for shift in (apart, 0.0))
    return [(rng.random((seeds, tasks)) < chance).astype(float) for chance in (ours, others)]


@pytest.mark.parametrize("apart", [0.0, 0.15])
def test_intervals_hold_the_true_difference_as_often_as_they_say(apart):
    rng, held = np.random.default_rng(7), 0
    widths = []
    for trial in range(200):
        ours, others = two_arms(rng, 5, 250, apart)
        low, high = interval(ours - others, draws=500, seed=trial)
        held += low <= apart <= high
        widths.append(high - low)
    assert held >= 184, "of 200, 95% would be 190"
    assert np.mean(widths) < 0.15, "and they are not just wide"


def test_few_seeds_that_disagree_are_trusted_less_than_many_tasks_would_say():
    apart = np.repeat([[0.0], [1.0]], 1000, axis=1)  # two trainings: one solves nothing, the other all
    low, high = interval(apart)
    assert low <= 0 and high >= 1
    assert interval(apart[:1]) == (0.0, 0.0)


def test_arms_that_are_the_same_are_nothing_apart():
    one = [{"eval-1": "0110", "eval-7": "01"}, {"eval-1": "1110", "eval-7": "00"}]
    found = difference(one, one, SETS["ladder"])
    assert found == {"difference": 0.0, "interval": (0.0, 0.0), "seeds": 2}
    rng = np.random.default_rng(3)
    ours, others = two_arms(rng, 3, 400, 0.0)
    low, high = interval(ours - others)
    assert low < 0 < high


def test_a_rate_of_nothing_is_not_certain():
    found = rate([{"real": "0" * 40}], SETS["real"])
    assert found["rate"] == 0 and 0.08 < found["interval"][1] < 0.1
    assert rate([{"eval-1": "01"}], SETS["real"]) is None
    low, high = rate([{"eval-1": "01" * 50}], SETS["ladder"])["interval"]
    assert 0.35 < low < 0.45 and 0.55 < high < 0.65


def test_groups_belong_where_they_should():
    outcomes = [{"eval-5": "00", "eval-6": "11", "heldout-1": "0", "heldout-8": "1", "real": "01"}]
    found = {name: matrix(outcomes, belongs)[0].tolist() for name, belongs in SETS.items()}
    assert found == {
        "ladder": [0, 0, 1, 1], "lower": [0, 0], "upper": [1, 1], "heldout": [0, 1], "heldout_lower": [0],
        "heldout_upper": [1], "real": [0, 1],
    }  # fmt: skip


# --- records ----------------------------------------------------------------------------------------------------------


def made(arm, seed, solved, cpu_s=600.0, **changes):
    outcomes = {"eval-1": bits(solved[:4]), "eval-7": bits(solved[4:]), "heldout-7": bits(solved), "real": "00"}
    curve = (Point(cpu_s / 2, 50, 3, 8), Point(cpu_s, 100, 5, 8))
    return replace(
        Record(arm, seed, SETTINGS, cpu_s, 100, outcomes, None, curve, {"steps": 2.0}, "abc", "2026-01-01"), **changes
    )


def test_a_record_comes_back_as_it_was(tmp_path):
    one = made("sft", 3, [1, 0, 1, 0, 1, 1, 0, 0])
    records.write(tmp_path, one)
    assert records.read(records.path_of(tmp_path, "sft", 3)) == one
    assert records.read_all(tmp_path) == [one]


def test_records_that_do_not_belong_together_are_refused(tmp_path):
    with pytest.raises(SystemExit, match="no record there"):
        records.read_all(tmp_path)
    records.write(tmp_path, made("rl", 0, [1] * 8))
    records.write(tmp_path, made("sft", 0, [1] * 8, settings=replace(SETTINGS, tasks="others")))
    with pytest.raises(SystemExit, match=r"sft-0\.json: its tasks is others, that of .*rl-0\.json is t"):
        records.read_all(tmp_path)


def test_the_report_pairs_the_seeds_that_both_arms_have(tmp_path):
    weak, strong = [1, 0, 0, 0, 0, 0, 0, 0], [1, 1, 0, 0, 1, 1, 0, 0]
    found = [made("base", 0, weak, 0.0), *(made("sft_long", seed, weak, 500.0) for seed in (0, 1))]
    found += [made("sft_rl", seed, strong, 700.0, greedy={"eval-1": "1111"}) for seed in (1, 2)]
    figures = report(found)
    assert figures["sft_rl_minus_sft_long"]["difference"] == 3 / 8
    assert figures["sft_rl_minus_sft_long"]["seeds"] == 1
    assert figures["sft_rl_minus_sft_long_upper"]["difference"] == 0.5
    assert figures["sft_rl_minus_sft_long_heldout"]["difference"] == 3 / 8
    assert figures["sft_rl"]["ladder"]["rate"] == 0.5 and figures["sft_rl"]["greedy"]["ladder"]["rate"] == 1.0
    assert figures["base"]["real"]["rate"] == 0.0
    assert figures["cpu_s"] == {"sft_long": 500.0, "sft_rl": 700.0}
    assert figures["seeds"] == {"sft_long": [0, 1], "sft_rl": [1, 2]}
    assert not any(name.startswith("rl_minus") for name in figures)
    draw(found, tmp_path / "curves.svg")
    assert "<svg" in (tmp_path / "curves.svg").read_text()


def test_other_tasks_have_another_digest():
    tasks = [ladder_task(rung, "eval", 5) for rung in (1, 7)]
    assert records.digest(tasks) == records.digest([ladder_task(rung, "eval", 5) for rung in (1, 7)])
    assert records.digest(tasks) != records.digest(tasks[::-1])
    other = replace(tasks[0], files={**tasks[0].files, "check.py": b""})
    assert records.digest(tasks) != records.digest([other, tasks[1]])
    assert records.outcomes_of(tasks, {tasks[0].id: True, tasks[1].id: False}) == {"eval-1": "1", "eval-7": "0"}


# --- what rivals learn from -------------------------------------------------------------------------------------------


def test_rare_successes_weigh_as_much_as_common_ones_within_bounds():
    found = balanced({1: list("aaaaaaaa"), 7: list("bc"), 8: list("d")}, most_repeats=3)
    assert {each: found.count(each) for each in "abcd"} == {"a": 8, "b": 3, "c": 3, "d": 3}
    assert balanced({}, 3) == []


def test_rejection_sampling_must_leave_time_to_learn():
    with pytest.raises(ConfigError, match="of the time at the end"):
        parse({"rounds": 5, "sampling_share": 0.7}, RejectionConfig, origin="test")


def test_hindsight_leaves_out_the_edits_that_the_check_refuted():
    chat = ChatRenderer(load_tokenizer(ROOT / "models/etude-tiny"))
    tasks = [ladder_task(rung, "train", number) for rung in (6, 8) for number in range(2)]

    async def recorded():
        backend = open_backend()
        try:
            return [result async for _, result in record(tasks, backend, chat, CLEAN, HarnessConfig(), seed=0)]
        finally:
            await backend.close()

    left_out = 0
    for result in asyncio.run(recorded()):
        [document], [segment] = confirmed(result, chat), result.segments
        said = chat.decode(segment.token_ids[segment.sampled].tolist())
        learned = chat.decode(segment.token_ids[document.sampled].tolist())
        assert learned.count("edit_file") >= 1 and learned.endswith("Done.")
        assert not (document.sampled & ~segment.sampled).any()
        refuted = [event for event in result.events if event.kind == "tool_result" and "FAIL" in event.data["text"]]
        tries = len(refuted) - 1  # the first check comes before any edit
        assert said.count("check.py") == learned.count("check.py"), "the check beside a wrong guess is learned"
        assert said.count("edit_file") - learned.count("edit_file") == tries, "and so is what takes it back"
        left_out += tries
    assert left_out > 0
