"""A real S3 server in this process, behind faults that a test can choose.

The server is moto's, on a socket of its own. Faults come from a layer of WSGI around it, so that what a client sees of
them is what it would see of a real one: another status, a flipped bit, a body that ends early, silence.
"""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

from etude.weights.opening import open_store
from etude.weights.store import Store, StoreConfig

OPTIONS = {"region": "us-east-1", "access_key_id": "test", "secret_access_key": "test"}


class S3Server:
    """`failures`: answer so many requests with 503. `corrupt`, `torn`: flip a bit of the next GET of a key that ends
    so, or close the connection in the middle of it. `silent_s`: wait for so long before every answer.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.requests: list[tuple[str, str]] = []
        """Method and path of everything that was asked for, but for what had not changed."""
        self.failures = 0
        self.failed: list[tuple[str, str]] = []
        self._counting = threading.Lock()
        self.corrupt = self.torn = ""
        self.silent_s = 0.0
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server(host, 0, self._answer, threaded=True, request_handler=_Quiet)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.port = self._server.server_port
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.options = OPTIONS | {"endpoint": self.endpoint}
        self._ask("POST", "/moto-api/reset")  # what it holds is the process's, and outlives a server
        self._ask("PUT", "/bucket")

    def store(self, deadline_s: float = 60.0, request_timeout_s: float = 20.0, **config: Any) -> Store:
        config |= {"deadline_s": deadline_s, "request_timeout_s": request_timeout_s, "options": self.options}
        return open_store("s3://bucket/run", StoreConfig(**config))

    def reads(self, ending: str) -> int:
        """How many GETs there were of keys that end so."""
        return sum(method == "GET" and path.endswith(ending) for method, path in self.requests)

    def keys(self) -> list[str]:
        return sorted(self.store().list("versions/"))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(120)

    def _ask(self, method: str, path: str) -> None:
        with urllib.request.urlopen(urllib.request.Request(self.endpoint + path, method=method), timeout=120):
            return

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        time.sleep(self.silent_s)
        asked = (environ["REQUEST_METHOD"], environ["PATH_INFO"])
        with self._counting:
            fails = self.failures > 0
            self.failures -= fails
        if fails:
            self.failed.append(asked)
            self.requests.append(asked)
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response("503 Slow Down", [("Content-Type", "application/xml")])
            return [b"<Error><Code>SlowDown</Code></Error>"]

        def start(status: str, *rest: Any) -> Any:
            if not status.startswith("304"):
                self.requests.append(asked)
            return start_response(status, *rest)

        body = self._moto(environ, start)
        if environ["REQUEST_METHOD"] == "GET":
            path = environ["PATH_INFO"]
            if self.corrupt and path.endswith(self.corrupt):
                self.corrupt = ""
                return _flipped(body)
            if self.torn and path.endswith(self.torn):
                self.torn = ""
                return [data[: len(data) // 2] for data in body]
        return body


def _flipped(body: Iterable[bytes]) -> Iterator[bytes]:
    whole = b"".join(body)
    yield bytes([whole[0] ^ 1]) + whole[1:]


class _Quiet(MotoRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, type: str, message: str, *args: object) -> None:
        return
