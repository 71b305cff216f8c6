"""The product as a user opens it, a rollout as it is trained on and a benchmark send the same bytes, in ten sessions.

The product is `open_agent`, with its ten tools, the project's rules, permissions, redaction and summaries; a rollout
and a benchmark are given the same `[harness]` table. Compared is what arrives: at the engine the token ids of every
request and answer, at an endpoint the body of every request. What the product alone has is off, as its own config has
it off: `surroundings`. Its user is in the mode `auto`. Marks of secrets come of a key of the session's own, so the
product's has the same name here.
"""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import json
import shutil
import tempfile
from pathlib import Path

import pytest
from engine_serving import TOKEN, serving
from scripted_openai import Reply, ScriptedServer
from small_models import SHAPE, random_decoder, shipped_tokenizer
from ten_sessions import SESSIONS, spoken

from etude.bench.attempts import Table, play_attempt
from etude.bench.config import BenchConfig, EndpointPolicy
from etude.bench.policies import SamplerPlayer, open_policy
from etude.engine.config import EngineConfig
from etude.engine.running import SampledToken
from etude.environments.namespace import NamespaceBackend
from etude.harness.endpoint import EndpointConfig
from etude.harness.sampler import Completion
from etude.harness.store import SessionStore
from etude.models.chat import ChatRenderer
from etude.product.agent import open_agent
from etude.product.config import AgentConfig
from etude.records import Limits, Task, Verifier
from etude.rewards.judgement import Judges
from etude.rollouts.config import RunConfig
from etude.rollouts.session import RolloutRequest, play_request

CONTEXT = 40_000
DEADLINE_S = 240
ROLLED_OUT, BENCHED = "g12/3", "session#0"
"""What a rollout and an attempt are called, and their marks come of."""


@pytest.fixture(scope="module")
def served():
    decoder = random_decoder(shape=SHAPE.model_copy(update={"max_context": CONTEXT}))
    engine = EngineConfig(cache_tokens=CONTEXT + 64)
    with serving(decoder, shipped_tokenizer(), engine=engine, name="scripted") as server:
        yield server


@pytest.fixture
def place(monkeypatch):
    root = Path(tempfile.mkdtemp(prefix="etude-test-", dir="/var/tmp"))  # the sandbox has a /tmp of its own
    monkeypatch.setenv("XDG_CONFIG_HOME", str(root / "config"))
    monkeypatch.setenv("ETUDE_TEST_KEY", TOKEN)
    yield root
    shutil.rmtree(root)


class Marked(SessionStore):
    """Its sessions' marks are those of another session's name."""

    def __init__(self, home, name):
        super().__init__(home)
        self.name = name

    def key(self, session_id):
        return hashlib.sha256(self.name.encode()).digest()


class Spoken:
    """Plays a script in the place of a model, and keeps what it was asked and what it said."""

    def __init__(self, script, chat):
        self.script, self.chat, self.asked, self.summaries = script, chat, [], 0

    async def sample(self, request, on_token=None, constraint=None):
        before = self.chat.decode(request.prompt_ids)
        said = spoken(self.script, len(self.asked), self.summaries, before[-2000:], before)
        self.summaries += said.text.startswith("<think>")
        ids = (*self.chat.encode(said.written()), self.chat.end_id)
        assert len(ids) <= request.max_tokens, "the script has no room"
        self.asked.append((tuple(request.prompt_ids), ids))
        for each in ids if on_token else ():
            on_token(SampledToken(each, 0.0, 0))
        await asyncio.sleep(0)  # who listens is told on the loop, and before the end
        return Completion(ids, (0.0,) * len(ids), (0,) * len(ids), "stop")


def agent_config(url):
    """The product's defaults, but for its model and its surroundings."""
    endpoint = EndpointConfig(url=url, model="scripted", temperature=0.0, key_env="ETUDE_TEST_KEY")
    return AgentConfig(endpoint=endpoint, context_tokens=CONTEXT, surroundings=False)


def task_of(script, config):
    limits = Limits(config.max_turns, config.context_tokens, config.max_sampled_tokens, config.wall_s)
    verifier = Verifier({"/tests/test.sh": b"exit 0\n"}, "sh /tests/test.sh", 60)
    return Task("session", script.instruction, script.files, verifier, limits=limits)


async def as_product(script, config, root, name=BENCHED):
    directory = root / name / "project"
    for path, data in script.files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(data)
    async with open_agent(config, directory, Marked(root / name / "home", name)) as agent:
        agent.gate.mode = "auto"
        assert await agent.play(script.instruction) == "finished"
        return list(agent.session.log)


async def as_rollout(script, config, sampler, chat, kept):
    backend, run = NamespaceBackend(), RunConfig(name="one harness", harness=config.summarised)
    request = RolloutRequest(ROLLED_OUT, "g12", task_of(script, config), seed=0, temperature=0.0, kept=kept)
    try:
        rollout = await play_request(request, run, backend, sampler, chat, lambda request, event: None)
    finally:
        await backend.close()
    assert rollout.sealed is not None and rollout.sealed.result.stop == "finished", rollout.trajectory.outcome
    return rollout.sealed.result.segments


async def as_benchmark(script, config, policy):
    backend = NamespaceBackend()
    bench = BenchConfig(harness=config.summarised, retries=0)
    try:
        done = await play_attempt(task_of(script, config), 0, Table(policy, backend, Judges(), bench))
    finally:
        await backend.close()
    assert done.attempt.stop == "finished", done.attempt.why
    return list(done.events)


def same(product, other, chat, way):
    """Request by request: first what can be read, then the ids."""
    for number, (one, two) in enumerate(zip(product, other, strict=False)):
        ours, theirs = (chat.decode(prompt).splitlines() for prompt, _ in (one, two))
        differ = "\n".join(difflib.unified_diff(ours, theirs, "product", way, lineterm="", n=1))
        assert not differ, f"request {number}:\n{differ}"
    assert product == other, way


@pytest.mark.parametrize("script", SESSIONS, ids=[each.name for each in SESSIONS])
def test_our_own_model_is_asked_with_the_same_ids(served, place, monkeypatch, script):
    engine, chat = served.service.engine, ChatRenderer(served.service.chat.tokenizer)
    config = agent_config(f"{served.url}/v1")

    def model():
        """A fresh one behind the engine."""
        spoken = Spoken(script, chat)
        monkeypatch.setattr(engine, "sample", spoken.sample)
        return spoken

    async def every_way():
        async with asyncio.timeout(DEADLINE_S):
            product = model()
            await as_product(script, config, place, ROLLED_OUT)
            rollout = model()
            segments = await as_rollout(script, config, rollout, chat, place / "kept")
            same(product.asked, rollout.asked, chat, "rollout")
            product = model()
            await as_product(script, config, place)
            sampled = model()
            await as_benchmark(script, config, SamplerPlayer(engine, chat, config.summarised, 0.0, CONTEXT))
            same(product.asked, sampled.asked, chat, "benchmark")
            over_http = model()
            async with open_policy(EndpointPolicy(endpoint=config.endpoint), config.summarised, 0) as policy:
                await as_benchmark(script, config, policy)
            same(product.asked, over_http.asked, chat, "benchmark over HTTP")
        return rollout.asked, segments

    product, segments = asyncio.run(every_way())
    assert len(product) == len(script.messages) + script.cuts
    assert len(segments) == script.cuts + 1
    prompt, answer = product[-1]
    assert tuple(segments[-1].token_ids) == prompt + answer, "what is trained on is what the product's model saw"
    told = "".join(chat.decode(prompt) for prompt, _ in product)
    assert [each for each in script.told if each not in told] == []


@pytest.mark.parametrize("script", SESSIONS, ids=[each.name for each in SESSIONS])
def test_an_endpoint_is_asked_with_the_same_bodies(place, script):
    def asked_of(play):
        cuts = []

        def answer(body):
            before = [str(message["content"]) for message in body["messages"]]
            message = spoken(script, len(server.requests) - 1, len(cuts), before[-1], "\n".join(before))
            cuts.extend([message] if message.text.startswith("<think>") else [])
            tokens = len(json.dumps(body["messages"])) // 2  # so that the long session outgrows its context
            return Reply(message.text, [*message.calls, *message.broken], prompt_tokens=tokens)

        with ScriptedServer(answer) as server:
            asyncio.run(play(agent_config(server.url)))
        return [{**body, "prompt_cache_key": ""} for body in server.bodies]

    async def benched(config):
        async with open_policy(EndpointPolicy(endpoint=config.endpoint), config.summarised, 0) as policy:
            await as_benchmark(script, config, policy)

    product = asked_of(lambda config: as_product(script, config, place))
    bench = asked_of(benched)
    assert len(product) == len(bench) == len(script.messages) + script.cuts
    for number, (one, two) in enumerate(zip(product, bench, strict=True)):
        assert one == two, f"request {number} differs"
