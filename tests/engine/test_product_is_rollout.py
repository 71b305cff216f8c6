"""The product over HTTP is the session that trains: same prompt, same calls, same results, token for token."""

from __future__ import annotations

import asyncio

import pytest
from engine_serving import TOKEN, serving
from small_models import SHIPPED

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
from etude.records import Limits
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
    done = [event for event in log.events if event.kind in ("tool_call", "tool_result")]
    contexts = [event.data["context"] for event in log.events if event.kind == "completion"]
    return [{**event.data, "kind": event.kind} for event in done], contexts


@pytest.mark.parametrize("dialect", ["chat", "responses"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("task", TASKS, ids=["rung 1", "rung 3"])
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
