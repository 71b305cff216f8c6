"""A real sandbox backend and a real tokenizer, both small."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from etude.environments.base import Sandbox, SandboxSpec
from etude.environments.namespace import NamespaceBackend
from etude.harness.prompt import system_prompt
from etude.harness.tools import TOOLS
from etude.models.chat import ChatRenderer
from etude.models.tokenizer import train_tokenizer

Scenario = Callable[[Sandbox], Coroutine[Any, Any, Any]]


@pytest.fixture(scope="session")
def chat() -> ChatRenderer:
    return ChatRenderer(train_tokenizer([system_prompt(TOOLS), "def f(x):\n    return x\n"], 400))


@pytest.fixture
def in_sandbox() -> Callable[..., Any]:
    """`in_sandbox(scenario, files)` runs `scenario(sandbox)` on a fresh sandbox holding the files."""

    def run(scenario: Scenario, files: dict[str, bytes] | None = None) -> Any:
        async def whole() -> Any:
            backend = NamespaceBackend()
            try:
                async with asyncio.timeout(60):
                    return await scenario(await backend.create(SandboxSpec(files=files or {})))
            finally:
                await backend.close()

        return asyncio.run(whole())

    return run
