"""What learned selectors find: all of it or nothing, since nobody looked at the page they read."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from ingestion_pipeline.catalogs.entities.entity_type import EntityType
from ingestion_pipeline.catalogs.entities.record import (
    MAX_PAGE_RECORDS,
    ExtractionMethod,
    Record,
    RecordField,
    record_of,
)
from ingestion_pipeline.catalogs.entities.selectors import (
    Selectors,
    records_by_selectors,
    texts_at,
)

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode


def schema_hash(kind: EntityType) -> str:
    """By what the type is known that selectors were learned for."""
    return hashlib.sha256(kind.model_dump_json().encode()).hexdigest()


def found_by_learned(
    kind: EntityType, selectors: Selectors, tree: LexborHTMLParser
) -> list[RecordField]:
    """The records, in page order; none of them if one lacks a required field or is not alone.

    Two names where one record should be mean that the page is laid out in another way.
    """
    found = records_by_selectors(kind, selectors, tree)
    if any(record.lacks for record in without_proof(kind, found)):
        return []
    return found if _are_alone(kind, selectors, tree) else []


def without_proof(kind: EntityType, found: list[RecordField]) -> list[Record]:
    """The records that the rules of the type make of what was found, unproved."""
    return [record_of(kind, one, rung=ExtractionMethod.SELECTORS) for one in found]


def is_alone(block: LexborNode, css: str) -> bool:
    """Whether the element around a record says one thing in that place, however often."""
    return len(set(texts_at(block, css))) <= 1


def _are_alone(kind: EntityType, selectors: Selectors, tree: LexborHTMLParser) -> bool:
    if tree.body is None:
        return True
    blocks = tree.css(selectors.record)[: MAX_PAGE_RECORDS + 1] if selectors.record else [tree.body]
    keys = [css for name, css in selectors.fields if name in kind.key_fields]
    return all(is_alone(block, css) for block in blocks for css in keys)
