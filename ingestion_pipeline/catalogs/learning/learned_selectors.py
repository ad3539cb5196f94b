"""Store learned selectors, count how well they work, and extract records by them.

Their result is all or nothing, since nobody has checked the page that they read.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import TYPE_CHECKING

from sqlalchemy import Connection, delete, literal, select, update

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType
from ingestion_pipeline.catalogs.extraction.record import (
    MAX_PAGE_RECORDS,
    CandidateRecord,
    ExtractionMethod,
    Record,
    record_of,
)
from ingestion_pipeline.catalogs.extraction.selectors import (
    BadSelectors,
    Selectors,
    records_by_selectors,
    selectors_of,
    texts_at,
)
from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import learned_selectors

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode


def schema_hash(kind: EntityType) -> str:
    """Return the hash of the entity type that selectors were learned for."""
    return hashlib.sha256(kind.model_dump_json().encode()).hexdigest()


def records_by_learned(kind: EntityType, selectors: Selectors, tree: "LexborHTMLParser") -> list[CandidateRecord]:
    """Return the records in page order; none if one lacks a required field or is ambiguous.

    Two names in the place of one record mean that the page has another layout.
    """
    candidates = records_by_selectors(kind, selectors, tree)
    if any(record.missing_fields for record in unproved_records(kind, candidates)):
        return []
    return candidates if _have_single_keys(kind, selectors, tree) else []


def unproved_records(kind: EntityType, candidates: list[CandidateRecord]) -> list[Record]:
    """Return the records of the candidates, after applying the rules of the type, without proof."""
    return [record_of(kind, candidate, method=ExtractionMethod.SELECTORS) for candidate in candidates]


def has_single_text(block: "LexborNode", css: str) -> bool:
    """Return whether the element around a record has one distinct text at that selector."""
    return len(set(texts_at(block, css))) <= 1


def _have_single_keys(kind: EntityType, selectors: Selectors, tree: "LexborHTMLParser") -> bool:
    if tree.body is None:
        return True
    blocks = tree.css(selectors.record)[: MAX_PAGE_RECORDS + 1] if selectors.record else [tree.body]
    keys = [css for name, css in selectors.fields if name in kind.key_fields]
    return all(has_single_text(block, css) for block in blocks for css in keys)


MAX_FAILED_IN_A_ROW = 3
MAX_FAILED_SHARE = 0.2
MIN_FAILED = 3  # before a share is meaningful


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorScope:
    """The source and entity type that selectors are learned for."""

    source_id: str
    entity_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedSelectors:
    """Stored selectors; `learned_at` distinguishes them from those learned later."""

    schema_hash: str
    selectors: Mapping[str, str]
    learned_at: datetime

    def for_kind(self, kind: EntityType) -> Selectors | None:
        """Return the selectors; None if they were learned for an earlier version of the type."""
        if self.schema_hash != schema_hash(kind):
            return None
        try:
            return selectors_of({"selectors": dict(self.selectors)}, kind)
        except BadSelectors:  # stored by a version with other rules
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorUses:
    """Outcomes of the selectors on pages, in order: True where they read the page."""

    scope: SelectorScope
    learned: LearnedSelectors
    outcomes: Sequence[bool]


def is_outdated(*, confirmed: int, failed: int, in_row: int) -> bool:
    """Return whether the selectors fail so often that the layout must have changed."""
    is_often = failed >= MIN_FAILED and failed > MAX_FAILED_SHARE * (confirmed + failed)
    return in_row >= MAX_FAILED_IN_A_ROW or is_often


def save_learned(
    connection: Connection,
    scope: SelectorScope,
    kind: EntityType,
    selectors: Selectors,
    *,
    learned_from: int,
    now: datetime,
) -> LearnedSelectors:
    """Store the selectors in the place of any before, with all counts at zero."""
    learned = LearnedSelectors(schema_hash=schema_hash(kind), selectors=selectors.as_config(), learned_at=now)
    values = {
        "schema_hash": learned.schema_hash,
        "selectors": dict(learned.selectors),
        "learned_from": learned_from,
        "confirmed": 0,
        "failed": 0,
        "failed_in_row": 0,
        "created_at": now,
        "updated_at": now,
    }
    statement = insert_into(connection, learned_selectors).values(
        source_id=scope.source_id, entity_type=scope.entity_type, **values
    )
    keys = ["source_id", "entity_type"]
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=values))
    return learned


def record_uses(connection: Connection, uses: SelectorUses, *, now: datetime) -> bool:
    """Count the uses, and return whether the selectors are still stored."""
    right = sum(uses.outcomes)
    wrong = len(uses.outcomes) - right
    trailing_failures = sum(1 for _ in takewhile(lambda is_right: not is_right, reversed(uses.outcomes)))
    table = learned_selectors
    in_row = literal(trailing_failures) if right else table.c.failed_in_row + trailing_failures
    is_current = (
        (table.c.source_id == uses.scope.source_id)
        & (table.c.entity_type == uses.scope.entity_type)
        & (table.c.created_at == uses.learned.learned_at)
    )
    counts = {"confirmed": table.c.confirmed + right, "failed": table.c.failed + wrong, "failed_in_row": in_row}
    statement = update(table).where(is_current).values(**counts, updated_at=now)
    row = connection.execute(statement.returning(*(table.c[name] for name in counts))).one_or_none()
    if row is not None and is_outdated(confirmed=row.confirmed, failed=row.failed, in_row=row.failed_in_row):
        connection.execute(delete(table).where(is_current))
        return False
    return row is not None


def learned_facts(connection: Connection, source_id: str) -> dict[str, object]:
    """Return a text about the selectors learned for the source; empty if there are none."""
    table = learned_selectors
    query = select(table).where(table.c.source_id == source_id).order_by(table.c.entity_type)
    lines = [
        f"{row.entity_type}: {len(row.selectors)} selectors from {row.learned_from} pages,"
        f" {row.confirmed} pages read by them, {row.failed} not"
        for row in connection.execute(query)
    ]
    return {"learned_selectors": "; ".join(lines)} if lines else {}
