"""Requests that the OpenAPI document allows, and those it does not: no 5xx, and no answer it does not describe."""

import pytest
from engine_serving import TOKEN, serving
from proofs import one_of_each
from schema_fuzz import DESCRIBED, MODES, conformance, fuzz, name_of
from small_models import SHAPE, random_decoder

from etude.engine.config import EngineConfig
from etude.engine.server.openapi import OPERATIONS, openapi


@pytest.fixture(scope="module")
def server():
    """Of a model with a short context, so that what is asked for is soon there, and with little room."""
    model = random_decoder(0, SHAPE.model_copy(update={"max_context": 96}))
    room = EngineConfig(cache_tokens=2048, max_running=8)
    with serving(model, engine=room, max_waiting=8) as made:
        yield made
        assert made.at_rest()


def in_turn():
    """Every operation in both modes; what is always played is one after the other, but for requests without a body."""
    for at, operation in enumerate(OPERATIONS):
        for mode in MODES if at % 2 or operation.body is None else reversed(MODES):
            yield pytest.param(operation, mode, id=f"{name_of(operation)}-{mode}")


@pytest.mark.parametrize(("operation", "mode"), one_of_each(0.3, in_turn(), lambda operation, mode: name_of(operation)))
def test_every_answer_is_one_the_document_describes(server, operation, mode):
    strict = [conformance.negative_data_rejection] if mode == "negative" and operation.body is not None else []

    def afterwards(answer):
        assert answer.status_code < 500, answer.text
        server.service.engine.resume()  # /pause is among them

    fuzz(openapi(), operation, mode, server.url, TOKEN, afterwards=afterwards, checks=[*DESCRIBED, *strict])


def test_the_document_is_served_and_names_every_route(server):
    import asyncio

    async def scenario():
        async with server.http() as http:
            document = (await http.get("/openapi.json")).json()
            assert document == openapi()
            assert document["components"]["schemas"]["ChatBody"]["additionalProperties"] is False

    asyncio.run(scenario())
