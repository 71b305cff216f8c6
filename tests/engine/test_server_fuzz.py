"""Requests that the OpenAPI document allows, and those it does not: no 5xx, and no answer it does not describe."""

import pytest
from engine_serving import TOKEN, serving
from hypothesis import HealthCheck, given, settings
from small_models import SHAPE, random_decoder

from etude.engine.config import EngineConfig
from etude.engine.server.openapi import OPERATIONS, openapi

schemathesis = pytest.importorskip("schemathesis")
from schemathesis import GenerationMode  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi import checks as conformance  # noqa: E402

SCHEMA = schemathesis.openapi.from_dict(openapi(OPERATIONS))
DESCRIBED = [
    not_a_server_error,
    conformance.status_code_conformance,
    conformance.content_type_conformance,
    conformance.response_headers_conformance,
    conformance.response_schema_conformance,
]
QUIET = settings(
    max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True
)


@pytest.fixture(scope="module")
def server():
    """Of a model with a short context, so that what is asked for is soon there, and with little room."""
    model = random_decoder(0, SHAPE.model_copy(update={"max_context": 96}))
    room = EngineConfig(cache_tokens=2048, max_running=8, request_deadline_s=30)
    with serving(model, engine=room, max_waiting=8) as made:
        yield made
        assert made.at_rest()


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: f"{each.method} {each.path}")
def test_every_answer_is_one_the_document_describes(server, operation, mode):
    asked = SCHEMA[operation.path][operation.method.upper()]
    if mode == "negative" and operation.body is None and not operation.parameters:
        pytest.skip("nothing can be wrong with a request that has neither body nor parameters")
    strict = [conformance.negative_data_rejection] if mode == "negative" and operation.body is not None else []

    @QUIET
    @given(case=asked.as_strategy(generation_mode=GenerationMode(mode)))
    def fuzz(case):
        headers = {"Authorization": f"Bearer {TOKEN}"}
        case.call_and_validate(base_url=server.url, headers=headers, checks=[*DESCRIBED, *strict], timeout=60)
        server.service.engine.resume()  # /pause is among them

    fuzz()


def test_the_document_is_served_and_names_every_route(server):
    import asyncio

    async def scenario():
        async with server.http() as http:
            document = (await http.get("/openapi.json")).json()
            assert document == openapi(OPERATIONS)
            assert document["components"]["schemas"]["ChatBody"]["additionalProperties"] is False

    asyncio.run(scenario())
