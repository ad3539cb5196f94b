"""Shared part of the platforms `json` and `html`: items of a generic reader become releases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.html.links import absolute_links
from ingestion_pipeline.reading.structured.items import Item, ItemPage, ItemReader, ParsedFeed, Problem
from ingestion_pipeline.reading.text.dates import DateReader
from ingestion_pipeline.reading.text.decoding import without_references
from ingestion_pipeline.series.chapter import Release
from ingestion_pipeline.series.numbers import chapter_number, volume_text
from ingestion_pipeline.sources.config_reader import BadConfig, ConfigReader
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline.urls import host_of, without_credentials

# An item must have the first of these that is configured, else it is no chapter.
NAMING_FIELDS = ("url", "source_chapter_id", "number", "label", "title")
FIELDS = (*NAMING_FIELDS, "language", "scanlation_group", "volume", "published_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseDefaults:
    """The defaults that a source's config sets for all its releases, and its addresses."""

    url: str
    requested_url: str
    series_title: str | None
    language: str | None
    scanlation_group: str | None
    is_complete: bool

    @property
    def day_first(self) -> bool:
        """Return whether 02/10/2014 is in October, as in every language but English."""
        language = (self.language or "en").lower()
        return language.partition("-")[0] != "en"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFeed:
    """A list of chapters; a window on the newest unless its config says it is complete."""

    platform: str
    accept: str
    defaults: ReleaseDefaults
    reader: ItemReader

    def first_request(self) -> Request:
        """Return the request of the first page."""
        if not self.defaults.requested_url:
            raise BadConfig(f"a source of {self.platform} needs an address; without one it reads saved bodies only")
        return Request(url=self.defaults.requested_url, accept=self.accept)

    def next_request(
        self,
        body: bytes,
        *,
        previous: Request | None = None,  # noqa: ARG002  where it was answered says more
        url: str = "",
    ) -> Request | None:
        """Return the request of the page that this one links to; None if there is none.

        Raises:
            Permanent: `foreign_next`; a source is rate limited for its own host only.
        """
        url = url or self.defaults.requested_url
        address = self.reader.next_url(body, url=url)
        if address is None:
            return None
        # a list that was redirected may continue on the host it was redirected to
        if host_of(address) not in {host_of(url), host_of(self.defaults.requested_url)}:
            raise Permanent(
                f"the next page {without_credentials(address)} is on another host;"
                " add it as a source of its own, or fix next in the config",
                code="foreign_next",
            )
        return Request(url=address, accept=self.accept)

    def read(
        self,
        bodies: Sequence[bytes],
        *,
        content_types: Sequence[str | None],
        urls: Sequence[str] = (),
        now: datetime | None = None,
    ) -> ParsedFeed[Release]:
        """Return one release per item, in the order of the pages, without duplicates."""
        inputs = zip(bodies, content_types, self._urls(bodies, urls), strict=True)
        pages = [self.reader.read(body, url=url, content_type=type_) for body, type_, url in inputs]
        located = [(item, self._base_url(page)) for page in pages for item in page.reading.records]
        links = absolute_links((base, item["url"]) for item, base in located if "url" in item)
        items = [_with_address(item, links.get((base, item.get("url", "")))) for item, base in located]
        # sorted is stable: of two mentions of a chapter the one with a date is kept
        dated_last = sorted(items, key=lambda item: "published_at" in item)
        chosen = {_identity(item): item for item in dated_last}
        dates = DateReader(now=now, day_first=self.defaults.day_first)
        problems = [problem for page in pages for problem in page.reading.problems]
        is_whole = bool(pages) and not problems and pages[-1].next_url is None
        return ParsedFeed(
            records=[self._release(chosen[key], dates) for key in dict.fromkeys(map(_identity, items))],
            problems=[*problems, *_unread_dates(items, dates, now), *_dead_links(links)],
            is_complete=self.defaults.is_complete and is_whole,
            notes=list(dict.fromkeys(note for page in pages for note in page.reading.notes)),
        )

    def _urls(self, bodies: Sequence[bytes], urls: Sequence[str]) -> Sequence[str]:
        return urls or [self.defaults.requested_url] * len(bodies)

    def _base_url(self, page: ItemPage) -> str:
        """Return the base of relative links: the site, also where the list is elsewhere."""
        is_relocated = self.defaults.requested_url != self.defaults.url
        return self.defaults.url if is_relocated else page.base_url

    def _release(self, item: Item, dates: DateReader) -> Release:
        date = item.get("published_at")
        label, title = (without_references(item.get(name) or "") for name in ("label", "title"))
        number = chapter_number(item.get("number"))
        if number is None:
            number = chapter_number(label or title, self.defaults.series_title)
        return Release(
            number=number,
            title=title or label or None,
            url=item.get("url"),
            language=item.get("language") or self.defaults.language,
            scanlation_group=item.get("scanlation_group") or self.defaults.scanlation_group,
            source_chapter_id=item.get("source_chapter_id"),
            volume=item.get("volume") or volume_text(label or title, self.defaults.series_title),
            published_at=dates.read(date) if date else None,
        )


def read_defaults(url: str, reader: ConfigReader) -> ReleaseDefaults:
    """Read the keys that both platforms have; the list is at `api_base`, else at `url`."""
    return ReleaseDefaults(
        url=reader.checked_address("url", url) if url else "",
        requested_url=reader.address("api_base", default=url) or url,
        series_title=reader.text("series_title"),
        language=reader.text("language"),
        scanlation_group=reader.text("scanlation_group"),
        is_complete=reader.flag("complete", default=False),
    )


def naming_field(fields: Sequence[str], reader: ConfigReader) -> tuple[str, ...]:
    """Return the field that every chapter must have; reject the config if none is configured."""
    field_name = next((name for name in NAMING_FIELDS if name in fields), None)
    if field_name is None:
        reader.reject("fields", f"needed: at least one of {', '.join(NAMING_FIELDS)}")
    return (field_name,) if field_name else ()


def _identity(item: Item) -> tuple[str | None, ...]:
    """Return all fields but the date, which a first mention often lacks."""
    return tuple(item.get(name) for name in FIELDS if name != "published_at")


def _with_address(item: Item, address: str | None) -> Item:
    rest = {name: text for name, text in item.items() if name != "url"}
    return {**rest, "url": address} if address else rest


def _unread_dates(items: Sequence[Item], dates: DateReader, now: datetime | None) -> list[Problem]:
    """Return one problem for all dates that cannot be parsed; the list stays complete."""
    stated = [item["published_at"] for item in items if "published_at" in item]
    unread = [date for date in stated if dates.read(date) is None]
    if not unread:
        return []
    message = (
        f"{len(unread)} of {len(stated)} dates cannot be read or lie in the future, the first is {unread[0][:60]!r}"
    )
    if now is None:
        message += "; relative dates need the time of fetching, which is not known"
    return [Problem(where="published_at", message=message, hides_record=False)]


def _dead_links(links: Mapping[tuple[str, str], str | None]) -> list[Problem]:
    """Return one problem for all links that are no web address; the chapters still count."""
    dead = [link for (_, link), address in links.items() if address is None]
    if not dead:
        return []
    message = f"{len(dead)} of {len(links)} links are no web addresses, the first is {dead[0][:60]!r}"
    if any(not base for base, _ in links):
        message += "; relative ones need the address of the page"
    return [Problem(where="url", message=message, hides_record=False)]
