"""RSS and Atom feeds of jobs: one listing per entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from ingestion_pipeline.companies.platforms.linked_pages import FIELDS, ListedBoard, ListedPage, read_defaults
from ingestion_pipeline.companies.platforms.paging import RequestBuilder, read_secret
from ingestion_pipeline.companies.platforms.protocol import JobPlatform
from ingestion_pipeline.reading.structured.feeds import FeedEntry, read_feed
from ingestion_pipeline.reading.structured.items import Item, Problem
from ingestion_pipeline.sources.config_reader import ConfigReader
from ingestion_pipeline.tasks.errors import Permanent

ACCEPT = "application/rss+xml, application/atom+xml, application/xml;q=0.9, */*;q=0.5"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedReader:
    """Reader of a feed; an entry without a title is a problem.

    `fields` name elements of an entry that replace or complete the standard ones.
    """

    fields: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])

    def read(self, body: bytes, *, url: str, content_type: str | None) -> ListedPage:
        """Return every entry that has a title.

        Raises:
            Permanent: it is no feed (see `read_feed`), or `no_fields`; no entry has a title.
            Transient: `truncated_feed`.
        """
        elements = [name for names in self.fields.values() for name in names]
        reading = read_feed(body, content_type=content_type, elements=elements)
        named = [entry for entry in reading.records if entry.title]
        if reading.records and not named:
            raise Permanent("no entry of the feed has a title", code="no_fields")
        untitled = [
            Problem(where=f"entry {n}", message="it has no title; the rest counts")
            for n, entry in enumerate(reading.records)
            if not entry.title
        ]
        return ListedPage(
            items=[self._item(entry) for entry in named], base_url=url, problems=[*reading.problems, *untitled]
        )

    def _item(self, entry: FeedEntry) -> Item:
        own = {
            name: text
            for name, elements in self.fields.items()
            if (text := next(filter(None, map(entry.elements.get, elements)), None))
        }
        return {**_item(entry), **own}

    def next_url(self, body: bytes, *, url: str) -> str | None:  # noqa: ARG002  a feed has one page
        """Return None: a feed has one page."""
        return None


def _item(entry: FeedEntry) -> Item:
    stated = {
        "title": entry.title,
        "url": entry.url,
        "external_id": entry.id,
        "posted_at": _iso(entry.published_at),
        "description": entry.summary,
        "department": next(iter(entry.categories), None),
    }
    return {name: text for name, text in stated.items() if text}


def _iso(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def configure(url: str, config: Mapping[str, object]) -> ListedBoard:
    """Configure the feed at `url` or `api_base`; without either it only parses bodies."""
    reader = ConfigReader("rss", config)
    defaults = read_defaults(url, reader, is_window=True)
    fields = reader.text_lists("fields", allowed=FIELDS)
    requests = RequestBuilder(accept=ACCEPT, secret=read_secret(reader))
    reader.finish()
    return ListedBoard(platform="rss", requests=requests, defaults=defaults, reader=FeedReader(fields=fields))


PLATFORM = JobPlatform(name="rss", version=2, honours_robots=True, configure=configure)
