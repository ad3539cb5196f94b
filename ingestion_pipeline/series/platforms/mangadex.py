"""MangaDex, API v5: the feed of one manga, page by page, to its end.

Documentation: https://api.mangadex.org/docs. Chapters are asked for in the order in which they
were created: what is added while we page comes last, so no page skips or repeats a chapter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote, urlencode

from ingestion_pipeline.pages.request import Request
from ingestion_pipeline.reading.reading import Problem, Reading
from ingestion_pipeline.series.platforms.feed import Rate, SeriesPlatform
from ingestion_pipeline.series.platforms.mangadex_page import FeedPage, MangadexUpload, read_page
from ingestion_pipeline.series.release import Release
from ingestion_pipeline.sources.config_reader import BadConfig, ConfigReader

API_BASE = "https://api.mangadex.org"
CONTENT_RATINGS = ("safe", "suggestive", "erotica", "pornographic")
MAX_LIMIT = 500
MAX_LISTED = 10_000  # the API refuses offset + limit beyond this

_ID = re.compile(r"[0-9A-Za-z-]{1,64}")
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)
_IN_ADDRESS = re.compile(r"/(?:manga|title)/([0-9A-Za-z-]{1,64})(?=[/?#]|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class MangaDexFeed:
    """The chapters of one manga, in the languages and ratings asked for."""

    manga_id: str | None
    api_base: str
    languages: tuple[str, ...]
    limit: int
    content_ratings: tuple[str, ...]
    include_external: bool

    def first_request(self) -> Request:
        """The first page of the listing."""
        return self._page_request(offset=0)

    def next_request(
        self,
        body: bytes,
        *,
        asked: Request | None = None,  # noqa: ARG002  the answer says which part it is
        url: str = "",  # noqa: ARG002  pages are asked for by offset
    ) -> Request | None:
        """The page after this one; None at the end, and where the API lists no further."""
        page = read_page(body, None)
        if page.end >= page.total or page.end + self.limit > MAX_LISTED:
            return None
        return self._page_request(offset=page.end)

    def read(
        self,
        bodies: Sequence[bytes],
        *,
        content_types: Sequence[str | None],
        urls: Sequence[str] = (),  # noqa: ARG002  no link here is relative
        now: datetime | None = None,  # noqa: ARG002  no date here is relative
    ) -> Reading[Release]:
        """Every release of the pages; complete if they reach the total that all of them state."""
        pairs = zip(bodies, content_types, strict=True)
        pages = sorted((read_page(*pair) for pair in pairs), key=lambda page: page.offset)
        uploads = {upload.chapter_id: upload for page in pages for upload in page.uploads}
        problems = [problem for page in pages for problem in page.problems]
        problems += self._unlisted(pages)
        return Reading(
            records=[upload.release for upload in uploads.values() if self._is_wanted(upload)],
            problems=problems,
            is_complete=not problems and _is_contiguous(pages) and len(uploads) >= pages[0].total,
            notes=_part_of_a_feed(pages, len(uploads)),
        )

    def _page_request(self, *, offset: int) -> Request:
        if self.manga_id is None:
            raise BadConfig(
                "a mangadex source needs the id of its manga: in its address"
                " (https://mangadex.org/title/<id>) or as manga_id in its config"
            )
        query = [
            ("limit", str(self.limit)),
            ("offset", str(offset)),
            ("order[createdAt]", "asc"),
            ("order[chapter]", "asc"),
            ("includes[]", "scanlation_group"),
            *(("translatedLanguage[]", language) for language in self.languages),
            *(("contentRating[]", rating) for rating in self.content_ratings),
        ]
        if not self.include_external:
            query.append(("includeExternalUrl", "0"))
        address = f"{self.api_base}/manga/{quote(self.manga_id)}/feed?{urlencode(query)}"
        return Request(url=address, accept="application/json")

    def _is_wanted(self, upload: MangadexUpload) -> bool:
        language = (upload.release.language or "").lower()
        is_language = not self.languages or language in self.languages
        return is_language and (self.include_external or not upload.is_external)

    def _unlisted(self, pages: Sequence[FeedPage]) -> list[Problem]:
        """A problem if the API has more than it lists, since paging can then never be complete."""
        end, total = max(((page.end, page.total) for page in pages), default=(0, 0))
        if end >= total or end + self.limit <= MAX_LISTED:
            return []
        message = f"the API lists {MAX_LISTED} of {total} chapters; choose fewer languages"
        return [Problem(where=f"offset {end}", message=message)]


def _part_of_a_feed(pages: Sequence[FeedPage], count: int) -> list[str]:
    total = max((page.total for page in pages), default=0)
    return [f"{count} of {total} chapters: a part of the feed"] if count < total else []


def _is_contiguous(pages: Sequence[FeedPage]) -> bool:
    """Whether the pages follow each other from the first to the total that every one states."""
    expected = 0
    for page in pages:
        if page.offset != expected or page.total != pages[0].total:
            return False
        expected = page.end
    return bool(pages) and expected >= pages[0].total


def configure(url: str, config: Mapping[str, object]) -> MangaDexFeed:
    """The feed of the manga that the address or `manga_id` names.

    Without address and `manga_id` it can read saved bodies and request nothing.
    """
    reader = ConfigReader("mangadex", config)
    api_base = (reader.address("api_base") or API_BASE).rstrip("/")
    feed = MangaDexFeed(
        manga_id=_manga_id(url, reader, is_public_api=api_base == API_BASE),
        api_base=api_base,
        languages=reader.words("languages", default=()),
        limit=reader.integer("limit", default=MAX_LIMIT, allowed=range(1, MAX_LIMIT + 1)),
        content_ratings=reader.words(
            "content_ratings", default=CONTENT_RATINGS[:3], allowed=CONTENT_RATINGS
        ),
        include_external=reader.flag("include_external", default=True),
    )
    reader.finish()
    return feed


def _manga_id(url: str, reader: ConfigReader, *, is_public_api: bool) -> str | None:
    accepted = "the UUID of a manga" if is_public_api else "an id of letters, digits and hyphens"
    pattern = _UUID if is_public_api else _ID
    if given := reader.text("manga_id"):
        if not pattern.fullmatch(given):
            reader.refuse("manga_id", given, accepted)
        return given
    if not url:
        return None
    found = _IN_ADDRESS.search(reader.checked_address("url", url))
    if found is None or not pattern.fullmatch(found[1]):
        reader.refuse("url", url, f"an address with /title/ or /manga/ and {accepted}")
        return None
    return found[1]


PLATFORM = SeriesPlatform(
    name="mangadex",
    version=1,
    rate=Rate(per_second=5, burst=10),
    honours_robots=False,
    configure=configure,
)
