"""Says why an endpoint does not tell its models.

Owns `why_silent`. Asks once more for the list, and where there is none, whether it is under /v1.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx2

from etude.deadlines import scaled
from etude.errors import EndpointError, EtudeError
from etude.product.setup.found import Candidate, looked_at
from etude.serving.trust import trust

_LOOK_S = 10.0


async def why_silent(candidate: Candidate) -> EtudeError:
    """The error to raise. Raises ConfigError where the address is none, or its key is not here."""
    config = candidate.config(candidate.model or "?")
    key = config.read_key()
    headers, env = {"Authorization": f"Bearer {key}"} if key else {}, not config.is_local
    try:
        async with (
            asyncio.timeout(scaled(_LOOK_S)),
            httpx2.AsyncClient(headers=headers, trust_env=env, verify=trust(config.url, by_environment=env)) as client,
            client.stream("GET", f"{config.url}/models") as response,
        ):
            status = response.status_code
    except TimeoutError:
        return EndpointError(f"{config.url} does not answer; is the server up, and is this its address?")
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        what = str(error) or type(error).__name__
        return EndpointError(f"{config.url} cannot be reached ({what}); is the server up, and is this its address?")
    if status in (401, 403):
        had = "refuses the key" if key else "wants a key"
        return EndpointError(f"{config.url} {had} ({status}); name the variable that has it: --key-env VARIABLE")
    if not config.url.endswith("/v1"):
        below = await looked_at(replace(candidate, url=f"{config.url}/v1"))
        if below.answers:
            return EndpointError(f"{config.url} has no models, and {below.url} has: give --endpoint {below.url}")
    return EndpointError(
        f"{config.url} does not tell its models ({config.url}/models answers {status}): is it an OpenAI-compatible "
        "address, which often ends with /v1? If it is, give --model NAME"
    )
