"""The request bodies of the engine's server: one strict pydantic model each.

Owns the fields, their limits and their defaults, and thereby the request half of the OpenAPI document. A field that
would change the answer is honoured, or refused by name unless it has the one value that means nothing. What known
clients send along and no answer depends on is `Ignored` (`inert`). What a field leads to is the routes' business.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    StrictInt,
    StrictStr,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError

from etude.config import Config
from etude.engine.server.errors import ApiError, bad
from etude.engine.server.inert import Ignored, Inert
from etude.serving.wire import LONGEST_PATH, faults

MOST_CHOICES = 128
TokenId = Annotated[StrictInt, Field(ge=0, lt=1 << 31)]
T = TypeVar("T")
Many = Annotated[list[T], Field(fail_fast=True)]
"""A list, of whose wrong members the first is told: to tell of a million takes minutes, and gigabytes."""
TokenIds = Annotated[Many[TokenId], Field(min_length=1)]
_NULL, _TOLD = {"type": "null"}, ("title", "description", "default")


def _or_unsupported(given: Any, read: ValidatorFunctionWrapHandler) -> Any:
    try:
        return read(given)
    except ValidationError:
        raise PydanticCustomError("unsupported", "not supported here; leave it out") from None


UNSUPPORTED = WrapValidator(_or_unsupported)
"""Marks a field that may only hold what means nothing."""
Zero = Annotated[float, Field(ge=0, le=0), UNSUPPORTED]
No = Annotated[Literal[False], UNSUPPORTED]
Null = Annotated[None, UNSUPPORTED]
NoItems = Annotated[Many[Any], Field(max_length=0), UNSUPPORTED]
NoKeys = Annotated[dict[str, Any], Field(max_length=0), UNSUPPORTED]
MostLikely = Annotated[StrictInt, Field(ge=0, le=20)]
"""How many of the most likely tokens are told."""
StopText = Annotated[StrictStr, Field(min_length=1, max_length=200)]


class Body(Config):
    """Strict JSON: "1" is no number and 1.0 no integer. A field that may be left out may be null instead."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, given: Any) -> Any:
        if not isinstance(given, dict) or None not in given.values():
            return given
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()}
        return {key: value for key, value in given.items() if value is not None or key not in optional}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        told = handler(schema)
        itself = handler.resolve_ref_schema(told)
        for name, each in itself.get("properties", {}).items():
            forms = each.get("anyOf") or [{key: value for key, value in each.items() if key not in _TOLD}]
            if name not in itself.get("required", ()) and forms != [{}] and _NULL not in forms:
                told_so = {key: value for key, value in each.items() if key in _TOLD}
                itself["properties"][name] = {"anyOf": [*forms, _NULL], **told_so}
        return told


class Sampling(Body):
    """How to sample, in OpenAI's names and vLLM's."""

    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1)
    """0 and -1 keep all."""
    min_p: float = Field(0.0, ge=0, le=1)
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 63)
    stop: StopText | Annotated[Many[StopText], Field(max_length=16)] | None = None
    stop_token_ids: Many[TokenId] = Field([], max_length=64)
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class Common(Sampling):
    """What every route that samples also takes."""

    model: str | None = None
    stream: bool = False
    request_id: str | None = Field(None, min_length=1, max_length=200)
    """The name to abort it by; one of our own otherwise."""
    session_id: str | None = Field(None, min_length=1, max_length=200)
    """Requests of a session that continue one another keep its cache between them."""
    return_token_ids: bool = False
    return_routed_experts: bool = False
    return_sampling_mask: bool = False


class SentAlong(Body):
    """What OpenAI's clients send for OpenAI's own bookkeeping: who asks, what it is billed as, how it is cached."""

    user: Ignored = None
    metadata: Annotated[dict[str, str] | None, Inert()] = None
    store: Ignored = None
    """Nothing is stored: an answer cannot be had a second time."""
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    """What has been computed is found again without it."""
    prompt_cache_retention: Ignored = None


class Neutral(SentAlong):
    """Fields that would change an answer; only what means nothing is taken."""

    presence_penalty: Zero | None = None
    frequency_penalty: Zero | None = None
    logit_bias: NoKeys | None = None


class StreamOptions(Body):
    include_usage: bool = False
    include_obfuscation: Ignored = None
    """Padding against those who measure the length of encrypted events; there is none."""


class TextPart(Body):
    type: Literal["text", "input_text", "output_text"] = "text"
    text: str
    annotations: NoItems | None = None
    logprobs: NoItems | None = None
    cache_control: Ignored = None


Content = str | Many[TextPart]


class CalledFunction(Body):
    name: str = Field(min_length=1)
    arguments: str = "{}"
    """A JSON object, as text."""


class MessageCall(Body):
    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None
    function: CalledFunction


class Message(Body):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: Many[MessageCall] | None = None
    tool_call_id: str | None = None
    refusal: Null = None
    annotations: NoItems | None = None
    audio: Null = None
    function_call: Null = None
    reasoning_content: Ignored = None
    """What a model thought, in another server's words: ours have no thoughts apart from what they say."""
    reasoning: Ignored = None
    reasoning_details: Ignored = None
    provider_specific_fields: Ignored = None
    thinking_blocks: Ignored = None


class Function(Body):
    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Body):
    type: Literal["function"]
    function: Function


class NamedFunction(Body):
    name: str


class NamedTool(Body):
    type: Literal["function"]
    function: NamedFunction


class PlainText(Body):
    type: Literal["text"] = "text"


class JsonObject(Body):
    type: Literal["json_object"]


class NamedSchema(Body):
    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    description: str | None = None
    shape: dict[str, Any] = Field(alias="schema")
    """A JSON schema. It is followed whether `strict` is true or not."""
    strict: bool | None = None


class JsonSchema(Body):
    type: Literal["json_schema"]
    json_schema: NamedSchema


class FlatSchema(NamedSchema):
    """As the responses API writes it."""

    type: Literal["json_schema"]


class BareSchema(Body):
    """As the messages API writes it."""

    type: Literal["json_schema"]
    shape: dict[str, Any] = Field(alias="schema")


class ChatBody(Common, Neutral):
    """POST /v1/chat/completions."""

    messages: Many[Message] = Field(min_length=1)
    tools: Many[FunctionTool] | None = Field(None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool = True
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    n: int = Field(1, ge=1, le=MOST_CHOICES)
    logprobs: bool | None = None
    top_logprobs: MostLikely | None = None
    stream_options: StreamOptions | None = None
    response_format: PlainText | JsonObject | JsonSchema | None = None
    prompt_logprobs: MostLikely | None = None
    reasoning_effort: Ignored = None
    """How long to think, to a model that can be told; ours cannot."""
    verbosity: Ignored = None
    prediction: Ignored = None
    """A guess at the answer, for speed alone."""
    modalities: Many[Literal["text"]] | None = None


class CompletionBody(Common, Neutral):
    """POST /v1/completions."""

    prompt: str | TokenIds | Annotated[Many[str], Field(min_length=1)] | Annotated[Many[TokenIds], Field(min_length=1)]
    suffix: str | None = None
    max_tokens: int = Field(16, ge=1)
    n: int = Field(1, ge=1, le=MOST_CHOICES)
    logprobs: MostLikely | None = None
    prompt_logprobs: MostLikely | None = None
    echo: No | None = None
    stream_options: StreamOptions | None = None
    response_format: PlainText | JsonObject | JsonSchema | None = None


class NamedFlatTool(Body):
    type: Literal["function"]
    name: str


def type_of(given: Any, default: str) -> str:
    """What says which member of a union it is."""
    kind = given.get("type") if isinstance(given, dict) else getattr(given, "type", None)
    return default if kind is None else kind if isinstance(kind, str) else ""


class SamplingParams(Sampling):
    """How /generate samples."""

    max_tokens: int = Field(16, ge=1)
    n: int = Field(1, ge=1, le=MOST_CHOICES)
    logprobs: MostLikely | None = None
    prompt_logprobs: MostLikely | None = None


class GenerateBody(Body):
    """POST /generate: token ids in, token ids out."""

    token_ids: TokenIds
    sampling_params: SamplingParams = SamplingParams()
    model: str | None = None
    stream: bool = False
    request_id: str | None = Field(None, min_length=1, max_length=200)
    session_id: str | None = Field(None, min_length=1, max_length=200)
    return_routed_experts: bool = True
    return_sampling_mask: bool = False


class UpdateBody(Body):
    """POST /update_weights: to a version of the weight store, the newest if none is named."""

    version: int | None = Field(None, ge=0, lt=1 << 53)


class AbortBody(Body):
    """POST /abort_requests: all that are under way if none are named."""

    request_ids: Many[str] | None = None


def check_scored_whole(prompt_logprobs: int | None, stream: bool) -> None:
    """Raises ApiError where the prompt's log-probabilities would have to be streamed."""
    if prompt_logprobs is not None and stream:
        raise bad("prompt_logprobs", "come with a whole answer only; take out stream")


B = TypeVar("B", bound=Body)
_MEMBER = re.compile(r"^[A-Z]|\[|^(constrained-)?(str|int)$")
"""How pydantic names the members of a union; our fields are in lower case."""


def parse_body(raw: bytes, schema: type[B]) -> B:
    """Raises ApiError, which names the first wrong fields, and blames the first."""
    try:
        return schema.model_validate_json(raw or b"{}")
    except ValidationError as error:
        wrong = [_explained(item) for item in faults(error)]
        said = "; ".join(f"{path or 'body'}: {what}" for path, what in wrong)
        raise ApiError(400, said, "invalid_value", wrong[0][0] or None) from None


def _explained(item: Mapping[str, Any]) -> tuple[str, str]:
    """Path and message; the members of a union that were tried are no part of a path."""
    path = ".".join(str(part) for part in item["loc"] if not _is_member(part))[:LONGEST_PATH]
    if item["type"] == "extra_forbidden":
        return path, "unknown here; take it out"
    return path, item["msg"]


def _is_member(part: object) -> bool:
    return isinstance(part, str) and _MEMBER.search(part) is not None
