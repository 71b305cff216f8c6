"""A client of one endpoint: it requests messages.

Owns `Endpoint`: the connection, the dialect, the tools that the model sees, and the counters. From turn to turn a
request only grows at its end: its head is made once, and items are written once and stored, so that prefix caches work.
Knows no session.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from uuid import uuid4

from etude.harness.endpoint.chat import ChatCompletions
from etude.harness.endpoint.completion import Completion, Delta, Dialect, Json, OnDelta, Reader, Usage
from etude.harness.endpoint.config import EndpointConfig
from etude.harness.endpoint.refusals import UnknownParameter
from etude.harness.endpoint.repetition import Repeating
from etude.harness.endpoint.responses import Responses
from etude.harness.endpoint.wire import TIMEOUTS, Timeouts, Wire


class Endpoint:
    """Use on one event loop, by any number of sessions; the caller closes it.

    `counters` count requests answered, their tokens as the server counts them, answers cut for repeating themselves,
    and attempts that failed.
    """

    def __init__(
        self,
        config: EndpointConfig,
        on_usage: Callable[[str, Usage], None] | None = None,
        patience: Timeouts = TIMEOUTS,
    ) -> None:
        """`on_usage` is told, with the model's name, what each answer cost in tokens, where the server says so."""
        self.config, self._on_usage = config, on_usage
        self.dialect = _dialect(config)
        self._wire = Wire(config, patience)
        self._counters: Counter[str] = Counter()

    @property
    def counters(self) -> dict[str, int]:
        return {**self._counters, "retries": self._wire.retries}

    async def ask(
        self,
        items: Iterable[bytes],
        tools: Sequence[Json],
        max_tokens: int,
        session_id: str,
        tell: OnDelta,
        request_id: str = "",
    ) -> Completion:
        """The next message of a conversation, whose items are as `encode` wrote them. Raises EndpointError,
        ContextOverflow or DeadlineExceeded, and what `tell` raises: nothing more is read of the answer then."""
        conversation = b",".join(items)

        def reader() -> Reader:
            return self.dialect.reader(tell)

        while True:
            body = self._body(conversation, tools, max_tokens, session_id)
            try:
                said = await self._wire.ask(self.dialect.path, body, reader, tell, request_id or uuid4().hex)
                break
            except Repeating:
                self._counters.update(requests=1, repetitions=1)
                raise
            except UnknownParameter as error:
                if not self.dialect.adapt(error.server_message):
                    raise
        self._counters["requests"] += 1
        if said.usage is not None:
            self._counters["prompt_tokens"] += said.usage.prompt
            self._counters["cached_tokens"] += said.usage.cached
            self._counters["completion_tokens"] += said.usage.completion
            if self._on_usage is not None:
                self._on_usage(self.config.model, said.usage)
        return said

    def use_model(self, name: str) -> None:
        """Ask another model from the next request on."""
        self.config = self.config.model_copy(update={"model": name})
        self.dialect = _dialect(self.config)  # what one model does not know, another may

    async def models(self) -> list[str]:
        """The models that the endpoint says it has."""
        return await self._wire.models()

    async def close(self) -> None:
        await self._wire.close()

    def _body(self, conversation: bytes, tools: Sequence[Json], max_tokens: int, session_id: str) -> bytes:
        head = self.dialect.head(tools, max_tokens) | self.config.body
        if self.config.cache_key:
            head["prompt_cache_key"] = session_id
        return encode(head)[:-1] + b',"' + self.dialect.items_key.encode() + b'":[' + conversation + b"]}"


def _dialect(config: EndpointConfig) -> Dialect:
    return ChatCompletions(config) if config.dialect == "chat" else Responses(config)


def encode(item: Json) -> bytes:
    """An item's bytes, which stay the same. A lone surrogate, which is no text, becomes `?`."""
    return json.dumps(item, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def silence(_: Delta) -> None:
    """For who does not listen."""
