"""Records as they are kept: each with its natural key, its evidence, and whether it may leave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ingestion_pipeline.catalogs.entities.entity_type import EntityType
from ingestion_pipeline.catalogs.entities.item_keys import item_keys
from ingestion_pipeline.catalogs.entities.page_reading import PageReading
from ingestion_pipeline.catalogs.entities.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A record of one page, in plain values; `is_flagged` if a required field is not proved."""

    key: str
    position: int
    data: Mapping[str, Any]
    grounding: Mapping[str, Any]
    rung: str
    model: str | None
    confidence: float
    is_flagged: bool


def items_of(kind: EntityType, reading: PageReading) -> list[Item]:
    """The page's records that have all they must have, in page order, each under its own key."""
    whole = [record for record in reading.records if not record.lacks]
    keys = item_keys(kind, whole)
    return [
        _item(record, key=key, position=position)
        for position, (key, record) in enumerate(zip(keys, whole, strict=True), start=1)
    ]


def _item(record: Record, *, key: str, position: int) -> Item:
    said = record.as_dict()
    return Item(
        key=key,
        position=position,
        data={name: said[name] for name in record.fields},
        grounding=said["evidence"],
        rung=record.rung.value,
        model=record.model,
        confidence=record.confidence,
        is_flagged=record.is_flagged,
    )
