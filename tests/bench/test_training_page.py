"""The page of a training run, from what a small made-up run has left."""

import json
import math

from etude.bench.curves import curves
from etude.bench.training import shown_side_by_side, write_report
from etude.rollouts.evaluate import Judged, as_json, summarise
from etude.rollouts.examples import side_by_side
from etude.rollouts.trajectory_store import TrajectoryStore

USAGE = {
    "turns": 3, "tool_calls": 4, "parallel_turns": 1, "error_observations": 0, "malformed_calls": 0,
}  # fmt: skip


def judged(split, rung, solved):
    return Judged(f"{split}{rung}", split, rung, solved, "Scored", "operator", "pair", USAGE, True, 0)


def written(tmp_path):
    """The page of a run of an older Etude, whose steps have no parts and no norms."""
    results = [judged("eval", rung, rung < 3) for rung in (1, 2, 3, 4, 5)] + [judged("heldout", 1, True)]
    for label in ("base", "after", "control"):
        (tmp_path / f"evaluation-{label}.json").write_text(json.dumps(as_json(results)))
    summary = summarise(results, results, results) | {
        "wall_s": 800, "max_abs_dlogp": 1e-5, "samples_per_s": 8, "trainer_busy": 0.6, "engine_busy": 0.8, "steps": 2,
        "cpu_by_part": {"engine": 100, "trainer": 80}, "counters": {"tool_calls": 9, "age_tokens": {"0": 5, "1": 2}},
    }  # fmt: skip
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "recipe.json").write_text(json.dumps({"rollouts": {"family": "ladder"}, "name": "small", "seed": 3}))
    step = {"kind": "step", "elapsed_s": 60, "solve_rate": 0.5, "reward": 0.4, "mismatch_k3": 1e-4, "entropy": 0.1}
    (tmp_path / "metrics.jsonl").write_text("\n".join(json.dumps(step | {"elapsed_s": n}) for n in (60, 120)))
    edit = {"kind": "tool_call", "name": "edit_file", "arguments": {"path": "a.py", "old": "<b>x</b>", "new": "y"}}
    (tmp_path / "examples.json").write_text(json.dumps({"a failure": {"task": "t", "events": [edit]}}))
    pair = {"gained": 3, "lost": 1, "task": "eval8", "sessions": {"after": [edit], "control": [edit]}}
    (tmp_path / "pair.json").write_text(json.dumps(pair))
    return write_report(tmp_path).read_text()


def test_the_report_holds_everything_and_fetches_nothing(tmp_path):
    text = written(tmp_path)
    assert text.count("<svg") == 5
    shown = ("small", "seed 3", "a failure", "&lt;b&gt;x&lt;/b&gt;", "40.0%", "held-out ladder", "tool_calls", "eval8")
    assert [part for part in shown if part not in text] == []
    assert "<b>x</b>" not in text
    assert "src=" not in text
    assert "https://" not in text.replace("https://matplotlib.org", "")


ALWAYS = ("Solved, and reward", "How far the policy is from its sampler")
LENGTHS = ("Turns of a rollout, of the last 128", "Tokens sampled in a rollout, of the last 128")
NEWER = ("Reward by part, mean of the batch", "Norm of the gradient, before it is clipped")


def test_lengths_norms_and_parts_are_drawn_of_the_lines_that_have_them():
    step = {"kind": "step", "elapsed_s": 60, "solve_rate": 0.5, "reward": -0.4, "mismatch_k3": 0.0, "entropy": 0.1}
    rollout = {"kind": "rollout", "turns": [[100, 20, 0.5], [30, 10, 0.1]]}
    parts = {"tests": 0.5, "effort": -0.1, "brief": 0.0}
    newer = [
        step | {"parts": parts, "grad_norm": norm, "used": {"clipped_steps": cut}}
        for norm, cut in ((0.5, 0), (9.0, 1), (math.inf, 0), (math.nan, 0))
    ]
    for lines, titles in (
        ([step], ALWAYS),
        ([rollout, step], ALWAYS + LENGTHS),
        ([*newer, rollout], ALWAYS + NEWER),  # it came in after all of them
        ([rollout, *newer], ALWAYS + LENGTHS + NEWER),
    ):
        page = curves(lines)
        assert page.count("<svg") == len(titles) and [name for name in titles if f"<!-- {name} -->" not in page] == []
    assert "always 0: brief" in page and "clipped: 1 of 4 steps" in page and "2 steps skipped, not finite" in page
    assert curves([rollout]) == "<p class=faint>The run has made no step.</p>"


def test_the_headline_says_how_the_control_did(tmp_path):
    text = written(tmp_path)
    assert (
        "Fine-tuning control at equal CPU time: pass@1 40%, against 40% after reinforcement learning; held-out" in text
    )


def test_a_run_without_a_task_that_only_training_solved_says_so(tmp_path):
    same = [judged("eval", rung, rung < 3) for rung in (1, 2, 3)]
    told = side_by_side(same, same, TrajectoryStore(tmp_path))
    assert told == {"gained": 0, "lost": 0}
    assert "0 were solved only after" in shown_side_by_side(told)
