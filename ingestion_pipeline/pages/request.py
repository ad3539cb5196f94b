"""A request for one page, and the two answers that are not errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One GET, or one POST of a JSON `body`; `etag` and `last_modified` make it conditional."""

    url: str
    accept: str = "*/*"
    etag: str | None = None
    last_modified: str | None = None
    body: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A whole body that arrived inside every limit."""

    url: str
    final_url: str
    status_code: int
    body: bytes
    content_type: str | None
    etag: str | None
    last_modified: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchanged:
    """The server says that what we hold is still right (304)."""

    url: str
    etag: str | None
    last_modified: str | None


Answer = Fetched | Unchanged


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Any answer, with the beginning of its body if it is a success; lower-case header names."""

    status_code: int
    headers: Mapping[str, str]
    body: bytes
