"""Compute the stored keys of records and of the reader configuration."""

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

MAX_KEY_CHARACTERS = 200  # a PostgreSQL index entry holds 2,700 bytes


def item_key(kind: EntityType, record: Record) -> str:
    """Return the record's readable natural key: equal for the same entity, whatever its spacing."""
    values = [str(record.fields.get(name) or "") for name in kind.key_fields]
    key = " | ".join(dict.fromkeys(_normal(value) for value in values if value.strip()))
    if len(key) <= MAX_KEY_CHARACTERS:
        return key
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return f"{key[: MAX_KEY_CHARACTERS - 17]}~{digest}"


def item_keys(kind: EntityType, records: Sequence[Record]) -> list[str]:
    """Return the keys of a page's records, in order; duplicates get the suffix #2, #3 and so on."""
    seen: Counter[str] = Counter()
    keys: list[str] = []
    for record in records:
        key = item_key(kind, record)
        seen[key] += 1
        keys.append(key if seen[key] == 1 else f"{key}#{seen[key]}")
    return keys


def reader_hash(kind: EntityType, settings: Settings, *, selectors: Selectors | None = None) -> str:
    """Return the hash of all that determines a page's records: an equal hash needs no new reading.

    Model names count only where a model is configured: without a key they change nothing.
    """
    parts = [kind.model_dump_json(), f"reader {READER_VERSION}", repr(selectors)]
    if settings.has_model:
        parts += [settings.model_cheap, settings.model_strong, *prompt_labels(kind)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _normal(value: str) -> str:
    return " ".join(value.casefold().split())
