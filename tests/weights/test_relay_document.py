"""A relay's document: what it allows, and what it does not, is asked of a relay over a real S3 server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_server import S3Server
from schema_fuzz import MODES, fuzz, name_of
from test_relay import TOKEN, Site, publish

from etude.weights.relay import OPERATIONS, application, openapi


@pytest.fixture
def site(s3: S3Server, tmp_path: Path) -> Iterator[Site]:
    publish(s3, count=2)
    site = Site(s3, tmp_path)
    with site.running():
        yield site


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("operation", OPERATIONS, ids=name_of)
def test_every_answer_is_one_the_document_describes(site: Site, operation, mode) -> None:
    keys = site.s3.store().list("versions/")
    pack = next(key for key in keys if key.endswith(".pack"))

    def before(case) -> None:
        """Half of them are about what is there."""
        if case.path_parameters and len(str(case.path_parameters)) % 2:
            given = {"key": pack, "prefix": "versions", "size": keys[pack]}
            case.path_parameters.update({name: given[name] for name in case.path_parameters})

    fuzz(openapi(), operation, mode, site.url, TOKEN, before)


def test_the_document_is_served_and_names_every_route(site: Site) -> None:
    assert json.loads(site.ask("/openapi.json")) == openapi()
    routes = application(None, site.config, TOKEN).routes  # ty: ignore[invalid-argument-type]  # nothing is asked of it
    table = {(route.path.replace(":path", "").replace(":int", ""), "get") for route in routes}
    told = {(path, method) for path, methods in openapi()["paths"].items() for method in methods}
    assert told == table - {("/openapi.json", "get")}
