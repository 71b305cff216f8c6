"""What a sandbox may reach: host names on a list, at addresses that are public.

Owns the list, the reading of what a request asks for, and the judgement of resolved addresses. Does no I/O. A name is
allowed first and its addresses are judged after it was resolved, because a name says nothing of where it leads.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, get_args
from urllib.parse import urlsplit

from pydantic import IPvAnyNetwork, field_validator

from etude.config import Config, parse
from etude.deadlines import Wait
from etude.errors import EtudeError

if TYPE_CHECKING:
    import h11

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_NAME = re.compile(r"(?=.{1,253}$)([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"(0x[0-9a-f]*|[0-9]+)")
_METADATA = (ipaddress.ip_address("168.63.129.16"),)
"""Metadata services at addresses that look public; the others are link-local, shared or unique-local."""


class EgressConfig(Config):
    """What may be reached. Empty `hosts` means nothing."""

    hosts: tuple[str, ...] = ()
    """Names, exact (`mirror.example.com`) or every name below one (`*.example.com`, which leaves out that one)."""
    ports: tuple[int, ...] = (80, 443)
    """Of those hosts; no other may be reached."""
    networks: tuple[IPvAnyNetwork, ...] = ()
    """Networks that are not public and may be reached nevertheless, by an allowed name: an internal mirror's."""
    drop_headers: ClassVar[tuple[str, ...]] = ("authorization", "cookie")
    """Left out of plain HTTP requests: no mirror needs them. `proxy-*` always is."""
    max_connections: ClassVar[int] = 64
    """At once, of one sandbox; those beyond wait. Package managers open a dozen."""
    connections_per_s: ClassVar[float] = 100.0
    """New ones of one sandbox; those beyond wait. What the proxy does for it is not within its own limits."""
    head_timeout_s: ClassVar[Wait] = Wait(10.0)
    """For a request's first lines."""
    connect_timeout_s: ClassVar[Wait] = Wait(10.0)
    idle_timeout_s: ClassVar[Wait] = Wait(60.0)
    """A connection on which nothing moves for so long is cut."""

    @field_validator("hosts")
    @classmethod
    def _names(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            name = host.removeprefix("*.")
            if not _NAME.fullmatch(name) or is_address(name):
                raise ValueError(f"{host!r} must be a host name in lower case, or '*.' and one; addresses are refused")
        return hosts

    def allows(self, host: str) -> bool:
        """Whether the list holds this name, by itself or by a suffix."""
        return any(host.endswith(entry[1:]) if entry.startswith("*.") else host == entry for entry in self.hosts)


def allowing(config: EgressConfig, hosts: Sequence[str] | None) -> EgressConfig:
    """`config` with these hosts in place of its own, where there are any. Raises ConfigError for what is no name."""
    if hosts is None:
        return config
    return parse({**config.model_dump(), "hosts": tuple(hosts)}, EgressConfig, "egress")


Reason = Literal["malformed", "address", "host", "port", "network", "unreachable"]
REASONS: tuple[Reason, ...] = get_args(Reason)


class Refused(EtudeError):
    """A request the proxy does not carry out. `reason` is a word for counting."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type, tuple[Reason, str]]:
        return type(self), (self.reason, str(self))


def judge(config: EgressConfig, host: str, port: int) -> None:
    """Raise Refused unless a request for this host and port may go on to be resolved."""
    if is_address(host):
        raise Refused("address", f"{host} is an address; only names can be allowed")
    if not config.allows(host):
        raise Refused("host", f"{host} is not on the list of allowed hosts")
    if port not in config.ports:
        raise Refused("port", f"port {port} is not one of {', '.join(map(str, config.ports))}")


def reachable(config: EgressConfig, host: str, found: list[str]) -> list[str]:
    """The addresses of `found` that may be connected to. Raises Refused when there are some and none is public."""
    good = [text for text in found if _may_reach(config, ipaddress.ip_address(text))]
    if found and not good:
        raise Refused("network", f"{host} is at {', '.join(found)}, inside a network that is not public")
    return good


def _may_reach(config: EgressConfig, address: Address) -> bool:
    if any(address in network for network in config.networks):
        return True
    return all(
        each.is_global and not each.is_multicast and not each.is_reserved and each not in _METADATA
        for each in (address, *_embedded(address))
    )


def target_of(request: h11.Request) -> tuple[str, int, str]:
    """Host, port and path asked for; the Host header has no say, the request line has."""
    text = request.target.decode("ascii", "replace")
    try:
        parts = urlsplit(f"//{text}" if request.method == b"CONNECT" else text)
        host, port = (parts.hostname or "").removesuffix("."), parts.port
    except ValueError as error:
        raise Refused("malformed", f"{text[:200]!r}: {error}") from None
    if request.method == b"CONNECT":
        if port is None or parts.path or parts.query or "@" in text:
            raise Refused("malformed", f"CONNECT takes HOST:PORT, not {text[:200]!r}")
        path = ""
    else:
        if parts.scheme != "http" or parts.username is not None:
            raise Refused("malformed", f"ask for http://HOST/PATH through a proxy, not for {text[:200]!r}")
        port, path = port or 80, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not is_address(host) and not _NAME.fullmatch(host):
        raise Refused("malformed", f"{host[:200]!r} is no host name")
    return host, port, path


def is_address(host: str) -> bool:
    """Also the old forms that resolvers take for addresses: 0x7f.1, 2130706433."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return bool(_NUMBER.fullmatch(host.rpartition(".")[2]))
    return True


def _embedded(address: Address) -> list[Address]:
    """The IPv4 addresses an IPv6 one may lead to, through tunnels; translated ones are reserved, and so refused."""
    if not isinstance(address, ipaddress.IPv6Address):
        return []
    found: list[Address] = [inner for inner in (address.ipv4_mapped, address.sixtofour) if inner is not None]
    return [*found, *(address.teredo or ())]
