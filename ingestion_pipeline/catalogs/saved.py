"""What is made of a saved catalogue page or answer: no network, no database, no model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingestion_pipeline.catalogs.entities.entity_type import entity_type
from ingestion_pipeline.catalogs.entities.ladder import COURSE, read_records
from ingestion_pipeline.catalogs.entities.record import Record
from ingestion_pipeline.reading.decode import decode
from ingestion_pipeline.reading.saved import SavedBody, Shown
from ingestion_pipeline.sources.source import Kind
from ingestion_pipeline.urls import checked_url

PLATFORMS = ("catalog", "jsonld")


class NoConfig(ValueError):
    """A config was given to a reader that has none."""


def read_saved(
    platform: str,
    kind: Kind,  # noqa: ARG001 - every system takes it: one may read several kinds
    saved: SavedBody,
    config: Mapping[str, Any],
    *,
    entity: str | None = None,
) -> Shown:
    """The records that rules find, and what is wrong; a bad entity or config raises ValueError."""
    if config:
        raise NoConfig(f"{platform} takes no config; remove {', '.join(sorted(config))}")
    if saved.url:
        checked_url(saved.url)
    wanted = entity_type(entity or COURSE)
    only_embedded = platform == "jsonld"
    return Shown.of(
        lambda: read_records(wanted, decode(saved.body), only_embedded=only_embedded),
        Record.as_dict,
    )
