"""Pages that say what they said before: their records come from the published dataset."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, String, and_, literal, or_, select, update

from ingestion_pipeline.catalogs.entities.declared import EntityConfig, declared
from ingestion_pipeline.catalogs.entities.record import MODEL_RUNGS
from ingestion_pipeline.catalogs.readings.restricting import content_selectors
from ingestion_pipeline.catalogs.states import ExtractionKind, PageStatus
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store.rows import row_source
from ingestion_pipeline.store.tables import datasets, extractions, pages
from ingestion_pipeline.store.types import Id, UtcDateTime

_READ = [PageStatus.SUCCESS.value, PageStatus.EXTRACTED_NO_DATA.value]
_TAKEN = ("status", "item_count", "rung", "read_as", "failure", "run_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveExtraction:
    """An extraction that is locked, and goes on."""

    id: int
    source_id: str
    kind: ExtractionKind
    entity_type: str
    base_dataset_id: int | None
    config: Mapping[str, Any]
    recipe: Mapping[str, Any]

    def read_as(self, wanted: EntityConfig, settings: Settings) -> str:
        """By what its readings are known: what is wanted, and what counts of a page."""
        name = wanted.read_as(settings)
        parts = "\0".join(content_selectors(self.recipe)).strip("\0")
        return sha256(f"{name}\0{parts}".encode()).hexdigest() if parts else name


def carry_over(
    connection: Connection,
    downloaded: Collection[int],
    going_on: Mapping[int, ActiveExtraction],
    *,
    now: datetime,
    settings: Settings,
) -> set[int]:
    """Of these pages those that need not be read: by content, key and reader they are known.

    Without a model, what one has read stays as well, unless the source was configured anew: nobody
    could read it again. One statement, and none for an extraction without a published dataset.
    """
    rows = [
        (one.id, one.base_dataset_id, name)
        for one in going_on.values()
        if one.base_dataset_id is not None and (name := _name(one, settings))
    ]
    if not rows or not downloaded:
        return set()
    columns = {"extraction_id": Id, "dataset_id": Id, "name": String(64)}
    given = row_source(connection, columns, rows, "given")
    new, old = pages.alias("new"), pages.alias("old")
    after, before = extractions.alias("after"), extractions.alias("before")
    is_known = old.c.read_as == given.c.name
    if not settings.has_model:
        is_same_config = after.c.config_version.is_not_distinct_from(before.c.config_version)
        is_known = or_(is_known, and_(old.c.rung.in_(MODEL_RUNGS), is_same_config))
    found = (
        select(new.c.id.label("page_id"), old.c.id.label("carried_from"))
        .add_columns(*(old.c[name].label(f"old_{name}") for name in _TAKEN))
        .join_from(given, datasets, datasets.c.id == given.c.dataset_id)
        .join(before, before.c.id == datasets.c.extraction_id)
        .join(after, after.c.id == given.c.extraction_id)
        .join(new, new.c.extraction_id == given.c.extraction_id)
        .join(old, and_(old.c.extraction_id == datasets.c.extraction_id, old.c.key == new.c.key))
        .where(
            new.c.id.in_(list(downloaded)),
            new.c.status == PageStatus.DOWNLOADED.value,
            old.c.snapshot_id == new.c.snapshot_id,
            is_known,
            old.c.status.in_(_READ),
        )
        .cte("found")
    )
    statement = (
        update(pages)
        .where(pages.c.id == found.c.page_id)
        .values(
            {name: found.c[f"old_{name}"] for name in _TAKEN}
            | {"carried_from": found.c.carried_from, "read_at": literal(now, UtcDateTime())}
        )
        .returning(pages.c.id)
    )
    return set(connection.execute(statement).scalars())


def _name(one: ActiveExtraction, settings: Settings) -> str | None:
    try:
        return one.read_as(declared(one.config, settings, entity=one.entity_type), settings)
    except ValueError:  # whoever reads the page says so
        return None
