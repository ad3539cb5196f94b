"""What a run works with, built once and handed over."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from ingestion_pipeline.pages.content import ContentStore
from ingestion_pipeline.pages.system import Systems
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """Database, settings, content store and systems; `random` only spreads due times."""

    store: Store
    settings: Settings
    content: ContentStore
    systems: Systems
    random: Random = field(default_factory=Random)
