"""Requests that the OpenAPI document allows, and those it does not: no 5xx, and no answer it does not describe."""

import pytest
from engine_serving import TOKEN, serving
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


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("operation", OPERATIONS, ids=name_of)
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
