"""Platform `rss`: RSS and Atom feeds; numbers come from the titles of the entries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.html.links import absolute_link
from ingestion_pipeline.reading.structured.feeds import FeedEntry, read_feed
from ingestion_pipeline.reading.structured.items import ParsedFeed
from ingestion_pipeline.reading.text.decoding import without_references
from ingestion_pipeline.series.chapter import Release
from ingestion_pipeline.series.numbers import chapter_number, volume_text
from ingestion_pipeline.series.platforms.configured_lists import ReleaseDefaults, read_defaults
from ingestion_pipeline.series.platforms.protocol import SeriesPlatform
from ingestion_pipeline.sources.config_reader import ConfigReader

ACCEPT = "application/rss+xml, application/atom+xml, application/xml;q=0.9, */*;q=0.5"


@dataclass(frozen=True, slots=True, kw_only=True)
class RssFeed:
    """One feed; a window on the newest chapters unless its config says it is complete."""

    defaults: ReleaseDefaults

    def first_request(self) -> Request:
        """Return the request of the feed."""
        return self.defaults.first_request(ACCEPT)

    def next_request(
        self,
        body: bytes,  # noqa: ARG002  a feed has one page
        *,
        previous: Request | None = None,  # noqa: ARG002
        url: str = "",  # noqa: ARG002
    ) -> Request | None:
        """Return None: a feed has one page."""
        return None

    def read(
        self,
        bodies: Sequence[bytes],
        *,
        content_types: Sequence[str | None],
        urls: Sequence[str] = (),  # noqa: ARG002  links are relative to the source's own address
        now: datetime | None = None,  # noqa: ARG002  no date here is relative
    ) -> ParsedFeed[Release]:
        """Return one release per entry, in feed order."""
        pages = [read_feed(body, content_type=type_) for body, type_ in zip(bodies, content_types, strict=True)]
        problems = [problem for page in pages for problem in page.problems]
        return ParsedFeed(
            records=[self._release(entry) for page in pages for entry in page.records],
            problems=problems,
            is_complete=self.defaults.is_complete and bool(pages) and not problems,
        )

    def _release(self, entry: FeedEntry) -> Release:
        title, series_title = without_references(entry.title) if entry.title else None, self.defaults.series_title
        return Release(
            number=chapter_number(title, series_title),
            title=title,
            url=absolute_link(self.defaults.url, entry.url),
            language=self.defaults.language,
            scanlation_group=self.defaults.scanlation_group or entry.author,
            source_chapter_id=entry.id,
            volume=volume_text(title, series_title) if title else None,
            published_at=entry.published_at,
        )


def configure(url: str, config: Mapping[str, object]) -> RssFeed:
    """Build the feed at `api_base`, else at `url`; without either it only parses saved bodies."""
    reader = ConfigReader("rss", config)
    feed = RssFeed(defaults=read_defaults("rss", url, reader))
    reader.finish()
    return feed


PLATFORM = SeriesPlatform(name="rss", version=2, rate=None, honours_robots=True, configure=configure)
