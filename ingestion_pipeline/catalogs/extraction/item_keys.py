"""By what a record is known again, and by what a reading is: two keys that others store."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType
from ingestion_pipeline.catalogs.extraction.page_result import READER_VERSION
from ingestion_pipeline.catalogs.extraction.prompts import prompt_labels
from ingestion_pipeline.catalogs.extraction.record import Record
from ingestion_pipeline.catalogs.extraction.selectors import Selectors
from ingestion_pipeline.settings import Settings

MAX_KEY_CHARACTERS = 200  # an index of PostgreSQL holds 2,700 bytes


def item_key(kind: EntityType, record: Record) -> str:
    """The record's natural key, for people to read: equal for the same thing, however spaced."""
    values = [str(record.fields.get(name) or "") for name in kind.key_fields]
    said = " | ".join(dict.fromkeys(_normal(value) for value in values if value.strip()))
    if len(said) <= MAX_KEY_CHARACTERS:
        return said
    digest = hashlib.sha256(said.encode()).hexdigest()[:16]
    return f"{said[: MAX_KEY_CHARACTERS - 17]}~{digest}"


def item_keys(kind: EntityType, records: Sequence[Record]) -> list[str]:
    """The keys of a page's records, in order; of equal ones, the second is #2 and so on."""
    seen: Counter[str] = Counter()
    keys: list[str] = []
    for record in records:
        key = item_key(kind, record)
        seen[key] += 1
        keys.append(key if seen[key] == 1 else f"{key}#{seen[key]}")
    return keys


def read_as(kind: EntityType, settings: Settings, *, selectors: Selectors | None = None) -> str:
    """What a page was read as: a page read as the same need not be read again.

    The models count only where one may be asked: without a key, their names change nothing.
    """
    parts = [kind.model_dump_json(), f"reader {READER_VERSION}", repr(selectors)]
    if settings.has_model:
        parts += [settings.model_cheap, settings.model_strong, *prompt_labels(kind)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _normal(value: str) -> str:
    return " ".join(value.casefold().split())
