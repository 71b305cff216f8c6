"""The body of POST /v1/responses: items in, tools of several types, and what its clients send along.

Owns the members of its two unions and how a body tells which it has. What is common to all routes is in `bodies`, what
items become is `prompts`' and `responses`' business.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from etude.engine.server.bodies import (
    Body,
    Common,
    Content,
    FlatSchema,
    Function,
    JsonObject,
    Many,
    NamedFlatTool,
    No,
    Null,
    PlainText,
    SentAlong,
    StreamOptions,
    type_of,
)
from etude.engine.server.errors import bad
from etude.engine.server.inert import Ignored, Inert


class ItemMessage(Body):
    """A message, as an item."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class ItemCall(Body):
    """A call the model made, as an item of its own."""

    type: Literal["function_call"]
    name: str = Field(min_length=1)
    arguments: str
    call_id: str
    id: str | None = None
    status: str | None = None
    namespace: str | None = None
    """Of the tool, where it was given in one."""


class ItemResult(Body):
    type: Literal["function_call_output"]
    call_id: str
    output: Content
    id: str | None = None
    status: str | None = None


class ItemThought(Body):
    """What another model thought. It is not told to ours."""

    model_config = ConfigDict(extra="allow")
    inert: ClassVar[bool] = True
    type: Literal["reasoning"]


_ITEMS = {"message": "Message", "function_call": "Call", "function_call_output": "Result", "reasoning": "Thought"}


def _item_kind(item: Any) -> str:
    return _ITEMS.get(type_of(item, "message"), "none")


ResponseItem = Annotated[
    Annotated[ItemMessage, Tag("Message")]
    | Annotated[ItemCall, Tag("Call")]
    | Annotated[ItemResult, Tag("Result")]
    | Annotated[ItemThought, Tag("Thought")],
    Discriminator(
        _item_kind,
        custom_error_type="item",
        custom_error_message="is no item known here: message, function_call, function_call_output, reasoning",
    ),
]


class FlatTool(Function):
    """A function as the responses API writes it."""

    type: Literal["function"]


class Namespace(Body):
    """Functions under a common name, as Codex gives them. The model knows each as NAMESPACE.FUNCTION."""

    type: Literal["namespace"]
    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    description: str | None = None
    """Of all of them. The model reads it at the first."""
    tools: Many[FlatTool] = Field(max_length=128)

    def functions(self) -> list[tuple[str, FlatTool]]:
        """With the names that the model knows them by."""
        told = list(self.tools)
        if told and self.description:
            said = "\n".join(filter(None, (self.description, told[0].description)))
            told[0] = told[0].model_copy(update={"description": said})
        return [(f"{self.name}.{each.name}", each) for each in told]


class HostedTool(Body):
    """A tool that OpenAI's own server would run. There is none here, so the model is not told of it."""

    model_config = ConfigDict(extra="allow")
    inert: ClassVar[bool] = True
    type: str = Field(pattern=r"^(web_search(_preview)?(_\d+)*|file_search|code_interpreter|image_generation)$")


def _tool_kind(tool: Any) -> str:
    kind = type_of(tool, "")
    known = {"function": "Function", "namespace": "Namespace"}
    return known.get(kind, "Hosted" if kind in _HOSTED or kind.startswith("web_search") else "none")


_HOSTED = ("file_search", "code_interpreter", "image_generation")
ResponseTool = Annotated[
    Annotated[FlatTool, Tag("Function")]
    | Annotated[Namespace, Tag("Namespace")]
    | Annotated[HostedTool, Tag("Hosted")],
    Discriminator(
        _tool_kind,
        custom_error_type="tool",
        custom_error_message="is no tool known here: function, namespace; web_search and the like are passed over",
    ),
]


def named_functions(tools: Iterable[FlatTool | Namespace | HostedTool]) -> dict[str, FlatTool]:
    """The functions of a responses request, by the names that the model knows them by."""
    found: list[tuple[str, FlatTool]] = []
    for tool in tools:
        if isinstance(tool, FlatTool):
            found.append((tool.name, tool))
        elif isinstance(tool, Namespace):
            found += tool.functions()
    names = [name for name, _ in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise bad("tools", f"{twice} is given twice")
    return dict(found)


class ResponseText(Body):
    format: PlainText | JsonObject | FlatSchema = PlainText()
    verbosity: Ignored = None


Included = Literal[
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "message.input_image.image_url",
]
"""Of items that no answer here has."""


class ResponsesBody(Common, SentAlong):
    """POST /v1/responses: the part of it that keeps no state here."""

    input: str | Annotated[Many[ResponseItem], Field(min_length=1)]
    instructions: str | None = None
    tools: Many[ResponseTool] | None = Field(None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | NamedFlatTool | None = None
    parallel_tool_calls: bool = True
    max_output_tokens: int | None = Field(None, ge=1)
    previous_response_id: Null = None
    truncation: Literal["disabled"] | None = None
    text: ResponseText | None = None
    reasoning: Ignored = None
    """How long to think and what to tell of it: ours have no thoughts apart from what they say."""
    include: Annotated[Many[Included] | None, Inert()] = None
    max_tool_calls: Ignored = None
    """Of tools that the server would run."""
    client_metadata: Ignored = None
    stream_options: StreamOptions | None = None
    background: No | None = None
