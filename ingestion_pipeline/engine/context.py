"""The context of a run: everything its loops need, built once."""

from collections.abc import Mapping
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
