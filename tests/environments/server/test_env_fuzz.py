"""Requests to the environment server that its document allows, and those it does not: no 500, no undescribed answer."""

import contextlib
import json

import httpx2
import pytest
from schema_fuzz import MODES, fuzz, name_of

from etude.environments.server.operations import OPERATIONS, openapi

BROKEN_OFF = {("get", "/sandboxes/{id}/processes/{process}/output")}
"""Streams that need not end: asked of sandboxes that are not there only."""


@pytest.fixture(scope="module")
def http(server):
    with httpx2.Client(
        base_url=server.url, headers={"Authorization": f"Bearer {server.token}"}, timeout=60, trust_env=False
    ) as http:
        yield http


@pytest.fixture
def box(http):
    """One that is there, with a command in the background."""
    made = http.post("/sandboxes", json={"files": {"file": "eA=="}}).json()["id"]
    http.post(f"/sandboxes/{made}/exec", json={"command": "sleep 600", "background": True, "timeout_s": None})
    yield made
    http.delete(f"/sandboxes/{made}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("operation", OPERATIONS, ids=name_of)
def test_every_answer_is_one_the_document_describes(server, http, box, operation, mode):
    def before(case):
        """Half of them are about a sandbox that is there, and about paths in it."""
        there = (operation.method, operation.path) not in BROKEN_OFF and len(str(case.path_parameters)) % 2
        if operation.path.startswith("/sandboxes/{id}") and there and case.path_parameters:
            case.path_parameters["id"] = box
        query = case.query if isinstance(case.query, dict) else {}
        if mode == "positive" and isinstance(query.get("path"), str) and len(query["path"]) % 2:
            query["path"] = "/workspace" + query["path"]
        if isinstance(case.body, dict) and isinstance(case.body.get("command"), str) and len(case.body["command"]) % 2:
            case.body["command"] = "true"
            case.body["timeout_s"] = 5.0

    def afterwards(answer):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            said = answer.json()
            for each in said if isinstance(said, list) else [said]:
                if answer.request.method == "POST" and answer.status_code == 200 and each["id"] != box:
                    http.delete(f"/sandboxes/{each['id']}")
                    http.delete(f"/snapshots/{each['id']}")
        if "/resume" not in operation.path:
            http.post(f"/sandboxes/{box}/resume")

    fuzz(openapi(), operation, mode, server.url, server.token, before, afterwards)


def test_the_document_is_served_and_names_every_route(http):
    from etude.environments.server.routes import Routes

    document = http.get("/openapi.json").json()
    assert document == openapi()
    told = {(path, method.upper()) for path, methods in document["paths"].items() for method in methods}
    table = Routes.table(Routes.__new__(Routes))
    assert told == {(route.path, method) for route in table for method in route.methods - {"HEAD"}}


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/exec", {"command": "true", "timeout_s": 1e308}, 400),
        ("POST", "/exec", {"command": "true", "max_output_bytes": 10**30}, 400),
        ("POST", "/ttl", {"ttl_s": 1e300}, 400),
        ("GET", "/processes/1/output?from=²", None, 400),
        ("GET", "/processes/1/output?from=" + "9" * 5000, None, 400),
        ("GET", "/processes/4294967296", None, 404),
        ("GET", "/processes/" + "9" * 5000, None, 400),
        ("GET", "/processes/²", None, 400),
        ("GET", "/processes/1?wait_s=nan", None, 400),
        ("GET", "/processes/1?wait_s=inf", None, 200),
        ("GET", "/files?path=/workspace/file&max_bytes=" + "9" * 5000, None, 400),
        ("GET", "/files?path=/" + "x" * 5000, None, 409),
        ("GET", "/files?path=/%00", None, 400),
        ("POST", "/exec", {"command": "true", "cwd": "/" + "x/" * 4000}, 200),
        ("POST", "/exec", {"command": "true", "env": {"A=B\0": "\ud800"}}, 200),
        ("POST", "/exec", {"command": "\ud800"}, 200),
        ("POST", "/fork", {"n": 10**30}, 400),
    ],
)
def test_what_once_was_a_bug_is_an_answer(http, box, method, path, body, status):
    if path.endswith("wait_s=inf"):
        http.delete(f"/sandboxes/{box}/processes/1")
    answer = http.request(method, f"/sandboxes/{box}{path}", content=None if body is None else json.dumps(body))
    assert answer.status_code == status, answer.text
    assert "error" in answer.json() or status == 200


@pytest.mark.parametrize(
    "wrong",
    [
        {"image": "\ud800"}, {"image": "../../etc"}, {"image": "x" * 70_000}, {"base": "\0"},
        {"files": {"\ud800": ""}}, {"files": {"a\0b": ""}}, {"files": {"x" * 5000: ""}}, {"files": {"/": ""}},
        {"files": {"a": "", "a/b": ""}}, {"files": {"a/b/c": "", "a/./b": ""}}, {"files": {"a": "", "./a/": ""}},
        {"files": {"": ""}}, {"files": {"b/../a": ""}}, {"files": {"/a": ""}}, {"files": {"a/" * 3000 + "a": ""}},
        {"labels": {"\ud800": "\0"}},
        {"resources": {"memory_mb": 1}}, {"resources": {"memory_mb": 10**25}}, {"resources": {"cpus": 1e-300}},
        {"resources": {"cpus": 0.009}}, {"resources": {"cpus": 1e300}},
        {"resources": {"pids": 10**20}}, {"resources": {"disk_mb": 10**20}},
        {"egress": ["\ud800"]}, {"egress": ["*"]}, {"ttl_s": 1e-300}, {"ttl_s": 1e300},
    ],
)  # fmt: skip
def test_no_body_of_a_new_sandbox_is_a_bug(http, wrong):
    answer = http.post("/sandboxes", content=json.dumps(wrong))
    assert answer.status_code not in (500, 502), answer.text
    if answer.status_code == 200:
        http.delete(f"/sandboxes/{answer.json()['id']}")


@pytest.mark.parametrize(
    "body",
    [
        b'{"egress":[' + b"0," * 300_000 + b"0]}",
        b'{"labels":{' + b",".join(b'"k%d":1' % at for at in range(300_000)) + b"}}",
        b"{" + b",".join(b'"k%d":1' % at for at in range(300_000)) + b"}",
        b"[" * 100_000,
        b'{"ttl_s":' + b"9" * 5000 + b"}",
    ],
)
def test_very_many_things_wrong_are_told_in_a_line(http, body):
    answer = http.post("/sandboxes", content=body)
    assert answer.status_code == 400 and len(answer.text) < 2000, answer.text[:500]
