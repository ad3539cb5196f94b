"""What the platforms `json` and `html` share: items of a generic reader become releases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urljoin

from ingestion_pipeline.pages.request import Request
from ingestion_pipeline.reading.dates import read_date
from ingestion_pipeline.reading.items import Item, ItemReader
from ingestion_pipeline.reading.reading import Problem, Reading
from ingestion_pipeline.series.numbers import chapter_number
from ingestion_pipeline.series.platforms.feed import BadConfig, ConfigReader
from ingestion_pipeline.series.release import Release
from ingestion_pipeline.urls import host_of, without_credentials
from ingestion_pipeline.work.errors import Permanent

# The first of these that is configured is what an item must have to be a chapter.
NAMING_FIELDS = ("url", "source_chapter_id", "number", "label", "title")
FIELDS = (*NAMING_FIELDS, "language", "scanlation_group", "volume", "published_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What a source's config says of all its releases, and of where they are listed."""

    url: str
    requested_url: str
    series_title: str | None
    language: str | None
    scanlation_group: str | None
    is_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFeed:
    """A list of chapters; a window on the newest unless its config says it holds them all."""

    platform: str
    accept: str
    defaults: Defaults
    reader: ItemReader

    def first_request(self) -> Request:
        """The first page of the list."""
        if not self.defaults.requested_url:
            raise BadConfig(
                f"a source of {self.platform} needs an address; without one it reads saved bodies"
                " only"
            )
        return Request(url=self.defaults.requested_url, accept=self.accept)

    def next_request(self, body: bytes) -> Request | None:
        """The page that this one links to; None if it links to none.

        Raises:
            Permanent: `foreign_next`; a source's pace is kept for its own host alone.
        """
        link = self.reader.next_link(body)
        address = _address(self.defaults.requested_url, link)
        if address is None:
            return None
        if host_of(address) != host_of(self.defaults.requested_url):
            raise Permanent(
                f"the next page is said to be {without_credentials(address)}, on another host;"
                " add that as a source of its own, or mend next in the config",
                code="foreign_next",
            )
        return Request(url=address, accept=self.accept)

    def read(
        self,
        bodies: Sequence[bytes],
        *,
        content_types: Sequence[str | None],
        now: datetime | None = None,
    ) -> Reading[Release]:
        """One release per item, in the order of the pages; a repeated one counts once."""
        pairs = zip(bodies, content_types, strict=True)
        pages = [self.reader.read(body, content_type=type_) for body, type_ in pairs]
        items = [item for page in pages for item in page.records]
        problems = [problem for page in pages for problem in page.problems]
        # sorted is stable: of two mentions of a chapter the one with a date is kept
        dated_last = sorted(items, key=lambda item: "published_at" in item)
        chosen = {_identity(item): item for item in dated_last}
        releases = [self._release(chosen[key], now) for key in dict.fromkeys(map(_identity, items))]
        is_whole = bool(bodies) and not problems and self.reader.next_link(bodies[-1]) is None
        return Reading(
            records=releases,
            problems=[*problems, *_unread_dates(items, now)],
            is_complete=self.defaults.is_complete and is_whole,
        )

    def _release(self, item: Item, now: datetime | None) -> Release:
        date = item.get("published_at")
        label, title = item.get("label"), item.get("title")
        number = chapter_number(item.get("number"))
        if number is None:
            number = chapter_number(label or title, self.defaults.series_title)
        return Release(
            number=number,
            title=title or label,
            url=_address(self.defaults.url, item.get("url")),
            language=item.get("language") or self.defaults.language,
            scanlation_group=item.get("scanlation_group") or self.defaults.scanlation_group,
            source_chapter_id=item.get("source_chapter_id"),
            volume=item.get("volume"),
            published_at=read_date(date, now=now) if date else None,
        )


def read_defaults(url: str, reader: ConfigReader) -> Defaults:
    """The keys that both platforms have; the list is at `url`, or at `api_base` if that is set."""
    return Defaults(
        url=reader.checked_address("url", url) if url else "",
        requested_url=reader.address("api_base", default=url) or url,
        series_title=reader.text("series_title"),
        language=reader.text("language"),
        scanlation_group=reader.text("scanlation_group"),
        is_complete=reader.flag("complete", default=False),
    )


def naming_field(fields: Sequence[str], reader: ConfigReader) -> tuple[str, ...]:
    """The field without which an item is no chapter; refused if none is configured."""
    found = next((name for name in NAMING_FIELDS if name in fields), None)
    if found is None:
        reader.reject("fields", f"needed: at least one of {', '.join(NAMING_FIELDS)}")
    return (found,) if found else ()


def _identity(item: Item) -> tuple[str | None, ...]:
    """What makes two items one: everything but the date, which a first mention often lacks."""
    return tuple(item.get(name) for name in FIELDS if name != "published_at")


def _unread_dates(items: Sequence[Item], now: datetime | None) -> list[Problem]:
    """One problem for all dates that say nothing to us; it does not make a list incomplete."""
    dates = [item["published_at"] for item in items if "published_at" in item]
    unread = [date for date in dates if read_date(date, now=now) is None]
    if not unread:
        return []
    message = f"{len(unread)} of {len(dates)} dates cannot be read, the first is {unread[0][:60]!r}"
    if now is None:
        message += "; relative dates need the time of fetching, which a saved body has not"
    return [Problem(where="published_at", message=message)]


def _address(base: str, link: str | None) -> str | None:
    """The link as a web address; None for a link that a browser would not fetch."""
    if link is None:
        return None
    try:
        address = urljoin(base, link)
    except ValueError:
        return None
    return address if address.startswith(("http://", "https://")) else None
