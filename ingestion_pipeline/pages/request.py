"""A request for one page, and the two answers that are not errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class SecretPlace(StrEnum):
    """Where a server wants to see a secret."""

    BEARER = "bearer"
    HEADER = "header"
    QUERY = "query"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A secret by the name of its environment variable; its value is only known on the wire.

    `name` is the header's or the parameter's; a bearer token needs none.
    """

    place: SecretPlace
    variable: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One GET, or one POST of a JSON `body`; `etag` and `last_modified` make it conditional.

    They are said of one URL: of `validated_url`, or where that is not known of the request's own.
    `page` is its place in a listing; one that `may_be_missing` ends the listing by a 404.
    """

    url: str
    accept: str = "*/*"
    etag: str | None = None
    last_modified: str | None = None
    validated_url: str | None = None
    body: bytes | None = None
    page: int = 1
    may_be_missing: bool = False
    secret: Secret | None = None


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


@dataclass(frozen=True, slots=True)
class Start:
    """Any answer, with the beginning of its body if it is a success; lower-case header names."""

    status_code: int
    headers: Mapping[str, str]
    body: bytes
