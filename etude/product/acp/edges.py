"""How a session's requests to its model follow from each other, for a trainer that listens on the endpoint.

Owns `edges_of`. Such a trainer (verifiers', for one) has every request with the id in its `X-ACP-Model-Request-ID`
header, and cannot tell a context that goes on from one that was summarised. The log can: a turn is the `continuation`
of the one before, a summary a `compaction_attempt` on the last turn, and what opens on it its `compaction`. They are
sent with the answer to `session/close`.
"""

from __future__ import annotations

from collections.abc import Iterable

from etude.harness.events import Record
from etude.records import Event

KEY = "ai.prime.acp/semantic-edges-v1"


def edges_of(log: Iterable[tuple[Event, Record]]) -> list[dict[str, str]]:
    """One for each request but the first of a session, in order; `log` are the events that stand."""
    edges: list[dict[str, str]] = []
    last, how = "", "continuation"
    for event, record in log:
        id = str(record.get("request_id", ""))
        match event.kind:
            case "completion" | "summary" if id:
                kind = "compaction_attempt" if event.kind == "summary" else how
                if last:
                    edges.append({"source_request_id": last, "target_request_id": id, "type": kind})
                last, how = id, "compaction" if event.kind == "summary" else "continuation"
            case "segment_sealed" if event.data["segment"] == "turns":
                last = ""  # it goes on without a summary: from nothing that was said
    return edges
