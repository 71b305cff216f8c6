"""An object store in a process of its own that keeps what it has on disk, and dies where it is told to.

    python durable_s3.py DIRECTORY [ADDRESS:]PORT [REQUEST PHASE]

Speaks as much of S3 as obstore asks for. With REQUEST it is killed at that request, counted from 0: "before" it does
anything, in the "middle" of a write or an answer, or "after" it has done everything but answer.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlparse
from xml.etree import ElementTree
from xml.sax.saxutils import escape

PHASES = ("before", "middle", "after")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.phase = self.server.phase if self.server.count == self.server.fatal else ""
        self.server.count += 1
        self.die_in("before")
        url = urlparse(self.path)
        path = self.server.directory / quote(unquote(url.path).lstrip("/"), safe="")
        if "list-type" in url.query:
            return self.answer(200, self.listing(parse_qs(url.query)["prefix"][0]))
        if self.command == "PUT":
            return self.put(path, body)
        if self.command == "POST" and url.query == "delete":
            return self.delete(url.path.strip("/"), body)
        if not path.exists():
            return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        return self.get(path.read_bytes())

    do_GET = do_PUT = do_HEAD = do_POST = handle_any

    def put(self, path: Path, body: bytes) -> None:
        if self.headers.get("If-None-Match") == "*" and path.exists():
            return self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        half = path.with_name("." + path.name)
        half.write_bytes(body[: len(body) // 2])
        self.die_in("middle")
        half.write_bytes(body)
        half.rename(path)
        return self.answer(200, b"", body)

    def delete(self, bucket: str, body: bytes) -> None:
        keys = [element.text or "" for element in ElementTree.fromstring(body).iter() if element.tag.endswith("Key")]
        for key in keys:
            (self.server.directory / quote(f"{bucket}/{key}", safe="")).unlink(missing_ok=True)
        deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        return self.answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def get(self, data: bytes) -> None:
        span = self.headers.get("Range")
        if span is None:
            return self.answer(200, data, data)
        first, last = (int(edge) for edge in span.removeprefix("bytes=").split("-"))
        part = {"Content-Range": f"bytes {first}-{min(last, len(data) - 1)}/{len(data)}"}
        return self.answer(206, data[first : last + 1], data, part)

    def answer(self, status: int, body: bytes, tagged: bytes = b"", more: dict[str, str] | None = None) -> None:
        self.die_in("after")
        self.send_response(status)
        headers = {"Content-Length": str(len(body)), "ETag": f'"{hashlib.md5(tagged).hexdigest()}"'}
        for name, value in {**headers, "Last-Modified": "Sat, 21 Nov 2026 00:00:00 GMT", **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        sent = b"" if self.command == "HEAD" else body
        self.wfile.write(sent[: len(sent) // 2])
        self.wfile.flush()
        self.die_in("middle")
        self.wfile.write(sent[len(sent) // 2 :])

    def die_in(self, phase: str) -> None:
        if self.phase == phase:
            os.kill(os.getpid(), signal.SIGKILL)

    def listing(self, prefix: str) -> bytes:
        keys = {unquote(path.name).partition("/")[2]: path for path in self.server.directory.glob("[!.]*")}
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-21T00:00:00.000Z</LastModified>"
            f'<ETag>"0"</ETag><Size>{path.stat().st_size}</Size></Contents>'
            for key, path in sorted(keys.items())
            if key.startswith(prefix)
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>".encode()

    def log_message(self, format: str, *args: object) -> None:
        return


class Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, directory: Path, where: str, fatal: int, phase: str) -> None:
        address, _, port = where.rpartition(":")
        super().__init__((address or "127.0.0.1", int(port)), Handler)
        self.directory, self.fatal, self.phase, self.count = directory, fatal, phase, 0


if __name__ == "__main__":
    fatal, phase = (int(sys.argv[3]), sys.argv[4]) if len(sys.argv) > 3 else (-1, "")
    server = Server(Path(sys.argv[1]), sys.argv[2], fatal, phase)
    print(server.server_port, flush=True)
    server.serve_forever(0.02)
