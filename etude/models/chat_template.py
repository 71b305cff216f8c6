"""A checkpoint's chat template: messages to text, in the language and surroundings that `transformers` gives templates.

Owns `ChatTemplate`, a Jinja template in a sandbox: it comes with a model, and may read messages, loop and refuse, but
not reach Python. Knows nothing of tokens (`models.chat`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from etude.errors import CheckpointError, InvalidRequest


class Message(NamedTuple):
    """One message, as text."""

    role: Literal["system", "user", "assistant"]
    content: str


class ChatTemplate:
    """`source` is the file it comes from, which errors name; `variables` are the special tokens, by their names."""

    def __init__(self, text: str, variables: Mapping[str, str], source: str) -> None:
        self.source, self._variables = source, dict(variables)
        try:
            self._template = _ENVIRONMENT.from_string(text)
        except TemplateError as error:
            raise CheckpointError(f"{source}: the chat template is no Jinja template ({error})") from None

    def render(self, messages: Sequence[Message], reply: bool) -> str:
        """The text of messages; with `reply` up to where the assistant writes.

        Raises InvalidRequest in the template's words where it refuses them."""
        told = [each._asdict() for each in messages]
        try:
            return self._template.render(messages=told, add_generation_prompt=reply, **self._variables)
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:  # of the template's code
            raise InvalidRequest(f"{self.source}: the chat template refuses these messages: {error}") from None


class _Generation(Extension):
    """`{% generation %}`, around what an assistant writes: for trainers that make masks from text. It changes none."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _json(value: Any, indent: int | None = None, separators: tuple[str, str] | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, separators=separators)


def _environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    made.filters["tojson"] = _json
    known: dict[str, Any] = made.globals
    known |= {"raise_exception": _refuse, "strftime_now": _now}
    return made


_ENVIRONMENT = _environment()
