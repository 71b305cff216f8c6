"""Requests that an OpenAPI document allows, and those it does not: no 500, and no answer that it does not describe."""

import re
from collections.abc import Callable

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from proofs import often

schemathesis = pytest.importorskip("schemathesis")
from schemathesis import GenerationMode  # noqa: E402
from schemathesis.specs.openapi import checks as conformance  # noqa: E402
from schemathesis.specs.openapi import schemas as _  # noqa: E402, F401  # not in a test: python/cpython#106905

schemathesis.serializer.alias("application/x-tar", "application/octet-stream")
EXAMPLES = often(3, 300)
MODES = ("negative", pytest.param("positive", marks=pytest.mark.proof(0.2)))
DESCRIBED = [
    conformance.status_code_conformance,
    conformance.content_type_conformance,
    conformance.response_headers_conformance,
    conformance.response_schema_conformance,
]
OUR_FAULT = {500}
"""Beside these a server may say that what stands behind it failed (502), or that it is not to be had now (503, 504)."""
QUIET = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True
)


def name_of(operation) -> str:
    return f"{operation.method} {operation.path}"


def refuses_what_it_does_not_know(operation, url: str, token: str) -> None:
    """A parameter of the query that is not described; protocols of others' (/v1/) have clients that add their own."""
    path = re.sub(r"\{\w+\}", "1", operation.path)
    headers = {"Authorization": f"Bearer {token}"}
    answer = httpx2.request(operation.method, f"{url}{path}?unheard_of=1", headers=headers, timeout=60)
    if path.startswith("/v1/"):
        assert "unheard_of" not in answer.text
    else:
        assert answer.status_code == 400 and "unheard_of" in answer.text, answer.text


def fuzz(
    document, operation, mode: str, url: str, token: str, before: Callable[[object], None] = lambda case: None,
    afterwards: Callable[[object], None] = lambda answer: None, checks=DESCRIBED,
) -> None:  # fmt: skip
    """Ask one operation in one mode. `before` may change what is asked, `afterwards` puts things back."""
    refuses_what_it_does_not_know(operation, url, token)
    told = document["paths"][operation.path][operation.method]
    if mode == "negative" and operation.body is None and not told["parameters"]:
        pytest.skip("nothing can be wrong with a request that has neither body nor parameters")
    asked = schemathesis.openapi.from_dict(document)[operation.path][operation.method.upper()]

    @QUIET
    @given(case=asked.as_strategy(generation_mode=GenerationMode(mode)))
    def run(case):
        before(case)
        answer = case.call(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60)
        afterwards(answer)
        assert answer.status_code not in OUR_FAULT, (case.as_curl_command(), answer.text[:500])
        case.validate_response(answer, checks=checks)

    run()
