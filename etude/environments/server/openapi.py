"""The document that says what a server of ours may be asked, as OpenAPI 3.1.

Owns what is alike in all of them. Bodies are the models that requests are parsed with, so that a document cannot say
another thing than its server does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from etude import __version__

AT = "#/components/schemas/"
REFUSED = {"description": "Refused", "content": {"application/json": {"schema": {"$ref": AT + "Error"}}}}
"""What stands for every answer that is an error."""


def document(
    title: str, paths: Mapping[str, Any], bodies: Iterable[type[BaseModel]], error: Mapping[str, Any]
) -> dict[str, Any]:
    """`error` is what {"error": …} holds: its members, which it always has, and their schemas."""
    models = sorted(set(bodies), key=lambda each: each.__name__)
    _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=AT + "{model}")
    inner = {"type": "object", "required": list(error), "properties": dict(error)}
    failed = {"type": "object", "required": ["error"], "properties": {"error": inner}}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__},
        "paths": dict(paths),
        "components": {
            "schemas": {**schemas.get("$defs", {}), "Error": failed},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }
