"""A real S3 endpoint on localhost whose faults a test can choose."""

from __future__ import annotations

import hashlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlparse
from xml.sax.saxutils import escape

from etude.weights.store import Store, StoreConfig, open_store


class S3Handler(BaseHTTPRequestHandler):
    """Enough of S3: conditional PUT, GET, HEAD, DELETE, one page of ListObjectsV2. Faults come from the server."""

    protocol_version = "HTTP/1.1"
    server: S3Server

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests += 1
        url = urlparse(self.path)
        key = unquote(url.path).removeprefix("/bucket").lstrip("/")
        if self.server.failures > 0:
            self.server.failures -= 1
            return self.answer(503, b"<Error><Code>SlowDown</Code></Error>")
        if "list-type" in url.query:
            return self.answer(200, self.listing(parse_qs(url.query)["prefix"][0]))
        objects = self.server.objects
        if self.command == "PUT":
            if self.headers.get("If-None-Match") == "*" and key in objects:
                return self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            objects[key] = body
            return self.answer(200, b"", objects[key])
        if self.command == "DELETE":
            objects.pop(key, None)
            return self.answer(204, b"")
        if key not in objects:
            return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        data = objects[key]
        if self.command == "GET" and self.server.corrupt and key.endswith(self.server.corrupt):
            self.server.corrupt = ""
            data = bytes([data[0] ^ 1]) + data[1:]
        return self.answer(200, data, objects[key])

    do_GET = do_PUT = do_HEAD = do_DELETE = handle_any

    def answer(self, status: int, body: bytes, tagged: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.md5(tagged).hexdigest()}"')
        self.send_header("Last-Modified", "Sat, 21 Nov 2026 00:00:00 GMT")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def listing(self, prefix: str) -> bytes:
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-21T00:00:00.000Z</LastModified>"
            f'<ETag>"0"</ETag><Size>{len(data)}</Size></Contents>'
            for key, data in sorted(self.server.objects.items())
            if key.startswith(prefix)
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>".encode()

    def log_message(self, format: str, *args: object) -> None:
        return


class S3Server(ThreadingHTTPServer):
    """`failures`: answer so many requests with 503. `corrupt`: flip a bit of the next GET of a key that ends so."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), S3Handler)
        self.objects: dict[str, bytes] = {}
        self.requests = self.failures = 0
        self.corrupt = ""

    def store(self, deadline_s: float = 10.0) -> Store:
        options = {
            "endpoint": f"http://127.0.0.1:{self.server_port}",
            "region": "test",
            "skip_signature": "true",
            "disable_bulk_delete": "true",
        }
        return open_store("s3://bucket/run", StoreConfig(deadline_s=deadline_s, request_timeout_s=2.0, options=options))
