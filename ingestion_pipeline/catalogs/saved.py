"""What is made of a saved catalogue page or answer: no network, no database, no model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType, entity_type
from ingestion_pipeline.catalogs.extraction.record import Record
from ingestion_pipeline.catalogs.extraction.rule_pipeline import COURSE, read_records
from ingestion_pipeline.catalogs.extraction.selectors import Selectors, selectors_of
from ingestion_pipeline.reading.structured.items import Reading, SavedBody, SavedReading
from ingestion_pipeline.reading.text.decoding import decode
from ingestion_pipeline.sources.source import Kind
from ingestion_pipeline.urls import checked_url

PLATFORMS = ("catalog", "jsonld")


class NoCatalogConfig(ValueError):
    """A config was given to a reader that has none."""


def read_saved(
    platform: str,
    kind: Kind,  # noqa: ARG001 - every system takes it: one may read several kinds
    saved: SavedBody,
    config: Mapping[str, Any],
    *,
    entity: str | None = None,
    entities: Path | None = None,
) -> SavedReading:
    """The records that rules find, and what is wrong; a bad entity or config raises ValueError.

    `entities` is the folder of schema files of one's own.
    """
    if unknown := sorted(config.keys() - {"selectors"}):
        raise NoCatalogConfig(
            f"{platform} takes no config but selectors; remove {', '.join(unknown)}"
        )
    if saved.url:
        checked_url(saved.url)
    wanted = entity_type(entity or COURSE, folder=entities)
    asked = _Asked(
        kind=wanted,
        url=saved.url,
        selectors=selectors_of(config, wanted),
        only_embedded=platform == "jsonld",
    )
    return SavedReading.of(lambda: _read(asked, decode(saved.body)), Record.as_dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    kind: EntityType
    url: str | None
    selectors: Selectors | None
    only_embedded: bool


def _read(asked: _Asked, body: str) -> Reading[Record]:
    return read_records(
        asked.kind,
        body,
        only_embedded=asked.only_embedded,
        url=asked.url,
        selectors=asked.selectors,
    )
