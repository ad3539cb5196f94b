"""What makes a request conditional, and what its answer means: the page is as it was."""

from __future__ import annotations

from collections.abc import Mapping

from ingestion_pipeline.pages.request import Request, Unchanged
from ingestion_pipeline.urls import without_credentials
from ingestion_pipeline.work.errors import Transient

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
