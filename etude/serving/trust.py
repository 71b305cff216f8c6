"""Whom a client of ours believes over TLS.

Owns the contexts that clients are made with. httpx2 makes one for each client and reads all authorities of the machine
for it, also where nothing will be encrypted, and that takes longer than anything else of starting a client. So they are
read once, and not at all for a plain address or a socket. Never weakens what is checked.
"""

from __future__ import annotations

import ssl
from functools import cache

import httpx2


def trust(url: str, *, by_environment: bool = False) -> ssl.SSLContext:
    """For a client of this address. `by_environment`: SSL_CERT_FILE and SSL_CERT_DIR may name other authorities."""
    return _nobody() if url.lower().startswith("http://") else _authorities(by_environment)


@cache
def _authorities(by_environment: bool) -> ssl.SSLContext:
    return httpx2.create_ssl_context(trust_env=by_environment)


@cache
def _nobody() -> ssl.SSLContext:
    """Checks as any does, and has no authority: should an address turn out to be encrypted after all, it is refused."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
