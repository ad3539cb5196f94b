"""A page that is visited again and again: what is known of it, and what a visit may find."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256

from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.pages.visits.rendering import RenderingOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawledPage:
    """A page whose content is in the store; `url` is where its redirects led.

    `links` are known if the page was just read, or if clicks found some of them; `is_rendered` if a
    browser made the body.
    """

    url: str
    body: bytes
    content_type: str | None
    links: Sequence[str] | None = None
    is_rendered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPage:
    """A fetched page as the content store gives it back; `url` is where its redirects led."""

    url: str
    body: bytes
    content_type: str | None
    fetched_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPage:
    """What the newest snapshot left, by which an unchanged page is recognised.

    `final_url` is where redirects led, and so what `etag` and `last_modified` are said of.
    `served_hash` is of the bytes that plain HTTP gave, `content_hash` of the cleaned text,
    `links_hash` of where it leads, `rendering_hash` of how a browser was told to show it.
    """

    snapshot_id: int
    content_hash: str
    final_url: str | None = None
    fetched_at: datetime | None = None
    served_hash: str | None = None
    etag: str | None = None
    last_modified: str | None = None
    rendered_at: datetime | None = None
    links_hash: str | None = None
    rendering_hash: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageVisit:
    """One page to look at; `render` asks for a browser even if the page is no empty shell.

    `is_data` is an API's answer or a sitemap: kept as it came, and judged by whoever reads it.
    `changed_at` is when the page was changed last, by the word of its site.
    """

    url: str
    known: KnownPage | None = None
    render: bool = False
    is_data: bool = False
    rendering: RenderingOptions = field(default_factory=RenderingOptions)
    changed_at: datetime | None = None

    @property
    def rendering_hash(self) -> str:
        """The same as long as a browser is asked for, and told, the same."""
        return sha256(repr((self.render, self.rendering)).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamePage:
    """Neither what a reader sees nor where it leads has changed; the validators may have.

    What it is recognised by from now on: `served_hash` and `rendered_at` as in `KnownPage`.
    """

    url: str
    known: KnownPage
    etag: str | None
    last_modified: str | None
    served_hash: str | None = None
    rendered_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPage:
    """A page that says or links something new.

    `links` are canonical URLs in page order, those that nobody sees at the end.
    `body` is what is kept as the page: the served bytes, or the rendered DOM if `is_rendered`.
    `text` and `markdown` are UTF-8, as they are kept.
    """

    url: str
    final_url: str
    canonical_url: str | None
    status_code: int
    content_type: str | None
    etag: str | None
    last_modified: str | None
    body: bytes
    served_hash: str
    content_hash: str
    text: bytes
    markdown: bytes | None
    links: tuple[str, ...]
    is_rendered: bool = False
    screenshot: bytes | None = None
    discovered: tuple[str, ...] = ()
    rendering_hash: str | None = None

    @property
    def links_hash(self) -> str:
        """Of every address that it leads to."""
        return links_hash((*self.links, *self.discovered))


PageAnswer = NewPage | SamePage


def links_hash(links: Iterable[str]) -> str:
    """The same for the same addresses in any order: pages shuffle what they advertise."""
    said = "\n".join(sorted(set(links)))
    return sha256(said.encode("utf-8", "surrogatepass")).hexdigest()


def unless_known(request: Request, known: KnownPage | None) -> Request:
    """The request for the page unless it is as it was."""
    if known is None:
        return request
    # A browser may have been led on by scripts; the validators are of what plain HTTP was led to.
    validated_url = known.final_url if known.rendered_at is None else None
    return replace(
        request,
        etag=known.etag,
        last_modified=known.last_modified,
        validated_url=validated_url,
    )
