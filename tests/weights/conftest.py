"""The S3 server, started and stopped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from s3_server import S3Server


@pytest.fixture
def s3() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.close()
