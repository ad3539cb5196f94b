"""The context of a run: everything its loops need, built once."""

from __future__ import annotations

import gc
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

from ingestion_pipeline.engine.polling.protocol import DeferredSystem, PolledSystem
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.pages.politeness.hosts import Pace
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Kind, Source
from ingestion_pipeline.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """Everything a run needs: database, settings, content store and systems.

    `random` only spreads due times. `run_id` is the Dagster run; a command has none. The polls of
    `deferred_systems` only start work that other runs do.
    """

    store: Store
    settings: Settings
    content: ContentStore
    systems: Mapping[Kind, PolledSystem]
    deferred_systems: Mapping[Kind, DeferredSystem] = field(default_factory=dict[Kind, DeferredSystem])
    random: Random = field(default_factory=Random)
    run_id: str | None = None

    def pace(self, source: Source) -> Pace:
        """Return how fast a host may be requested for the source."""
        system = self.deferred_systems.get(source.kind) or self.systems[source.kind]
        return system.pace(source, self.settings)


# Allocations between two collections; a page allocates some thousand objects and drops them.
NEW_OBJECTS = 10_000


@contextmanager
def reduced_gc() -> Generator[None]:
    """Exempt existing objects from garbage collection inside, and collect new ones less often.

    In a crawl collection took half a millisecond a page; this way it takes less than a tenth.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(max(NEW_OBJECTS, before[0]) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
