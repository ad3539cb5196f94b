"""Extract records from a saved catalogue page or API response: no network, database or model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingestion_pipeline.catalogs.extraction.entity_type import COURSE, EntityType, entity_type
from ingestion_pipeline.catalogs.extraction.record import Record
from ingestion_pipeline.catalogs.extraction.rule_pipeline import read_records
from ingestion_pipeline.catalogs.extraction.selectors import Selectors, selectors_of
from ingestion_pipeline.reading.structured.items import ParsedFeed, SavedBody, SavedBodyResult
from ingestion_pipeline.reading.text.decoding import decode
from ingestion_pipeline.sources.source import Kind
from ingestion_pipeline.urls import checked_url

PLATFORMS = ("catalog", "jsonld")


class NoCatalogConfig(ValueError):
    """A configuration key that reading a saved body does not accept."""


def read_saved(
    platform: str,
    kind: Kind,  # noqa: ARG001 - every system takes it: one may read several kinds
    saved: SavedBody,
    config: Mapping[str, Any],
    *,
    entity: str | None = None,
    entities: Path | None = None,
) -> SavedBodyResult:
    """Return the records that the rules find in a saved body, and the problems.

    `entities` is a folder with the user's own schema files. A bad entity or config raises
    ValueError.
    """
    if unknown := sorted(config.keys() - {"selectors"}):
        raise NoCatalogConfig(f"{platform} takes no config but selectors; remove {', '.join(unknown)}")
    if saved.url:
        checked_url(saved.url)
    record_type = entity_type(entity or COURSE, folder=entities)
    request = _ReadRequest(
        kind=record_type, url=saved.url, selectors=selectors_of(config, record_type), only_embedded=platform == "jsonld"
    )
    return SavedBodyResult.of(lambda: _read(request, decode(saved.body)), Record.as_dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadRequest:
    kind: EntityType
    url: str | None
    selectors: Selectors | None
    only_embedded: bool


def _read(request: _ReadRequest, body: str) -> ParsedFeed[Record]:
    return read_records(
        request.kind, body, only_embedded=request.only_embedded, url=request.url, selectors=request.selectors
    )
