"""Puts redaction around the tools of a session: the secrets of a result become marks, the marks of an edit secrets.

Owns `SecretGuard`. Like the permission gate it gives a tool another `run` and leaves its schema alone. The log of a
session records a call as the model wrote it, marks and all.
"""

from __future__ import annotations

import codecs
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from etude.environments.base import Sandbox
from etude.harness.secrets.redact import Redactor, Stream, UnknownMark
from etude.harness.tools.base import ON_OUTPUT, Tool, ToolConfig, ToolError

_WRITES_FILES = ("edit_file", "write_file")


class SecretGuard:
    """One session's redaction, at work."""

    def __init__(self, redactor: Redactor) -> None:
        self.redactor = redactor

    def guard(self, tools: Mapping[str, Tool]) -> dict[str, Tool]:
        """The same tools; put this within a permission gate, which is to judge what the model wrote."""
        return {name: replace(tool, run=self._guarded(tool)) for name, tool in tools.items()}

    def _guarded(self, tool: Tool) -> Callable[[Sandbox, ToolConfig, Mapping[str, Any]], Awaitable[str]]:
        async def run(sandbox: Sandbox, config: ToolConfig, arguments: Mapping[str, Any]) -> str:
            try:
                given = self._restored(arguments) if tool.name in _WRITES_FILES else arguments
                with self._watched():
                    return self.redactor.redact(await tool.run(sandbox, config, given))
            except ToolError as error:
                raise ToolError(self.redactor.redact(str(error))) from None

        return run

    @contextmanager
    def _watched(self) -> Generator[None]:
        """Who watches a command sees, and may log, what the model will see."""
        watcher = ON_OUTPUT.get()
        if watcher is None:
            yield
            return
        stream, decoder = Stream(self.redactor), codecs.getincrementaldecoder("utf-8")("surrogateescape")

        def tell(text: str) -> None:
            if text:
                watcher(text.encode("utf-8", "surrogateescape"))

        unset = ON_OUTPUT.set(lambda piece: tell(stream.feed(decoder.decode(piece))))
        try:
            yield
        finally:
            ON_OUTPUT.reset(unset)
            tell(stream.feed(decoder.decode(b"", True)) + stream.finish())

    def _restored(self, value: Any) -> Any:
        """Arguments of any form, with every mark in them replaced."""
        if isinstance(value, str):
            try:
                return self.redactor.restore(value)
            except UnknownMark as error:
                raise ToolError(str(error)) from None
        if isinstance(value, Mapping):
            return {key: self._restored(each) for key, each in value.items()}
        return [self._restored(each) for each in value] if isinstance(value, list | tuple) else value
