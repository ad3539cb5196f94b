"""Types of a page fetch: what is known of the page, what to fetch, and the two answers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256

from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.pages.visits.rendering import RenderingOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawledPage:
    """A page whose content is in the store; `url` is where its redirects led.

    `links` are set if the page was just parsed, or if clicks found some of them; `is_rendered` if a
    browser made the body.
    """

    url: str
    body: bytes
    content_type: str | None
    links: Sequence[str] | None = None
    is_rendered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPage:
    """A fetched page read from the content store; `url` is where its redirects led."""

    url: str
    body: bytes
    content_type: str | None
    fetched_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPage:
    """The newest snapshot of a page, by which an unchanged page is recognised.

    `final_url` is where redirects led, to which `etag` and `last_modified` belong. `served_hash` is
    of the bytes that plain HTTP served, `content_hash` of the cleaned text, `links_hash` of its
    links, `rendering_hash` of the rendering options.
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
    """One page to fetch; `render` asks for a browser even if the page is no empty shell.

    `is_data` marks the response of an API or a sitemap: stored as it came, and checked by its
    parser. `changed_at` is when the page was last changed according to its site.
    """

    url: str
    known_page: KnownPage | None = None
    render: bool = False
    is_data: bool = False
    rendering: RenderingOptions = field(default_factory=RenderingOptions)
    changed_at: datetime | None = None

    @property
    def rendering_hash(self) -> str:
        """A hash that is equal as long as the rendering options are."""
        return sha256(repr((self.render, self.rendering)).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamePage:
    """Neither text nor links of the page have changed; the validators may have.

    `served_hash` and `rendered_at` are the values to recognise it by from now on, as in `KnownPage`.
    """

    url: str
    known_page: KnownPage
    etag: str | None
    last_modified: str | None
    served_hash: str | None = None
    rendered_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPage:
    """A page whose text or links are new.

    `links` are canonical URLs in page order, hidden ones last. `body` is what is stored as the page: the served bytes,
    or the rendered DOM if `is_rendered`. `text` and `markdown` are UTF-8, as stored.
    """

    url: str
    final_url: str
    status_code: int
    content_type: str | None
    etag: str | None
    last_modified: str | None
    body: bytes
    served_hash: str
    content_hash: str
    text: bytes
    canonical_url: str | None = None
    markdown: bytes | None = None
    links: tuple[str, ...] = ()
    is_rendered: bool = False
    screenshot: bytes | None = None
    discovered: tuple[str, ...] = ()
    rendering_hash: str | None = None

    @property
    def links_hash(self) -> str:
        """A hash of every address it links to."""
        return links_hash((*self.links, *self.discovered))


PageAnswer = NewPage | SamePage


def links_hash(links: Iterable[str]) -> str:
    """Return a hash of the addresses in any order: pages shuffle what they advertise."""
    text = "\n".join(sorted(set(links)))
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def unless_known(request: Request, known_page: KnownPage | None) -> Request:
    """Return the request made conditional on the page having changed."""
    if known_page is None:
        return request
    # A browser may have been redirected by scripts; the validators belong to the plain response.
    validated_url = known_page.final_url if known_page.rendered_at is None else None
    return replace(request, etag=known_page.etag, last_modified=known_page.last_modified, validated_url=validated_url)
