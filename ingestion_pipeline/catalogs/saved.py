"""Extract records from a saved catalogue page or API response: no network, database or model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ingestion_pipeline.catalogs.extraction.entity_type import entity_type
from ingestion_pipeline.catalogs.extraction.record import Record
from ingestion_pipeline.catalogs.extraction.rule_pipeline import COURSE, read_records
from ingestion_pipeline.catalogs.extraction.selectors import selectors_of
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
    selectors, only_embedded = selectors_of(config, record_type), platform == "jsonld"

    def read() -> ParsedFeed[Record]:
        body = decode(saved.body)
        return read_records(record_type, body, only_embedded=only_embedded, url=saved.url, selectors=selectors)

    return SavedBodyResult.of(read, Record.as_dict)
