"""Product, rollout, evaluation and benchmark are one session: same prompt, same tools, same calls, same results, token
for token.

What is compared is recorded where all of them end: at the engine, which is asked with token ids and answers with some.
The product reaches it over HTTP, a rollout directly, an evaluation by `evaluate`, with what a session worker plays, and
a benchmark either way, as its policy is.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from engine_serving import TOKEN, serving
from proofs import one_of_each
from small_models import SHIPPED

from etude.bench.attempts import Table, play_attempt
from etude.bench.config import BenchConfig, EndpointPolicy
from etude.bench.policies import SamplerPlayer, open_policy
from etude.engine.config import EngineConfig
from etude.environments.base import SandboxSpec
from etude.environments.namespace import NamespaceBackend
from etude.harness.config import HarnessConfig
from etude.harness.dialogue import TokenDialogue
from etude.harness.endpoint import Endpoint, EndpointConfig
from etude.harness.endpoint.dialogue import EndpointDialogue
from etude.harness.events import EventLog
from etude.harness.session import Session
from etude.harness.tools import ToolConfig
from etude.models.chat import ChatRenderer
from etude.models.checkpoint import load_checkpoint
from etude.records import Limits, Scored
from etude.rewards.judgement import Judges
from etude.rollouts.config import EvaluationConfig, RunConfig
from etude.rollouts.evaluate import evaluate
from etude.rollouts.session import judge_kept, judge_sealed, play_request
from etude.rollouts.trajectory_store import TrajectoryStore
from etude.tasks.ladder import ladder_task

CONFIG = HarnessConfig(max_turn_tokens=160, tool=ToolConfig(max_observation_bytes=1500))
TASKS = [ladder_task(rung, "eval", 1) for rung in (1, 3)]
LIMITS = Limits(max_turns=6, max_context_tokens=100_000, max_sampled_tokens=100_000, wall_s=100)
"""A context that only the engine bounds: an endpoint's is not known to the token before it answers."""


@pytest.fixture(scope="module")
def shipped():
    model, tokenizer = load_checkpoint(SHIPPED)
    with serving(model, tokenizer, engine=EngineConfig(cache_tokens=8192), name="etude-tiny") as server:
        yield server


async def played(task, dialogue):
    """What a session did, and how long its context was after each message."""
    backend, log = NamespaceBackend(), EventLog()
    try:
        async with asyncio.timeout(120):
            sandbox = await backend.create(SandboxSpec(files=task.files))
            session = Session(sandbox, dialogue, CONFIG, LIMITS, log)
            session.begin(id="s")
            await session.prompt(task.instruction)
    finally:
        await backend.close()
    return told(log.events)


def told(events):
    """The calls, their results, and how long the context was after each message."""
    done = [event for event in events if event.kind in ("tool_call", "tool_result")]
    contexts = [event.data["context"] for event in events if event.kind == "completion"]
    return [{**event.data, "kind": event.kind} for event in done], contexts


@pytest.fixture
def asked(shipped, monkeypatch):
    """Takes what the engine was asked since it was last asked for: the ids of each context, and those of the answer."""
    seen, sample = [], shipped.service.engine.sample

    async def recording(request, *more):
        completion = await sample(request, *more)
        seen.append((tuple(request.prompt_ids), tuple(completion.token_ids)))
        return completion

    def taken():
        found = list(seen)
        seen.clear()
        return found

    monkeypatch.setattr(shipped.service.engine, "sample", recording)
    return taken


@pytest.mark.parametrize("dialect", ["chat", "responses"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("task", one_of_each(0.9, TASKS), ids=["rung 1", "rung 3"])
def test_the_product_is_the_rollout(shipped, monkeypatch, dialect, stream, task):
    monkeypatch.setenv("ETUDE_TEST_KEY", TOKEN)
    chat = ChatRenderer(shipped.service.chat.tokenizer)
    tokens = TokenDialogue(shipped.service.engine, chat, CONFIG.chosen(), session_id="rollout", seed=0, temperature=0.0)
    url = f"{shipped.url}/v1"
    config = EndpointConfig(
        url=url, model="etude-tiny", dialect=dialect, stream=stream, temperature=0.0, key_env="ETUDE_TEST_KEY"
    )

    async def both():
        endpoint = Endpoint(config)
        try:
            product = await played(task, EndpointDialogue(endpoint, CONFIG.chosen(), session_id="product"))
        finally:
            await endpoint.close()
        return await played(task, tokens), product, endpoint.counters

    hits = shipped.service.memory.hits
    rollout, product, counters = asyncio.run(both())
    assert product == rollout and len(rollout[0]) >= 4
    assert shipped.service.memory.hits - hits == counters["requests"] - 1, "the model's own ids were tokenised again"
    assert counters["cached_tokens"] > 0 and counters["retries"] == 0


class Place:
    """Where `evaluate` has its rollouts played: in this process, by the very functions of the two workers."""

    def __init__(self, engine, chat, directory):
        self.engine, self.chat, self.backend = engine, chat, NamespaceBackend()
        self.evaluated = TrajectoryStore(directory)

    async def play_and_judge(self, order):
        config = RunConfig(name="three ways", harness=CONFIG)
        await play_request(order, config, self.backend, self.engine, self.chat, lambda order, event: None)
        async with config.rewards.judges() as judges:
            return await judge_kept(order, lambda rollout: judge_sealed(rollout, config, self.backend, judges))


@pytest.mark.parametrize("task", one_of_each(0.9, TASKS), ids=["rung 1", "rung 3"])
def test_an_evaluation_is_the_same_session_too(shipped, asked, monkeypatch, task, tmp_path):
    monkeypatch.setenv("ETUDE_TEST_KEY", TOKEN)
    task, engine = replace(task, limits=LIMITS), shipped.service.engine
    chat = ChatRenderer(shipped.service.chat.tokenizer)
    config = EndpointConfig(url=f"{shipped.url}/v1", model="etude-tiny", temperature=0.0, key_env="ETUDE_TEST_KEY")

    async def every_way():
        tokens = TokenDialogue(engine, chat, CONFIG.chosen(), session_id="rollout", seed=0, temperature=0.0)
        rollout = await played(task, tokens), asked()
        endpoint = Endpoint(config)
        try:
            dialogue = EndpointDialogue(endpoint, CONFIG.chosen(), session_id="product")
            product = await played(task, dialogue), asked()
        finally:
            await endpoint.close()
        place = Place(engine, chat, tmp_path)
        try:
            _, [sample] = await evaluate(place, [task], EvaluationConfig(temperature=0.0), "before")
        finally:
            await place.backend.close()
        trajectory = place.evaluated.trajectory(sample)
        assert isinstance(trajectory.outcome, Scored)
        [segment] = trajectory.segments
        return rollout, product, (told(trajectory.events), asked()), segment

    rollout, product, evaluation, segment = asyncio.run(every_way())
    (calls, _), requests = rollout
    assert len(calls) >= 4 and len(requests) >= 2
    assert product == rollout and evaluation == rollout
    prompt, answer = requests[-1]
    assert tuple(segment.token_ids) == prompt + answer, "what is trained on is what the engine was asked and said"


@pytest.mark.parametrize("task", one_of_each(0.9, TASKS), ids=["rung 1", "rung 3"])
def test_a_benchmark_is_the_same_session_too(shipped, asked, monkeypatch, task):
    monkeypatch.setenv("ETUDE_TEST_KEY", TOKEN)
    task, engine = replace(task, limits=LIMITS), shipped.service.engine
    chat = ChatRenderer(shipped.service.chat.tokenizer)
    asked_of = EndpointConfig(url=f"{shipped.url}/v1", model="etude-tiny", temperature=0.0, key_env="ETUDE_TEST_KEY")
    config = BenchConfig(harness=CONFIG, policy=EndpointPolicy(endpoint=asked_of), retries=0)

    async def benched(policy):
        backend = NamespaceBackend()
        try:
            async with asyncio.timeout(120):
                done = await play_attempt(task, 0, Table(policy, backend, Judges(), config))
        finally:
            await backend.close()
        assert done.attempt.solved is not None
        return told(done.events), asked()

    async def every_way():
        tokens = TokenDialogue(engine, chat, CONFIG.chosen(), session_id="rollout", seed=0, temperature=0.0)
        rollout = await played(task, tokens), asked()
        sampled = await benched(SamplerPlayer(engine, chat, CONFIG, 0.0, engine.max_context))
        async with open_policy(config.policy, CONFIG, 0) as policy:
            return rollout, sampled, await benched(policy)

    rollout, sampled, endpoint = asyncio.run(every_way())
    (calls, _), requests = rollout
    assert len(calls) >= 4 and len(requests) >= 2
    assert sampled == rollout and endpoint == rollout
