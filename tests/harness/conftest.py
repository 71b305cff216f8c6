"""A real sandbox backend and a real tokenizer, both small."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from denied_reads.trial import Trial

from etude.environments.base import Sandbox, SandboxSpec
from etude.environments.build import default_cache_dir
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


@pytest.fixture
def trial(outer: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trial]:
    """Denied files in a home and a workspace, as `benchmarks/permissions.py` plays them."""
    trial = Trial(outer / "trial")
    monkeypatch.setenv("XDG_CACHE_HOME", str(default_cache_dir().parent))
    monkeypatch.setenv("HOME", str(trial.home))
    trial.lay_out()
    yield trial
    trial.remove()
