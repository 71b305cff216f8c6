"""POST /v1/embeddings: why there is none.

Owns nothing but the refusal. Clients ask this route of every server that speaks OpenAI's words; a 404 that names the
reason is told apart from a wrong address.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from etude.engine.server.errors import ApiError

ROUTE = "/v1/embeddings"


async def refuse(request: Request) -> Response:
    """Raises ApiError, always."""
    await request.body()
    said = "this server has a model that writes, and Etude has no embedding model yet; ask a server that has one"
    raise ApiError(404, said, "no_embeddings")


EMBEDDINGS = Route(ROUTE, refuse, methods=["POST"])
