"""A server on this machine that answers for names under `.test` while it runs, such as the demo's site.

It publishes an entry in the home; every process that shares the home then connects to it for those names. `.test` is
reserved (RFC 6761, section 6.2): nobody can register a name under it, so no real name can be redirected by an entry,
and URLs stay the same whatever port the server was given.
"""

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from ingestion_pipeline.pages.http.guard import Endpoint, Resolver

LOOPBACK = "127.0.0.1"
RESERVED = ".test"
LAST_PORT = 65_535
CONNECT_SECONDS = 0.5  # loopback answers or refuses at once


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class LocalServer:
    """An entry: where the server listens, the names it answers for, and settings that apply while it runs."""

    port: int
    pid: int
    suffix: str
    providers: str = ""  # `website.providers`, where neither a provider nor a model is configured
    prices: str = ""  # added to `models.prices` with them

    def answers_for(self, host: str) -> bool:
        """Return whether `host` is one of its names; case and a trailing dot do not matter."""
        return host.lower().rstrip(".").endswith(self.suffix)


def publish(home: Path, port: int, *, suffix: str, providers: str = "", prices: str = "") -> None:
    """Write where this process runs the server, for every process that shares `home`."""
    server = LocalServer(port=port, pid=os.getpid(), suffix=suffix, providers=providers, prices=prices)
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
