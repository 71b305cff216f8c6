"""A checkpoint's chat template: messages to text, in the language and surroundings that `transformers` gives templates.

Owns `ChatTemplate`, a Jinja template in a sandbox: it comes with a model, and may read messages, loop and refuse, but
not reach Python, nor go on for ever (`models.template_limits`). Knows nothing of tokens (`models.chat`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from etude.errors import CheckpointError, InvalidRequest
from etude.models.template_budget import STEPS, TooMuch, budget, charge
from etude.models.template_limits import BoundedEnvironment
from etude.models.template_methods import check_date

_LONGEST, _EACH, _CHARACTER = 1 << 17, 4_000, 16
"""Characters of a template, and steps it has for each message and each character of one, beside `STEPS`."""
_OF_TEMPLATES = (
    TypeError, ValueError, ArithmeticError, LookupError, AttributeError, SyntaxError, RecursionError, MemoryError,
)  # fmt: skip
"""What a template's code may end with, or its compilation."""


class Message(NamedTuple):
    """One message, as text."""

    role: Literal["system", "user", "assistant"]
    content: str


class ChatTemplate:
    """`source` is the file it comes from, which errors name; `variables` are the special tokens, by their names."""

    def __init__(self, text: str, variables: Mapping[str, str], source: str) -> None:
        self.source, self._variables = source, dict(variables)
        if len(text) > _LONGEST:
            raise CheckpointError(
                f"{source}: a chat template of {len(text):,} characters; at most {_LONGEST:,} are read"
            )
        try:
            self._template = _ENVIRONMENT.from_string(text)
        except (TemplateError, *_OF_TEMPLATES) as error:
            raise CheckpointError(f"{source}: the chat template is no Jinja template ({_reason(error)})") from None

    def render(self, messages: Sequence[Message], reply: bool) -> str:
        """The text of messages; with `reply` up to where the assistant writes.

        Raises InvalidRequest in the template's words where it refuses them."""
        told = [each._asdict() for each in messages]
        size = sum(len(each.content) for each in messages)
        try:
            with budget(STEPS + _EACH * len(told) + _CHARACTER * size):
                return self._template.render({**self._variables, "messages": told, "add_generation_prompt": reply})
        except TooMuch as error:
            raise InvalidRequest(f"{self.source}: the chat template does more than one may: {error}") from None
        except (TemplateError, *_OF_TEMPLATES) as error:  # of the template's code
            raise InvalidRequest(f"{self.source}: the chat template refuses these messages: {_reason(error)}") from None


class _Generation(Extension):
    """`{% generation %}`, around what an assistant writes: for trainers that make masks from text. It changes none."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    check_date(form)
    return datetime.now().strftime(form)


def _json(value: Any, indent: int | None = None, separators: tuple[str, str] | None = None) -> str:
    pieces = []
    for piece in json.JSONEncoder(ensure_ascii=False, indent=indent, separators=separators).iterencode(value):
        charge(len(piece))  # an indent grows with the depth
        pieces.append(piece)
    return "".join(pieces)


def _environment() -> BoundedEnvironment:
    made = BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    made.filters["tojson"] = _json
    made.bound()
    known: dict[str, Any] = made.globals
    known |= {"raise_exception": _refuse, "strftime_now": _now}
    return made


_ENVIRONMENT = _environment()
