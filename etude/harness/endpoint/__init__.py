"""Models behind any OpenAI-compatible endpoint, as a session talks to them.

`config` says which endpoint; `wire` owns HTTP, retries and deadlines, `refusals` what a server's refusal means; `chat`
and `responses` are the two dialects, and `completion` what an answer is in either; `client` asks one endpoint for
messages, `repetition` notices one that has become a loop, and `dialogue` is the session's seam over it all. No torch,
and none of any vendor's own client: the differences between servers that call themselves compatible are handled here,
in the open. Never runs a tool, never writes a log.
"""

from __future__ import annotations

from etude.harness.endpoint.client import Endpoint
from etude.harness.endpoint.completion import CallDelta, Delta, Retry, TextDelta
from etude.harness.endpoint.config import EndpointConfig

__all__ = ["CallDelta", "Delta", "Endpoint", "EndpointConfig", "Retry", "TextDelta"]
