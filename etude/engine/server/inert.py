"""Fields that clients send along and that no answer here depends on.

Owns the mark of such a field and the finding of those that a request has. A field that would change an answer never
has the mark: it is honoured, or refused by its name. Who logs what is found is the service.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel


class Inert:
    """The mark."""


Ignored = Annotated[Any, Inert()]
"""Of any value. It is taken, and named once in the log."""


def inert_fields(body: BaseModel, path: str = "") -> Iterator[str]:
    """The paths of the marked fields that a request gives. The members of a list share one path; a member that is
    passed over as a whole is named by its type."""
    for name in body.model_fields_set & set(type(body).model_fields):
        value, said = getattr(body, name), f"{path}{name}"
        if any(isinstance(mark, Inert) for mark in type(body).model_fields[name].metadata):
            if value is not None:
                yield said
            continue
        for each in value if isinstance(value, list) else (value,):
            if isinstance(each, BaseModel):
                kind = getattr(each, "type", "") if getattr(each, "inert", False) else ""
                yield from ([f"{said}[{kind}]"] if kind else inert_fields(each, f"{said}."))
