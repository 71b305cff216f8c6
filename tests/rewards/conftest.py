"""One namespace backend a test, closed afterwards."""

import asyncio

import pytest

from etude.environments.namespace import NamespaceBackend, NamespaceConfig


@pytest.fixture
def run():
    """Run `scenario(backend)` on a fresh event loop and backend, within a deadline."""

    def runner(scenario, deadline_s=60.0):
        async def whole():
            backend = NamespaceBackend(NamespaceConfig())
            try:
                async with asyncio.timeout(deadline_s):
                    return await scenario(backend)
            finally:
                await backend.close()

        return asyncio.run(whole())

    return runner
