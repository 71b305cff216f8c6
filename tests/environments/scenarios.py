"""A scenario on a backend: within a deadline, and the backend closed afterwards whatever happened."""

import asyncio


def within(deadline_s, make, scenario):
    """What `scenario(make())` returns, on an event loop of its own."""

    async def whole():
        backend = make()
        try:
            async with asyncio.timeout(deadline_s):
                return await scenario(backend)
        finally:
            await backend.close()

    return asyncio.run(whole())
