"""Golden numbers of the effort penalty, and how the parts become an outcome."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.config import parse
from etude.errors import ConfigError
from etude.harness.events import EventLog
from etude.harness.prompt import render_call
from etude.harness.session import SessionResult
from etude.records import Cheated, InfraFailed, Scored, Task, Truncated, Verifier, reward_of, solved
from etude.rewards.audit import Finding, Report
from etude.rewards.effort import Effort, EffortConfig, Weights, concave_cost, effort_in, effort_of
from etude.rewards.judge import JudgeConfig, Judged, NotJudged, RubricResult
from etude.rewards.judge.config import JudgeEndpointConfig
from etude.rewards.judgement import Judgement
from etude.rewards.quality import Quality, QualityConfig, Style
from etude.rewards.quality.style import Breach
from etude.rewards.reward import RewardConfig, score
from etude.rewards.verifier import Verdict

PASSED, FAILED = Verdict(1.0, "passed"), Verdict(0.0, "failed")


TASK = Task("t", "", {}, Verifier({}))


def session(stop="finished", turns=4, tool_calls=6, malformed_calls=0, sampled_tokens=250):
    usage = {
        "turns": turns,
        "tool_calls": tool_calls,
        "malformed_calls": malformed_calls,
        "sampled_tokens": sampled_tokens,
    }
    return SessionResult("s", (), (), stop, usage)


@pytest.mark.parametrize(
    ("x", "k", "q", "cost"),
    [
        (0.0, 0.5, 0.5, 0.0),
        (6.0, 0.5, 0.5, 4.0),  # (sqrt(1 + 3) - 1) / 0.25
        (16.0, 0.5, 0.5, 8.0),  # (sqrt(9) - 1) / 0.25
        (5.0, 1.0, 0.0, 5.0),  # q = 0 is linear
        (3.0, 1.0, 2.0, 0.75),  # (1/4 - 1) / -1
        (3.0, 1.0, 1.0, math.log(4.0)),
    ],
)
def test_golden_costs(x, k, q, cost):
    assert concave_cost(x, k, q) == pytest.approx(cost, rel=1e-12)


@given(st.floats(0, 1e4), st.floats(0.1, 100), st.floats(0.01, 10), st.floats(0, 3))
def test_cost_rises_ever_more_slowly(x, step, k, q):
    low, middle, high = (concave_cost(x + i * step, k, q) for i in range(3))
    assert low <= middle <= high
    assert high - middle <= (middle - low) * (1 + 1e-6) + 1e-6
    assert middle <= (x + step) * (1 + 1e-9)


@given(st.floats(0, 1e3), st.floats(0.01, 10))
def test_cost_is_continuous_where_the_formula_changes(x, k):
    assert concave_cost(x, k, 1.0) == pytest.approx(concave_cost(x, k, 1.0 + 1e-7), rel=1e-4)


def test_effort_is_the_weighted_sum_of_six_quantities():
    weights = Weights(token_unit=100, thinking=1, call_tokens=2, output=0.5, final=3, calls=0.25, turns=1)
    effort = Effort(100, 50, 300, 20, 6, 4)
    assert effort_of(effort, weights) == (100 + 100 + 150 + 60) / 100 + 1.5 + 4
    assert effort_of(replace(effort, turns=2), weights) < effort_of(effort, weights)  # parallel calls are cheaper


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 99), st.integers(0, 99))
def test_by_default_all_that_was_sampled_weighs_the_same(thinking, called, final, calls, turns):
    effort = Effort(thinking, called, 12_345, final, calls, turns)
    plain = (thinking + called + final) / 100.0 + 0.25 * calls + 1.0 * turns
    assert effort_of(effort) == plain  # to the bit: runs must be comparable


def test_the_tokens_of_a_message_are_divided_by_its_words_and_its_calls():
    call = render_call("read_file", {"path": "a.py"})
    log = EventLog()
    log.add("completion", turn=1, text=f"{'x' * len(call)}{call}", tokens=40)  # half words, half a call
    log.add("tool_call", turn=1, index=0, name="read_file", arguments={"path": "a.py"})
    log.add("completion", turn=2, text="", tokens=10)  # all of it a native call
    log.add("tool_call", turn=2, index=0, name="read_file", arguments={"path": "b.py"})
    log.add("completion", turn=3, text=f"<think>{'y' * 85}</think>{'z' * 100}", tokens=60)  # half thought, half said
    usage = {"sampled_tokens": 117, "observed_tokens": 70, "tool_calls": 2, "turns": 3}  # 7 more, of a summary
    found = effort_in(SessionResult("s", (), log.events, "finished", usage))
    assert found == Effort(thinking_tokens=57, call_tokens=30, output_tokens=70, final_tokens=30, calls=2, turns=3)


def test_a_solved_session_pays_for_its_effort():
    config = RewardConfig(effort=EffortConfig(scale=0.02, k=0.25, q=0.5))
    outcome = score(TASK, session(), Judgement(PASSED), config)
    cost = 0.02 * (math.sqrt(1 + 0.25 * 8.0) - 1) / 0.125
    assert isinstance(outcome, Scored)
    assert solved(outcome)
    assert outcome.reward == pytest.approx(1 - cost) == pytest.approx(sum(outcome.parts.values()))
    assert set(outcome.parts) == {"tests", "effort", "malformed", "unfinished"}


def test_an_unsolved_session_pays_for_malformed_calls_only():
    outcome = score(TASK, session(malformed_calls=2), Judgement(FAILED), RewardConfig())
    assert outcome == Scored(-0.04, {"tests": 0.0, "effort": 0.0, "malformed": -0.04, "unfinished": 0.0})
    flood = score(TASK, session(malformed_calls=500), Judgement(FAILED), RewardConfig())
    assert reward_of(flood) == -0.1


@given(st.integers(0, 100_000), st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000))
def test_solved_is_always_worth_more_than_unsolved(tokens, calls, turns, malformed):
    worst = score(TASK, session("turns", turns, calls, malformed, tokens), Judgement(PASSED), RewardConfig())
    best = score(TASK, session("finished", 0, 0, 0, 0), Judgement(FAILED), RewardConfig())
    assert reward_of(worst) > reward_of(best)


@pytest.mark.parametrize("limit", ["turns", "context", "tokens", "wall"])
def test_a_cut_session_keeps_its_verdict(limit):
    config = RewardConfig(effort=EffortConfig(enabled=False), unfinished_penalty=0.25)
    outcome = score(TASK, session(limit), Judgement(PASSED), config)
    assert isinstance(outcome, Truncated)
    assert outcome.limit == limit
    assert solved(outcome)
    assert outcome.reward == 0.75


def test_a_session_that_repeats_itself_is_no_cut_one():
    """What leaves cut sessions out of a group must not leave out what the model did itself."""
    config = RewardConfig(effort=EffortConfig(enabled=False), unfinished_penalty=0.25)
    outcome = score(TASK, session("repetition"), Judgement(PASSED), config)
    assert outcome == Scored(0.75, outcome.parts) and outcome.parts["unfinished"] == -0.25


def test_a_partly_passed_suite_is_not_solved():
    outcome = score(TASK, session(), Judgement(Verdict(0.9, "failed")), RewardConfig())
    assert not solved(outcome)
    assert reward_of(outcome) == 0.0


def test_infrastructure_is_never_scored():
    assert reward_of(score(TASK, session(), Judgement(InfraFailed("sandbox")), RewardConfig())) is None


def test_touching_a_visible_test_is_punished_only_where_asked():
    touched = Verdict(1.0, "passed", touched=("check.py",))
    assert solved(score(TASK, session(), Judgement(touched), RewardConfig()))
    cheated = score(TASK, session(), Judgement(touched), RewardConfig(punish_touched=True))
    assert isinstance(cheated, Cheated)
    assert "check.py" in cheated.evidence and cheated.reward == -0.1


def test_unknown_keys_are_refused():
    with pytest.raises(ConfigError, match=r"effort\.scal: unknown key"):
        parse({"effort": {"scal": 1}}, RewardConfig, "recipe.toml")


def test_a_session_that_cheated_is_worth_the_floor_where_that_is_punished():
    cheat = Finding("answer read", "git history", "turn 1, call 1", "git reflog")
    cheated, suspected = Report((cheat,)), Report((replace(cheat, grade="suspect"),))
    punish = RewardConfig(audit="punish")
    outcome = score(TASK, session(), Judgement(PASSED, cheated), punish)
    assert outcome == Cheated("answer read (git history) at turn 1, call 1: git reflog", punish.floor)
    assert reward_of(outcome) == -0.1 and not solved(outcome)
    plain = score(TASK, session(), Judgement(PASSED), RewardConfig())
    assert score(TASK, session(), Judgement(PASSED, suspected), punish) == plain
    assert solved(score(TASK, session(), Judgement(PASSED, cheated), RewardConfig(audit="watch")))
    assert isinstance(score(TASK, session(), Judgement(InfraFailed("sandbox")), punish), InfraFailed)
    with pytest.raises(ValueError, match="was not audited"):
        score(TASK, session(), Judgement(PASSED), punish)


penalties = st.one_of(st.just(0.0), st.floats(0.001, 0.4))
floored = st.builds(
    lambda malformed, unfinished, scale, effort_cap, quality_cap, *each: RewardConfig(
        malformed_penalty=malformed,
        unfinished_penalty=unfinished,
        punish_touched=True,
        effort=EffortConfig(scale=scale, **({"cap": effort_cap} if scale else {})),
        quality=QualityConfig(
            **dict(zip(("lint_penalty", "style_penalty", "todo_penalty", "talk_penalty"), each, strict=True)),
            **({"cap": quality_cap} if any(each) else {}),
        ),
    ),
    penalties,
    penalties,
    penalties,
    st.floats(0.1, 0.9),
    st.floats(0.1, 0.9),
    *[penalties] * 4,
)


@given(floored)
def test_cheating_never_pays_more_than_the_worst_honest_rollout(config):
    flood = session("turns", 10**9, 10**9, 10**9, 10**9)
    lines, breaches = ("x",) * 10**4, (Breach("a.py", 1, "quotes", "x"),)
    worst_quality = Quality(lints=lines, style=Style(1, breaches), unfinished=lines, talk=lines)
    honest = [
        reward_of(score(TASK, flood, Judgement(verdict, quality=quality), config))
        for verdict, quality in ((PASSED, worst_quality), (FAILED, None))
    ]
    cheat = score(TASK, session(), Judgement(replace(PASSED, touched=("check.py",))), config)
    assert isinstance(cheat, Cheated) and cheat.reward == pytest.approx(min(honest))


@pytest.mark.parametrize(("said", "beside"), [(-0.5, -1.0), (0.5, 0.0)])
def test_parts_of_others_take_off_a_cheats_floor_and_add_nothing_to_it(said, beside):
    config = RewardConfig(punish_touched=True, parts={"test_reward:session": 2.0})
    judgement = Judgement(replace(PASSED, touched=("check.py",)), parts={"test_reward:session": said})
    assert reward_of(score(TASK, session(), judgement, config)) == pytest.approx(-0.1 + beside)


QUALITY = Quality(lints=("a.py:1: E1",) * 3, style=Style(10, (Breach("a.py", 1, "quotes", "x"),)), unfinished=("y",))


def test_faults_cost_a_solved_session_what_the_config_says_and_no_more():
    costs = {"lint_penalty": 0.02, "style_penalty": 0.5, "todo_penalty": 0.5, "talk_penalty": 0.1, "cap": 0.2}
    config = RewardConfig(effort=EffortConfig(enabled=False), quality=QualityConfig(**costs))
    outcome = score(TASK, session(), Judgement(PASSED, quality=QUALITY), config)
    parts = {name: outcome.parts[name] for name in ("lints", "style", "todos", "talk")}
    assert parts == pytest.approx({"lints": -0.06, "style": -0.05, "todos": -0.2, "talk": 0.0})
    assert outcome.reward == pytest.approx(1 - 0.31)
    assert reward_of(score(TASK, session(), Judgement(FAILED), config)) == 0.0
    assert "lints" not in score(TASK, session(), Judgement(PASSED), RewardConfig()).parts, "nobody looked"


def test_a_rubric_pays_only_where_every_criterion_was_judged():
    judge = JudgeConfig(endpoint=JudgeEndpointConfig(url="http://127.0.0.1:1/v1", model="m"))
    config = RewardConfig(effort=EffortConfig(enabled=False), judge=judge, rubric_weight=0.4)
    yes, no = Judged("a", True, "q", ""), Judged("b", False, "", "")
    for judgements, paid in [((yes, no), 0.2), ((yes, yes), 0.4), ((yes, NotJudged("b", "late", "")), 0.0), ((), 0.0)]:
        said = Judgement(PASSED, rubric=RubricResult(judgements))
        assert score(TASK, session(), said, config).parts["rubric"] == pytest.approx(paid)
    assert score(TASK, session(), Judgement(PASSED), config).parts["rubric"] == 0.0
    with pytest.raises(ConfigError, match="nobody judges"):
        parse({"rubric_weight": 0.1}, RewardConfig, "recipe.toml")
