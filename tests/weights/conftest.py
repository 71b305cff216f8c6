"""The S3 endpoint, started and stopped."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from s3_server import S3Server


@pytest.fixture
def s3() -> Iterator[S3Server]:
    server = S3Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(5)
