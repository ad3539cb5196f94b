"""Websites as polling sees them: a poll begins an analysis, other runs do it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection

from ingestion_pipeline.pages.hosts import Pace
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source
from ingestion_pipeline.websites.engine.beginning import begin
from ingestion_pipeline.websites.given import given_of
from ingestion_pipeline.work.errors import Resource


class WebsiteSystem:
    """What websites bring to polling."""

    def pace(self, source: Source, settings: Settings) -> Pace:  # noqa: ARG002 - the protocol
        """Our own floor; robots.txt may ask for more."""
        return Pace(delay_seconds=settings.hosts.delay_seconds)

    def check(self, source: Source) -> None:
        """Raise ValueError if what an operator says of the website cannot be understood."""
        _, bad = given_of(source.config)
        if bad:
            raise ValueError("; ".join(f"{one.field}: {one.message}" for one in bad))

    def start(
        self,
        connection: Connection,
        sources: Sequence[Source],
        *,
        now: datetime,
        settings: Settings,
    ) -> Mapping[str, str | Resource]:
        """Each source has an analysis under way, as far as there is room."""
        return begin(connection, sources, now=now, settings=settings)
