"""Targeted textual feedback: which message, which hint, and what is distilled where."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from etude.config import load_recipe
from etude.environments.backends import open_backend
from etude.harness.config import HarnessConfig
from etude.models.chat import ChatRenderer
from etude.models.checkpoint import load_checkpoint
from etude.records import Group, Scored, Trajectory
from etude.rollouts.config import RunConfig
from etude.tasks.expert import ExpertConfig
from etude.tasks.ladder import ladder_task
from etude.tasks.trail import trail_task
from etude.tasks.trail_expert import TrailExpertConfig
from etude.trainer.config import CreditConfig, FeedbackConfig, TrainerConfig
from etude.trainer.credit import assign_advantages
from etude.trainer.demonstrations import record
from etude.trainer.distil import distil_hints, token_divergences
from etude.trainer.feedback import Fault, first_fault, hint_example_of, hint_examples_of, message_spans
from etude.trainer.packing import build_batch
from etude.trainer.step import Trainer

torch.set_num_threads(1)
ROOT = Path(__file__).parents[2]
HARNESS = load_recipe(ROOT / "recipes/longhorizon.toml", RunConfig).harness
FORGETFUL = trail_task(2, "eval", 3)
CLUMSY = ladder_task(1, "eval", 0)


@pytest.fixture(scope="module")
def shipped():
    return load_checkpoint(ROOT / "models/etude-tiny")


@pytest.fixture(scope="module")
def chat(shipped):
    return ChatRenderer(shipped[1])


def session(task, chat, expert, harness):
    """A real one, played by a script that does wrong."""

    async def scenario():
        backend = open_backend()
        try:
            [played] = [result async for _, result in record([task], backend, chat, expert, harness, seed=1)]
            return played
        finally:
            await backend.close()

    return asyncio.run(scenario())


@pytest.fixture(scope="module")
def forgetful(chat):
    """A trail whose walker forgets words in its first summary."""
    result = session(FORGETFUL, chat, TrailExpertConfig(forget=1.0), HARNESS)
    return Trajectory("a", FORGETFUL.id, "g", result.segments, result.events, Scored(0.0, {"tests": 0.0}))


@pytest.fixture(scope="module")
def clumsy(chat):
    """A ladder task whose first call is misspelt."""
    result = session(CLUMSY, chat, ExpertConfig(misspell=1.0), HarnessConfig())
    return Trajectory("b", CLUMSY.id, "g", result.segments, result.events, Scored(0.0, {"tests": 0.0}))


def test_messages_are_the_runs_of_sampled_tokens(chat, forgetful):
    texts = [event.data["text"] for event in forgetful.events if event.kind in ("completion", "summary")]
    said = [forgetful.segments[at].token_ids[start:end].tolist() for at, start, end in message_spans(forgetful)]
    assert [chat.decode(ids) for ids in said] == texts and len({at for at, _, _ in message_spans(forgetful)}) == 3
    other = Trajectory("c", "t", "g", forgetful.segments[:1], forgetful.events, forgetful.outcome)
    with pytest.raises(ValueError, match="its segments others"):
        message_spans(other)


def test_the_first_summary_that_forgets_is_found_and_the_hint_says_what(forgetful):
    fault = first_fault(FORGETFUL, forgetful)
    first_summary = [event.kind for event in forgetful.events if event.kind in ("completion", "summary")].index(
        "summary"
    )
    [text] = [event.data["text"] for event in forgetful.events if event.kind == "summary"][:1]
    read = FORGETFUL.provenance["facts"][:3]
    missing = [word for word in read if word not in text.split()]
    assert fault.message == first_summary and missing
    assert fault.hint == f"Keep in your summary what the task will ask for: {', '.join(missing)}."


def test_without_such_a_rule_it_is_the_first_call_that_failed(clumsy):
    fault = first_fault(CLUMSY, clumsy)
    [error] = [event.data["text"] for event in clumsy.events if event.kind == "tool_result" and event.data["error"]][:1]
    assert fault == Fault(0, f"The call you are about to make fails: {error}")


def test_an_example_differs_by_the_hint_before_the_message_and_by_nothing_else(chat, forgetful):
    fault = first_fault(FORGETFUL, forgetful)
    example = hint_example_of(forgetful, fault, chat)
    place = message_spans(forgetful)[fault.message]
    said = example.token_ids[-example.length :].tolist()
    assert said == example.hinted_ids[-example.length :].tolist() and example.length == place.end - place.start
    plain, hinted = (
        chat.tokenizer.decode(ids.tolist(), skip_special_tokens=False)
        for ids in (example.token_ids, example.hinted_ids)
    )
    hint = f"<|im_start|>user\n{fault.hint}<|im_end|>\n"
    assert hinted.replace(hint, "") == plain and hinted.count(hint) == 1
    assert hinted.endswith(f"{hint}<|im_start|>assistant\n{chat.tokenizer.decode(said, skip_special_tokens=False)}")


def test_hints_are_of_failed_trajectories_as_many_as_asked_for_and_fit(chat, forgetful, clumsy):
    solved_one = Trajectory("s", "t", "g", forgetful.segments, forgetful.events, Scored(1.0, {"tests": 1.0}))
    groups = [Group("g", FORGETFUL, (solved_one, forgetful, forgetful)), Group("h", CLUMSY, (clumsy,))]
    assert len(hint_examples_of(groups, chat, FeedbackConfig(), 1024)) == 3

    class Two(FeedbackConfig):
        most: ClassVar[int] = 2

    assert len(hint_examples_of(groups, chat, Two(), 1024)) == 2
    short = hint_examples_of(groups, chat, FeedbackConfig(), 300)
    assert [len(example.hinted_ids) <= 300 for example in short] == [True] * len(short) and len(short) < 3
    judged = hint_examples_of(
        groups, chat, FeedbackConfig(), 1024, finder=lambda task, trajectory: Fault(1, "Look again.")
    )
    assert len(judged) == 3, "whoever reads trajectories can say where they went wrong"


def test_the_distillations_value_and_gradient_at_golden_numbers():
    rng = np.random.default_rng(0)
    teacher, student = rng.normal(size=(2, 5, 7))
    p, q = (np.exp(x - np.log(np.exp(x).sum(-1, keepdims=True))) for x in (teacher, student))
    given = torch.tensor(student, requires_grad=True)
    loss = 0.5 * token_divergences(torch.log_softmax(torch.tensor(teacher), -1), torch.log_softmax(given, -1)).mean()
    loss.backward()
    np.testing.assert_allclose(loss.item(), 0.5 * (p * (np.log(p) - np.log(q))).sum(-1).mean(), rtol=1e-12)
    np.testing.assert_allclose(given.grad.numpy(), 0.5 * (q - p) / 5, rtol=1e-9, atol=1e-12)


def test_the_unhinted_policy_comes_to_say_what_the_hinted_one_would(shipped, chat, forgetful, clumsy):
    decoder = shipped[0]
    examples = [
        hint_example_of(forgetful, first_fault(FORGETFUL, forgetful), chat),
        hint_example_of(clumsy, first_fault(CLUMSY, clumsy), chat),
    ]
    tokens = sum(example.length for example in examples)
    optimizer = torch.optim.SGD(decoder.parameters(), lr=0.02)
    told = []
    for _ in range(6):
        told.append(distil_hints(decoder, examples, 1.0, 1 / tokens)["hint_kl"])
        optimizer.step()
        optimizer.zero_grad()
    assert told[0] > 0.01 and told[-1] < 0.8 * told[0], told


def test_a_hint_weighs_by_its_tokens_and_not_by_how_few_there_are(shipped, chat, forgetful):
    def gradient(count):
        distil_hints(shipped[0], [example] * count, 1.0, 0.25)
        found = torch.cat([each.grad.flatten() for each in shipped[0].parameters() if each.grad is not None])
        shipped[0].zero_grad()
        return found

    example = hint_example_of(forgetful, first_fault(FORGETFUL, forgetful), chat)
    torch.testing.assert_close(gradient(3), 3 * gradient(1), rtol=1e-3, atol=1e-6)


def test_a_step_with_hints_counts_them_and_changes_the_weights(shipped, chat, forgetful):
    config = TrainerConfig(credit=CreditConfig(feedback=FeedbackConfig()), router_replay=False, parity_tokens=0)
    assert {"hints", "hint_tokens"} <= set(config.features) and not config.credit.needs_segments
    group = Group("g", FORGETFUL, (forgetful,))
    batch = build_batch([group], assign_advantages([group], config.advantages, config.credit).advantages, 0)
    examples = hint_examples_of([group], chat, config.credit.feedback, 1024)
    trainer = Trainer(shipped[0], config)
    before = [parameter.detach().clone() for parameter in trainer.policy.parameters()]
    report = trainer.step(batch, 0.0, examples)
    after = list(trainer.policy.parameters())
    assert report["used"]["hints"] == 1 and report["hint_tokens"] == examples[0].length
    assert report["loss"] == 0, "the reward alone has nothing to teach a group of one"
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))
