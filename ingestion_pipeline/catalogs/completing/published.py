"""What was published of a catalogue before."""

from __future__ import annotations

from sqlalchemy import ScalarSelect, select

from ingestion_pipeline.catalogs.states import DatasetStatus
from ingestion_pipeline.store.tables import datasets


def published_dataset(source_id: str, entity: str) -> ScalarSelect[int]:
    """The newest dataset of the source that is published: unchanged pages are taken from it."""
    query = select(datasets.c.id).where(
        datasets.c.source_id == source_id,
        datasets.c.entity_type == entity,
        datasets.c.status == DatasetStatus.PUBLISHED.value,
    )
    return query.order_by(datasets.c.version.desc()).limit(1).scalar_subquery()
