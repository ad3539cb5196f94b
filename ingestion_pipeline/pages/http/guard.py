"""Where a connection may lead: one lookup per name, every address public, and the names a local server answers for.

`.test` is reserved (RFC 6761, section 6.2): nobody can register a name under it, so an entry in the home, which every
process that shares it honours, redirects no real name; URLs stay the same whatever port the server was given.
"""

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from ingestion_pipeline.tasks.errors import Permanent, Unreachable
from ingestion_pipeline.urls import is_refused_address

# Names under which clouds hand credentials to their machines; refused whatever they resolve to.
METADATA_HOSTS = frozenset(
    {"instance-data", "instance-data.ec2.internal", "metadata", "metadata.azure.internal"}
    | {"metadata.goog", "metadata.google.internal", "metadata.tencentyun.com"}
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
    with suppress(ValueError):
        if str(ip_address(host)) == host and "%" not in host:
            return [Endpoint(host, port)]  # what the system would return, without a lookup
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [Endpoint(str(sockaddr[0]), port) for *_, sockaddr in addresses]


async def no_network(host: str, port: int) -> Sequence[Endpoint]:
    """Refuse every address: a shadow sends nothing."""
    raise Permanent(f"{host}:{port} is not requested: a shadow (INGESTION_SHADOW) sends nothing", code="shadow")


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


LOOPBACK = "127.0.0.1"
RESERVED = ".test"
LAST_PORT = 65_535
CONNECT_SECONDS = 0.5  # loopback answers or refuses at once


@checked_dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class LocalServer:
    """An entry: where the server listens, the names it answers for, and settings that apply while it runs."""

    port: int
    pid: int
    suffix: str
    providers: str = ""  # `website.providers`, where neither a provider nor a model is configured
    prices: str = ""  # added to `models.prices` with them
    profile: str = ""  # `match.profile`, where the configured file does not exist

    def answers_for(self, host: str) -> bool:
        """Return whether `host` is one of its names; case and a trailing dot do not matter."""
        return host.lower().rstrip(".").endswith(self.suffix)


def publish(home: Path, port: int, *, suffix: str, **settings: str) -> None:
    """Write where this process runs the server, for every process that shares `home`."""
    server = LocalServer(port=port, pid=os.getpid(), suffix=suffix, **settings)
    entry = _entry(home)
    entry.parent.mkdir(parents=True, exist_ok=True)
    draft = entry.with_suffix(f".{server.pid}")
    draft.write_text(json.dumps({name: value for name, value in asdict(server).items() if value}) + "\n")
    draft.replace(entry)


def withdraw(home: Path) -> None:
    """Remove the entry if it is this process's own."""
    server = _read_entry(home)
    if server is not None and server.pid == os.getpid():
        _entry(home).unlink(missing_ok=True)


def running_server(home: Path) -> LocalServer | None:
    """Return the running server; None without an entry, or for a stale one.

    A killed server leaves its entry behind, and its process id may have been reused.
    """
    server = _read_entry(home)
    if server is None or not _is_alive(server.pid) or not _accepts(server.port):
        return None
    return server


def local_resolver(server: LocalServer, fallback: Resolver) -> Resolver:
    """Return a resolver of the server's names to its port on loopback; `fallback` resolves the rest."""

    async def resolve(host: str, port: int) -> Sequence[Endpoint]:
        if server.answers_for(host):
            return [Endpoint(LOOPBACK, server.port, is_exempt=True)]
        return await fallback(host, port)

    return resolve


_ENTRY = TypeAdapter(LocalServer)


def _entry(home: Path) -> Path:
    return home / "local_server.json"


def _read_entry(home: Path) -> LocalServer | None:
    """Return the entry; None if it is missing or unusable (the next server overwrites it)."""
    try:
        server = _ENTRY.validate_json(_entry(home).read_bytes(), strict=True)
    except (FileNotFoundError, ValidationError):
        return None
    is_usable = 0 < server.port <= LAST_PORT and server.pid > 0 and server.suffix.endswith(RESERVED)
    return server if is_usable else None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # signal 0 is not sent: it only asks whether the process exists
    except PermissionError:
        return True  # it exists and belongs to somebody else
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _accepts(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
