"""The address guard: one lookup per name, and every address must be public."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from ingestion_pipeline.tasks.errors import Permanent, Unreachable
from ingestion_pipeline.urls import is_refused_address

# Names under which clouds hand credentials to their machines; refused whatever they resolve to.
METADATA_HOSTS = frozenset(
    {
        "instance-data",
        "instance-data.ec2.internal",
        "metadata",
        "metadata.azure.internal",
        "metadata.goog",
        "metadata.google.internal",
        "metadata.tencentyun.com",
    }
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address to connect to; `is_exempt` marks a resolver's own site, such as the demo's."""

    address: str
    port: int
    is_exempt: bool = False


Resolver = Callable[[str, int], Awaitable[Sequence[Endpoint]]]


async def system_resolver(host: str, port: int) -> Sequence[Endpoint]:
    """Return the addresses from the operating system, in its order; also for numeric hosts."""
    if _is_ip_literal(host):
        return [Endpoint(host, port)]  # what the system would return, without a lookup
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [Endpoint(str(sockaddr[0]), port) for *_, sockaddr in addresses]


def _is_ip_literal(host: str) -> bool:
    try:
        return str(ip_address(host)) == host and "%" not in host
    except ValueError:
        return False


# The host:port pairs that are exempt in this task; None: every listed one.
_OWN: ContextVar[frozenset[str] | None] = ContextVar("own_hosts", default=None)


@contextmanager
def exempt_only(hosts: frozenset[str] | None) -> Generator[None]:
    """Limit `INGESTION_ALLOW_HOSTS` to these host:port pairs inside."""
    token = _OWN.set(hosts)
    try:
        yield
    finally:
        _OWN.reset(token)


def exempt_hosts(url: str) -> frozenset[str]:
    """Return the host:port pairs that are exempt in this task, the source's; else that of the URL alone."""
    own = _OWN.get()
    return hosts_and_ports([url]) if own is None else own


def hosts_and_ports(urls: Iterable[str]) -> frozenset[str]:
    """Return host:port of each URL that has one, as `INGESTION_ALLOW_HOSTS` lists it."""
    entries: set[str] = set()
    for url in urls:
        with suppress(ValueError):  # no URL, or no port
            parts = urlsplit(url)
            port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
            if parts.hostname and port:
                entries.add(_host_and_port(parts.hostname, port))
    return frozenset(entries)


class Guard:
    """Returns checked addresses; callers connect to these and look up nothing themselves."""

    def __init__(self, allow_hosts: frozenset[str] = frozenset(), resolve: Resolver = system_resolver) -> None:
        self._allow_hosts = frozenset(host.lower() for host in allow_hosts)
        self._resolve = resolve

    async def recheck(self, host: str, port: int) -> None:
        """Refuse a listed host that is not exempt in this task, also on a kept connection."""
        name = host.strip("[]").rstrip(".").lower()
        if _host_and_port(name, port) in self._allow_hosts and not self._is_allowed(name, port):
            await self.endpoints(host, port)

    async def endpoints(self, host: str, port: int) -> Sequence[Endpoint]:
        """Return every address of `host` after one lookup; if one is refused, all are."""
        name = host.strip("[]").rstrip(".").lower()
        if name in METADATA_HOSTS:
            raise Permanent(
                f"{host} is a cloud's metadata service and is never fetched; remove the source", code="blocked_address"
            )
        endpoints = await self._look_up(host, port)
        if not self._is_allowed(name, port) and not all(e.is_exempt for e in endpoints):
            refused = next((e.address for e in endpoints if is_refused_address(e.address)), None)
            if refused is not None:
                raise Permanent(
                    f"{name} has the address {refused}, which is not public; if it is yours, add"
                    f" {_host_and_port(name, port)} to INGESTION_ALLOW_HOSTS, which holds for sources whose own URL"
                    " is there",
                    code="blocked_address",
                )
        return endpoints

    async def _look_up(self, host: str, port: int) -> Sequence[Endpoint]:
        try:
            endpoints = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:  # UnicodeError: a label that no name server takes
            raise Unreachable(f"the name {host} could not be resolved: {error}", code="dns") from error
        if not endpoints:
            raise Unreachable(f"the name {host} has no address", code="dns")
        return endpoints

    def _is_allowed(self, name: str, port: int) -> bool:
        entry, own = _host_and_port(name, port), _OWN.get()
        return entry in self._allow_hosts and (own is None or entry in own)


def _host_and_port(name: str, port: int) -> str:
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
