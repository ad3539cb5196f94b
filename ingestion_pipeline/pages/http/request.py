"""A request for one page, and the two answers that are not errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from ingestion_pipeline.tasks.errors import Transient
from ingestion_pipeline.urls import without_credentials


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


MAX_VALIDATOR_CHARS = 1000  # an ETag that is longer is not kept: the next poll is then a full one


def conditions(request: Request, *, is_its_own: bool) -> dict[str, str]:
    """The headers for one hop; `is_its_own` is the one that the validators are said of.

    The date at which one page was changed says nothing of another that a redirect leads to. An ETag
    names what it stands for: it is asked about elsewhere as well, unless it is known that it came
    from another hop.
    """
    found: dict[str, str] = {}
    etag, changed_at = validator(request.etag), validator(request.last_modified)
    if etag and (is_its_own or request.validated_url is None):
        found["If-None-Match"] = etag
    if changed_at and is_its_own:
        found["If-Modified-Since"] = changed_at
    return found


def unchanged(request: Request, headers: Mapping[str, str], *, is_its_own: bool) -> Unchanged:
    """What a 304 says; a `Transient` where nothing was asked that it could be the answer to."""
    if not conditions(request, is_its_own=is_its_own):
        raise Transient(
            f"{without_credentials(request.url)} answered 304 to a request without conditions",
            code="bad_304",
        )
    return Unchanged(
        url=request.url,
        etag=validator(headers.get("etag")) or request.etag,
        last_modified=validator(headers.get("last-modified")) or request.last_modified,
    )


def validator(value: str | None) -> str | None:
    """An ETag or date that can be sent back as it came; anything odd is forgotten."""
    if value and len(value) <= MAX_VALIDATOR_CHARS and value.isascii() and value.isprintable():
        return value
    return None
