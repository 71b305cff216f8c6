"""What every backend must do alike: each scenario here runs on every backend this machine offers."""

import asyncio

import pytest

from etude.environments.namespace import NamespaceBackend

BACKENDS = {"namespace": NamespaceBackend}


@pytest.fixture(params=BACKENDS)
def run(request):
    """Run `scenario(backend)` on a fresh event loop and backend, within a deadline."""

    def runner(scenario, deadline_s=60.0):
        async def whole():
            backend = BACKENDS[request.param]()
            try:
                async with asyncio.timeout(deadline_s):
                    return await scenario(backend)
            finally:
                await backend.close()

        return asyncio.run(whole())

    return runner
