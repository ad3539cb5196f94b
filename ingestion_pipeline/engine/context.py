"""What a run works with, built once and handed over."""

from __future__ import annotations

import gc
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from ingestion_pipeline.engine.polling.protocol import Systems
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.pages.politeness.hosts import Pace
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Kind, Source
from ingestion_pipeline.store import Store

if TYPE_CHECKING:
    from ingestion_pipeline.engine.crawling.protocol import CrawledSystem, DeferredSystem


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """Database, settings, content store and systems; `random` only spreads due times.

    `run_id` is the run of Dagster that all this is for; a command has none. `crawlers` are the
    systems whose sources are walked through page by page, `starters` those
    whose polls begin other work.
    """

    store: Store
    settings: Settings
    content: ContentStore
    systems: Systems
    crawlers: Mapping[Kind, CrawledSystem] = field(default_factory=dict["Kind", "CrawledSystem"])
    starters: Mapping[Kind, DeferredSystem] = field(default_factory=dict["Kind", "DeferredSystem"])
    random: Random = field(default_factory=Random)
    run_id: str | None = None

    @property
    def begun(self) -> Mapping[Kind, DeferredSystem]:
        """Every system whose polls only begin the work."""
        return {**self.crawlers, **self.starters}

    def pace(self, source: Source) -> Pace:
        """How fast a host may be asked for the source."""
        system = self.begun.get(source.kind) or self.systems[source.kind]
        return system.pace(source, self.settings)


# Lists and tuples made before they are looked through; a page makes some thousand and lets them go.
NEW_OBJECTS = 10_000


@contextmanager
def fewer_collections() -> Generator[None]:
    """What was there before is not looked through inside, what is new is more seldom.

    In a crawl that took half a millisecond a page; it takes less than a tenth.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(max(NEW_OBJECTS, before[0]) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
