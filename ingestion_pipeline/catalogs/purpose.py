"""What a catalogue is read for, and what was published of it before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ScalarSelect, select

from ingestion_pipeline.catalogs.entities.entity_type import EntityType, entity_type
from ingestion_pipeline.catalogs.states import DatasetStatus
from ingestion_pipeline.store.tables import datasets

DEFAULT_ENTITY = "course"


def entity_of(config: Mapping[str, Any]) -> EntityType:
    """The type that `config.entity` names; courses if it is left out.

    Raises:
        UnknownEntityType: there is no such type; the message names those there are.
    """
    return entity_type(str(config.get("entity", DEFAULT_ENTITY)))


def published_dataset(source_id: str, entity: str) -> ScalarSelect[int]:
    """The newest dataset of the source that is published: unchanged pages are taken from it."""
    query = select(datasets.c.id).where(
        datasets.c.source_id == source_id,
        datasets.c.entity_type == entity,
        datasets.c.status == DatasetStatus.PUBLISHED.value,
    )
    return query.order_by(datasets.c.version.desc()).limit(1).scalar_subquery()
