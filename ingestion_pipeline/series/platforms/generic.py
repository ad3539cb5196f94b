"""What the platforms `json` and `html` share: items of a generic reader become releases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.html.links import absolute_links
from ingestion_pipeline.reading.structured.items import Item, ItemPage, ItemReader, Problem, Reading
from ingestion_pipeline.reading.text.dates import DateReader
from ingestion_pipeline.reading.text.decoding import without_references
from ingestion_pipeline.series.chapter import Release
from ingestion_pipeline.series.numbers import chapter_number, volume_text
from ingestion_pipeline.sources.config_reader import BadConfig, ConfigReader
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline.urls import host_of, without_credentials

# The first of these that is configured is what an item must have to be a chapter.
NAMING_FIELDS = ("url", "source_chapter_id", "number", "label", "title")
FIELDS = (*NAMING_FIELDS, "language", "scanlation_group", "volume", "published_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseDefaults:
    """What a source's config says of all its releases, and of where they are listed."""

    url: str
    requested_url: str
    series_title: str | None
    language: str | None
    scanlation_group: str | None
    is_complete: bool

    @property
    def day_first(self) -> bool:
        """Whether 02/10/2014 is in October, as it is wherever people do not write English."""
        language = (self.language or "en").lower()
        return language.partition("-")[0] != "en"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFeed:
    """A list of chapters; a window on the newest unless its config says it holds them all."""

    platform: str
    accept: str
    defaults: ReleaseDefaults
    reader: ItemReader

    def first_request(self) -> Request:
        """The first page of the list."""
        if not self.defaults.requested_url:
            raise BadConfig(
                f"a source of {self.platform} needs an address; without one it reads saved bodies"
                " only"
            )
        return Request(url=self.defaults.requested_url, accept=self.accept)

    def next_request(
        self,
        body: bytes,
        *,
        asked: Request | None = None,  # noqa: ARG002  where it was answered says more
        url: str = "",
    ) -> Request | None:
        """The page that this one links to; None if it links to none.

        Raises:
            Permanent: `foreign_next`; a source's pace is kept for its own host alone.
        """
        url = url or self.defaults.requested_url
        address = self.reader.next_url(body, url=url)
        if address is None:
            return None
        # a list that was redirected goes on where it was redirected to
        if host_of(address) not in {host_of(url), host_of(self.defaults.requested_url)}:
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
        urls: Sequence[str] = (),
        now: datetime | None = None,
    ) -> Reading[Release]:
        """One release per item, in the order of the pages; a repeated one counts once."""
        asked = zip(bodies, content_types, self._urls(bodies, urls), strict=True)
        pages = [self.reader.read(body, url=url, content_type=type_) for body, type_, url in asked]
        located = [(item, self._base_url(page)) for page in pages for item in page.reading.records]
        links = absolute_links((base, item["url"]) for item, base in located if "url" in item)
        items = [
            _with_address(item, links.get((base, item.get("url", "")))) for item, base in located
        ]
        # sorted is stable: of two mentions of a chapter the one with a date is kept
        dated_last = sorted(items, key=lambda item: "published_at" in item)
        chosen = {_identity(item): item for item in dated_last}
        dates = DateReader(now=now, day_first=self.defaults.day_first)
        problems = [problem for page in pages for problem in page.reading.problems]
        is_whole = bool(pages) and not problems and pages[-1].next_url is None
        return Reading(
            records=[
                self._release(chosen[key], dates) for key in dict.fromkeys(map(_identity, items))
            ],
            problems=[*problems, *_unread_dates(items, dates, now), *_dead_links(links)],
            is_complete=self.defaults.is_complete and is_whole,
            notes=list(dict.fromkeys(note for page in pages for note in page.reading.notes)),
        )

    def _urls(self, bodies: Sequence[bytes], urls: Sequence[str]) -> Sequence[str]:
        return urls or [self.defaults.requested_url] * len(bodies)

    def _base_url(self, page: ItemPage) -> str:
        """What links are relative to; those of a list elsewhere belong to the site all the same."""
        is_elsewhere = self.defaults.requested_url != self.defaults.url
        return self.defaults.url if is_elsewhere else page.base_url

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
    """The keys that both platforms have; the list is at `url`, or at `api_base` if that is set."""
    return ReleaseDefaults(
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


def _with_address(item: Item, address: str | None) -> Item:
    rest = {name: text for name, text in item.items() if name != "url"}
    return {**rest, "url": address} if address else rest


def _unread_dates(items: Sequence[Item], dates: DateReader, now: datetime | None) -> list[Problem]:
    """One problem for all dates that say nothing to us; it does not make a list incomplete."""
    given = [item["published_at"] for item in items if "published_at" in item]
    unread = [date for date in given if dates.read(date) is None]
    if not unread:
        return []
    message = (
        f"{len(unread)} of {len(given)} dates cannot be read or lie in the future, the first is"
        f" {unread[0][:60]!r}"
    )
    if now is None:
        message += "; relative dates need the time of fetching, which is not known"
    return [Problem(where="published_at", message=message, hides_record=False)]


def _dead_links(links: Mapping[tuple[str, str], str | None]) -> list[Problem]:
    """One problem for all links that are no web address; the chapters count without them."""
    dead = [link for (_, link), address in links.items() if address is None]
    if not dead:
        return []
    message = (
        f"{len(dead)} of {len(links)} links are no web addresses, the first is {dead[0][:60]!r}"
    )
    if any(not base for base, _ in links):
        message += "; relative ones need the address of the page"
    return [Problem(where="url", message=message, hides_record=False)]
