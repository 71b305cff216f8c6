"""A backend of the test's own, with nothing left of it afterwards."""

import asyncio

import pytest

from etude.environments.namespace import NamespaceBackend, NamespaceConfig


@pytest.fixture
def run(tmp_path):
    """Run `scenario(backend)` on a fresh event loop and backend, within a deadline."""

    def runner(scenario, config=None, deadline_s=60.0):
        async def whole():
            backend = NamespaceBackend(config or NamespaceConfig())
            try:
                async with asyncio.timeout(deadline_s):
                    return await scenario(backend)
            finally:
                await backend.close()

        return asyncio.run(whole())

    return runner
