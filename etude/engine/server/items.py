"""The output of a response as it grows: messages and function calls, and the events that tell of them.

Owns the items of the responses API and their order of events: an item is added, grows by deltas, and is done before the
next begins. The same growth makes the whole answer, so that streamed and whole output cannot differ.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from etude.engine.server.calls import CallPiece, Event, Words


class Items:
    """The output of one response. `output` holds what there is so far."""

    def __init__(self, spaces: Mapping[str, tuple[str, str]]) -> None:
        """`spaces`: the namespace and the name of a tool that was given in one, by the name that the model uses."""
        self._spaces = spaces
        self.output: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._call = -1
        """The open item's call, if it is one."""

    def grow(self, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
        """What is to be told of these."""
        for event in events:
            if isinstance(event, Words):
                yield from self._grow_text(event.text)
            else:
                yield from self._grow_call(event)

    def finish(self, complete: bool) -> Iterator[dict[str, Any]]:
        """Nothing follows; `complete` unless a limit ended it."""
        if self._open is not None and self._open["type"] == "message" and not complete:
            yield from self._close("incomplete")
        yield from self._close()

    # ------------------------------------------------------------------------------------------------------------------

    def _grow_text(self, text: str) -> Iterator[dict[str, Any]]:
        if self._open is None or self._open["type"] != "message":
            yield from self._close()
            item = {"type": "message", "id": _name("msg"), "role": "assistant", "status": "in_progress", "content": []}
            yield from self._begin(item)
            item["content"].append(_text_part(""))
            yield self._of_part("response.content_part.added", part=_text_part(""))
        assert self._open is not None
        self._open["content"][0]["text"] += text
        yield self._of_part("response.output_text.delta", delta=text, logprobs=[])

    def _grow_call(self, piece: CallPiece) -> Iterator[dict[str, Any]]:
        if self._open is None or self._call != piece.index:
            yield from self._close()
            item = {"type": "function_call", "id": _name("fc"), "call_id": piece.id, "name": piece.name}
            if (found := self._spaces.get(piece.name)) is not None:
                item |= {"namespace": found[0], "name": found[1]}
            yield from self._begin({**item, "arguments": "", "status": "in_progress"})
            self._call = piece.index
        assert self._open is not None
        self._open["arguments"] += piece.arguments
        if piece.arguments:
            yield self._of_item("response.function_call_arguments.delta", delta=piece.arguments)
        if piece.complete:
            yield from self._close("completed")

    def _begin(self, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self._open = item
        self.output.append(item)
        told = {**item, "content": []} if item["type"] == "message" else dict(item)
        yield {"type": "response.output_item.added", "output_index": len(self.output) - 1, "item": told}

    def _close(self, status: str | None = None) -> Iterator[dict[str, Any]]:
        """End the open item, if any. A call that is not told to be complete when something else comes never will be."""
        item, self._open, self._call = self._open, None, -1
        if item is None:
            return
        item["status"] = status or ("completed" if item["type"] == "message" else "incomplete")
        at = {"item_id": item["id"], "output_index": len(self.output) - 1}
        if item["type"] == "message":
            part = item["content"][0]
            text = {"content_index": 0, "text": part["text"], "logprobs": []}
            yield {"type": "response.output_text.done", **at, **text}
            yield {"type": "response.content_part.done", **at, "content_index": 0, "part": part}
        else:
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield {"type": "response.function_call_arguments.done", **at, **done}
        yield {"type": "response.output_item.done", "output_index": len(self.output) - 1, "item": item}

    def _of_item(self, kind: str, **told: Any) -> dict[str, Any]:
        assert self._open is not None
        return {"type": kind, "item_id": self._open["id"], "output_index": len(self.output) - 1, **told}

    def _of_part(self, kind: str, **told: Any) -> dict[str, Any]:
        return self._of_item(kind, content_index=0, **told)


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _name(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"
