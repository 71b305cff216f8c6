"""A collector of OpenTelemetry's spans: protobuf over HTTP, on a port of this machine."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector(http.server.ThreadingHTTPServer):
    """What came is in `taken`, by the path it was sent to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.taken: list[tuple[str, ExportTraceServiceRequest]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def sent(self) -> list[tuple[str, Mapping[str, Any], Any]]:
        """(path, attributes of the resource, span), in the order they came."""
        return [
            (path, attributes_of(resource.resource), span)
            for path, body in self.taken
            for resource in body.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Collector)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.taken.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def attributes_of(holder: Any) -> dict[str, Any]:
    """Of a span or a resource, as plain values."""
    return {each.key: _plain(each.value) for each in holder.attributes}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(each) for each in value.array_value.values]
    return getattr(value, kind)


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    with Collector() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
