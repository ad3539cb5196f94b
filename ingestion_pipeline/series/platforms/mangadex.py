"""Platform `mangadex`, API v5: the feed of one manga, page by page, to its end.

Documentation: https://api.mangadex.org/docs. Chapters are requested in the order in which they
were created: what is added while we page comes last, so no page skips or repeats a chapter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast
from urllib.parse import quote, urlencode

from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.pages.politeness.hosts import Pace
from ingestion_pipeline.reading.structured.items import ParsedFeed, Problem, read_document
from ingestion_pipeline.reading.text.plain_text import clean_text
from ingestion_pipeline.series.chapter import Release
from ingestion_pipeline.series.chapter_labels import chapter_number
from ingestion_pipeline.series.platforms.protocol import SeriesPlatform
from ingestion_pipeline.sources.source import BadConfig
from ingestion_pipeline.tasks.errors import Permanent, Transient, WorkError

if TYPE_CHECKING:
    from ingestion_pipeline.series.platforms.configs import MangaDexConfig

CHAPTER_PAGE = "https://mangadex.org/chapter/"

# Temporary refusals: blocked, proxy, time-out, too early, too many requests.
_PASSING_STATUSES = frozenset({403, 407, 408, 425, 429})

MAX_DIGITS = 15

_Fields = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedPage:
    """A page of a feed; `end` is the offset of the next page."""

    offset: int
    end: int
    total: int
    releases: Sequence[Release]
    problems: Sequence[Problem]


def read_page(body: bytes, content_type: str | None) -> FeedPage:
    """Parse one page of a feed.

    Raises:
        Permanent: `unexpected_body` for anything else, `api_error` for an error that stays.
        Transient: `truncated` for half a page, `api_error` for an error that may pass.
    """
    try:
        answer = read_document(body, content_type)
    except Permanent as error:
        raise _unexpected(f"a body of another kind ({error.text})") from error
    if not isinstance(answer, dict):
        raise _unexpected(f"JSON of type {type(answer).__name__}")
    fields = cast("_Fields", answer)
    if fields.get("result") == "error":
        raise _api_error(fields)
    data, limit, offset, total = fields.get("data"), *(_count(fields, key) for key in ("limit", "offset", "total"))
    if not isinstance(data, list) or limit is None or offset is None or total is None or limit < 1:
        raise _unexpected(_described(fields))
    items = _items(cast("object", data))
    if items and not any(_is_chapter(item) for item in items):
        raise _unexpected(f"a list of {len(items)} of type {_kind(items[0])}")
    listed = [_release(_fields(item)) if _is_chapter(item) else None for item in items]
    message = "no chapter: it has no id, no attributes, or another type; the rest counts"
    return FeedPage(
        offset=offset,
        end=offset + limit,
        total=total,
        releases=[release for release in listed if release],
        problems=[
            Problem(where=f"item {position}", message=message)
            for position, release in enumerate(listed, start=offset)
            if release is None
        ],
    )


def _unexpected(description: str) -> Permanent:
    return Permanent(
        f"not a page of a MangaDex feed but {description}; give the answer of /manga/<id>/feed, or"
        " check the source's address and api_base",
        code="unexpected_body",
    )


def _described(answer: _Fields) -> str:
    """Describe what the API answered instead, in the API's terms."""
    if "baseUrl" in answer and "chapter" in answer:
        return "the addresses of one chapter's images (/at-home/server)"
    if answer.get("response") == "entity":
        return f"one entity of type {_kind(answer.get('data'))}"
    return f"JSON with the keys {sorted(answer)[:10]}"


def _kind(item: object) -> str:
    return repr((_text(_fields(item), "type") or "unknown")[:40])


def _api_error(answer: _Fields) -> WorkError:
    first = _fields(next(iter(_items(answer.get("errors"))), None))
    status = _count(first, "status")
    detail = _text(first, "detail") or _text(first, "title") or "no detail given"
    message = f"MangaDex answered with error {status}: {detail}"
    is_lasting = status is not None and status < 500 and status not in _PASSING_STATUSES  # noqa: PLR2004  the server's errors begin there
    kind = Permanent if is_lasting else Transient
    return kind(message, code="api_error")


def _is_chapter(item: object) -> bool:
    return _fields(item).get("type", "chapter") == "chapter"


def _release(item: _Fields) -> Release | None:
    chapter_id, attributes = _text(item, "id"), _fields(item.get("attributes"))
    if chapter_id is None or not attributes:
        return None
    label = attributes.get("chapter")
    number = chapter_number(label) if isinstance(label, str) else None
    external = _text(attributes, "externalUrl") or ""
    moments = (_moment(_text(attributes, key)) for key in ("publishAt", "readableAt", "createdAt"))
    return Release(
        number=number,
        title=_title(attributes, is_numbered=number is not None),
        url=external if external.startswith(("http://", "https://")) else CHAPTER_PAGE + chapter_id,
        language=_text(attributes, "translatedLanguage"),
        scanlation_group=_groups(item),
        source_chapter_id=chapter_id,
        volume=_text(attributes, "volume"),
        published_at=next(filter(None, moments), None),
    )


def _title(attributes: _Fields, *, is_numbered: bool) -> str | None:
    """Return the title; a label that is no number is prepended, so that it is not lost."""
    title, label = _text(attributes, "title"), _text(attributes, "chapter")
    if is_numbered or label is None or label == title:
        return title
    return f"{label}: {title}" if title else label


def _groups(item: _Fields) -> str | None:
    related = map(_fields, _items(item.get("relationships")))
    groups = [entry for entry in related if entry.get("type") == "scanlation_group"]
    names = (_text(_fields(group.get("attributes")), "name") or _text(group, "id") for group in groups)
    return " & ".join(name for name in names if name) or None


def _moment(text: str | None) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text or "")
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def _fields(value: object) -> _Fields:
    return cast("_Fields", value) if isinstance(value, dict) else {}


def _items(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _text(fields: _Fields, key: str) -> str | None:
    value = fields.get(key)
    return clean_text(value) if isinstance(value, str) else None


def _count(fields: _Fields, key: str) -> int | None:
    value = fields.get(key)  # numbers are read as they are written
    is_count = isinstance(value, str) and value.isdecimal() and len(value) <= MAX_DIGITS
    return int(cast("str", value)) if is_count else None


API_BASE = "https://api.mangadex.org"
CONTENT_RATINGS = ("safe", "suggestive", "erotica", "pornographic")
MAX_LIMIT = 500
MAX_LISTED = 10_000  # the API refuses offset + limit beyond this


@dataclass(frozen=True, slots=True, kw_only=True)
class MangaDexFeed:
    """The chapters of one manga, in the configured languages and ratings."""

    config: "MangaDexConfig"

    def first_request(self) -> Request:
        """Return the request of the first page."""
        return self._page_request(offset=0)

    def next_request(
        self,
        body: bytes,
        *,
        previous: Request | None = None,  # noqa: ARG002  the answer says which part it is
        url: str = "",  # noqa: ARG002  pages are asked for by offset
    ) -> Request | None:
        """Return the request of the next page; None at the end, and at the API's limit."""
        page = read_page(body, None)
        if page.end >= page.total or page.end + self.config.limit > MAX_LISTED:
            return None
        return self._page_request(offset=page.end)

    def read(
        self,
        bodies: Sequence[bytes],
        *,
        content_types: Sequence[str | None],
        urls: Sequence[str] = (),  # noqa: ARG002  no link here is relative
        now: datetime | None = None,  # noqa: ARG002  no date here is relative
    ) -> ParsedFeed[Release]:
        """Return every release; complete if the pages reach the total that all of them state."""
        pairs = zip(bodies, content_types, strict=True)
        pages = sorted((read_page(*pair) for pair in pairs), key=lambda page: page.offset)
        releases = {release.source_chapter_id: release for page in pages for release in page.releases}
        problems = [problem for page in pages for problem in page.problems]
        problems += self._unlisted(pages)
        total = max((page.total for page in pages), default=0)
        return ParsedFeed(
            records=[release for release in releases.values() if self._is_wanted(release)],
            problems=problems,
            is_complete=not problems and _is_contiguous(pages) and len(releases) >= pages[0].total,
            notes=[f"{len(releases)} of {total} chapters: a part of the feed"] if len(releases) < total else [],
        )

    def _page_request(self, *, offset: int) -> Request:
        if self.config.manga_id is None:
            raise BadConfig(
                "a mangadex source needs the id of its manga: in its address"
                " (https://mangadex.org/title/<id>) or as manga_id in its config"
            )
        query = [
            ("limit", str(self.config.limit)),
            ("offset", str(offset)),
            ("order[createdAt]", "asc"),
            ("order[chapter]", "asc"),
            ("includes[]", "scanlation_group"),
            *(("translatedLanguage[]", language) for language in self.config.languages),
            *(("contentRating[]", rating) for rating in self.config.content_ratings),
        ]
        if not self.config.include_external:
            query.append(("includeExternalUrl", "0"))
        api_base = (self.config.api_base or API_BASE).rstrip("/")
        address = f"{api_base}/manga/{quote(self.config.manga_id)}/feed?{urlencode(query)}"
        return Request(url=address, accept="application/json")

    def _is_wanted(self, release: Release) -> bool:
        is_language = not self.config.languages or (release.language or "").lower() in self.config.languages
        return is_language and (self.config.include_external or (release.url or "").startswith(CHAPTER_PAGE))

    def _unlisted(self, pages: Sequence[FeedPage]) -> list[Problem]:
        """Return a problem if the API has more chapters than it lists."""
        end, total = max(((page.end, page.total) for page in pages), default=(0, 0))
        if end >= total or end + self.config.limit <= MAX_LISTED:
            return []
        message = f"the API lists {MAX_LISTED} of {total} chapters; choose fewer languages"
        return [Problem(where=f"offset {end}", message=message)]


def _is_contiguous(pages: Sequence[FeedPage]) -> bool:
    """Return whether the pages cover the feed without gap, with one total."""
    expected = 0
    for page in pages:
        if page.offset != expected or page.total != pages[0].total:
            return False
        expected = page.end
    return bool(pages) and expected >= pages[0].total


def configure(url: str, config: Mapping[str, object]) -> MangaDexFeed:
    """Build the feed of the manga that the address or `manga_id` names.

    Without address and `manga_id` it parses saved bodies and requests nothing.
    """
    from ingestion_pipeline.series.platforms.configs import MangaDexConfig  # pydantic takes time to import

    return MangaDexFeed(config=MangaDexConfig.of("mangadex", url, config))


PLATFORM = SeriesPlatform(
    name="mangadex", version=1, rate=Pace(delay_seconds=1 / 5, burst=10), honours_robots=False, configure=configure
)
