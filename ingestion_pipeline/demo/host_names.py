"""Names that lead to the demo site: `*.demo.test`, and the address book that says where it listens.

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
    """Every process that shares `home` can find the site that this process runs on `port`.

    So it does the providers beside it, by name and base URL.
    """
    entry = _Entry(port=port, pid=os.getpid(), providers=dict(providers or {}))
    shown = {name: value for name, value in asdict(entry).items() if value != {}}
    write_atomically(_address_book(home), json.dumps(shown) + "\n")


def withdraw(home: Path) -> None:
    """The entry is gone if it is this process's; another process's entry stays."""
    entry = _read_entry(home)
    if entry is not None and entry.pid == os.getpid():
        _address_book(home).unlink(missing_ok=True)


def published_port(home: Path) -> int | None:
    """The port of the running site; None without an entry, or if the entry outlived its site.

    A killed site leaves its entry behind, and another process may have got its number since.
    """
    entry = _running(home)
    return None if entry is None else entry.port


def published_providers(home: Path) -> Mapping[str, str]:
    """The providers beside the running site, by name and base URL; none without a site."""
    entry = _running(home)
    return {} if entry is None else entry.providers


def _running(home: Path) -> _Entry | None:
    entry = _read_entry(home)
    if entry is None or not _is_alive(entry.pid) or not _answers(entry.port):
        return None
    return entry


def is_demo_name(host: str) -> bool:
    """Whether `host` belongs to the demo; capitals and a closing dot make no difference."""
    return host.lower().rstrip(".").endswith(DEMO_SUFFIX)


def demo_resolver(port: int, fallback: Resolver) -> Resolver:
    """Demo names lead to `port` on loopback, exempt from the guard; `fallback` knows the rest."""

    async def resolve(host: str, asked_port: int) -> Sequence[Endpoint]:
        if is_demo_name(host):
            return [Endpoint(LOOPBACK, port, is_exempt=True)]
        return await fallback(host, asked_port)

    return resolve


def _address_book(home: Path) -> Path:
    return home / "demo" / "site.json"


def _read_entry(home: Path) -> _Entry | None:
    """The entry, or None: an unreadable one leads nowhere, and the next site overwrites it."""
    try:
        document: object = json.loads(_address_book(home).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(document, dict):
        return None
    found = cast("dict[str, object]", document)
    match found:
        case {"port": int(port), "pid": int(pid)} if 0 < port <= LAST_PORT and pid > 0:
            return _Entry(port=port, pid=pid, providers=_providers(found))
        case _:
            return None


def _providers(document: dict[str, object]) -> dict[str, str]:
    found = document.get("providers")
    if not isinstance(found, dict):
        return {}
    return {str(name): str(url) for name, url in cast("dict[object, object]", found).items()}


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
