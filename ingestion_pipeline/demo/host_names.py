"""Host names of the demo site: `*.demo.test`, and the file that says where it listens.

`.test` is reserved (RFC 6761, section 6.2): nobody can register a name under it, so no real name
can be caught by this mapping; and the demo's URLs stay the same whatever port the site was given.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast

from ingestion_pipeline.demo.state import write_atomically
from ingestion_pipeline.pages.http.guard import Endpoint, Resolver

DEMO_SUFFIX = ".demo.test"
LOOPBACK = "127.0.0.1"
LAST_PORT = 65_535
KNOCK_SECONDS = 0.5  # loopback answers or refuses at once


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    port: int
    pid: int
    providers: Mapping[str, str] = field(default_factory=dict[str, str])


def publish(home: Path, port: int, *, providers: Mapping[str, str] | None = None) -> None:
    """Write where this process runs the site, for every process that shares `home`.

    With the providers beside it, by name and base URL.
    """
    entry = _Entry(port=port, pid=os.getpid(), providers=dict(providers or {}))
    document = {name: value for name, value in asdict(entry).items() if value != {}}
    write_atomically(_address_book(home), json.dumps(document) + "\n")


def withdraw(home: Path) -> None:
    """Remove the entry if it is this process's own."""
    entry = _read_entry(home)
    if entry is not None and entry.pid == os.getpid():
        _address_book(home).unlink(missing_ok=True)


def published_port(home: Path) -> int | None:
    """Return the port of the running site; None without an entry, or for a stale one.

    A killed site leaves its entry behind, and its process id may have been reused.
    """
    entry = _running(home)
    return None if entry is None else entry.port


def published_providers(home: Path) -> Mapping[str, str]:
    """Return the providers of the running site, by name and base URL."""
    entry = _running(home)
    return {} if entry is None else entry.providers


def _running(home: Path) -> _Entry | None:
    entry = _read_entry(home)
    if entry is None or not _is_alive(entry.pid) or not _answers(entry.port):
        return None
    return entry


def is_demo_name(host: str) -> bool:
    """Return whether `host` belongs to the demo; case and a trailing dot do not matter."""
    return host.lower().rstrip(".").endswith(DEMO_SUFFIX)


def demo_resolver(port: int, fallback: Resolver) -> Resolver:
    """Return a resolver of demo names to `port` on loopback; `fallback` resolves the rest."""

    async def resolve(host: str, asked_port: int) -> Sequence[Endpoint]:
        if is_demo_name(host):
            return [Endpoint(LOOPBACK, port, is_exempt=True)]
        return await fallback(host, asked_port)

    return resolve


def _address_book(home: Path) -> Path:
    return home / "demo" / "site.json"


def _read_entry(home: Path) -> _Entry | None:
    """Return the entry; None if it is missing or unreadable (the next site overwrites it)."""
    try:
        document: object = json.loads(_address_book(home).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(document, dict):
        return None
    fields = cast("dict[str, object]", document)
    match fields:
        case {"port": int(port), "pid": int(pid)} if 0 < port <= LAST_PORT and pid > 0:
            return _Entry(port=port, pid=pid, providers=_providers(fields))
        case _:
            return None


def _providers(document: dict[str, object]) -> dict[str, str]:
    providers = document.get("providers")
    if not isinstance(providers, dict):
        return {}
    return {str(name): str(url) for name, url in cast("dict[object, object]", providers).items()}


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # signal 0 is not sent: it only asks whether the process exists
    except PermissionError:
        return True  # it exists and belongs to somebody else
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _answers(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), timeout=KNOCK_SECONDS).close()
    except OSError:
        return False
    return True
