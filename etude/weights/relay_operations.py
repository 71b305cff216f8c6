"""GET /openapi.json: what may be asked of a relay, as OpenAPI 3.1.

Owns the list of operations. What the bytes are is the business of `weights.manifest`; docs/weights.md tells of relays.
"""

from __future__ import annotations

from typing import Any

from etude.serving.openapi import Operation, document, parameter

_RANGE = {**parameter("Range", "header", type="string", pattern="^bytes=[0-9]{1,15}-[0-9]{1,15}$"), "required": True}
_SIZE = parameter("size", "path", type="integer", minimum=0)

OPERATIONS: tuple[Operation, ...] = (
    *(
        operation
        for way, more in (("", ""), ("/again", ", read from the store anew"))
        for operation in (
            Operation(f"{way}/objects/{{key}}", "get", f"An object of a chain{more}", answer="bytes"),
            Operation(
                f"{way}/ranges/{{size}}/{{key}}", "get", f"Some bytes of a pack that has `size`{more}", status=206,
                answer="bytes", parameters=(_SIZE, _RANGE),
            ),
        )
    ),
    Operation("/lists/{prefix}", "get", "The objects below a prefix, and their sizes"),
    Operation("/metrics", "get", "Figures for Prometheus", answer="text"),
    Operation("/figures", "get", "The same, as JSON", ("held_bytes",)),
)  # fmt: skip


def openapi() -> dict[str, Any]:
    """The document."""
    return document("Etude relay", OPERATIONS)
