"""What learned selectors find: all of it or nothing, since nobody looked at the page they read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import Connection, delete, literal, select, update

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType
from ingestion_pipeline.catalogs.extraction.record import (
    MAX_PAGE_RECORDS,
    ExtractionMethod,
    Record,
    RecordField,
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


MOST_IN_A_ROW = 3
MOST_FAILED_SHARE = 0.2
LEAST_FAILED = 3  # before a share says anything


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What selectors are learned for."""

    source_id: str
    entity_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Selectors as they are kept; `learned_at` tells them from those learned later."""

    schema_hash: str
    selectors: Mapping[str, str]
    learned_at: datetime

    def for_kind(self, kind: EntityType) -> Selectors | None:
        """The selectors; None if they were learned for what the type was before."""
        if self.schema_hash != schema_hash(kind):
            return None
        try:
            return selectors_of({"selectors": dict(self.selectors)}, kind)
        except BadSelectors:  # of a version that had other rules for them
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Uses:
    """What became of pages they were tried on, in order: True where they read the page."""

    subject: Subject
    learned: Learned
    outcomes: Sequence[bool]


def is_worn(*, confirmed: int, failed: int, in_row: int) -> bool:
    """Whether the layout has changed, or never was what it seemed."""
    is_often = failed >= LEAST_FAILED and failed > MOST_FAILED_SHARE * (confirmed + failed)
    return in_row >= MOST_IN_A_ROW or is_often


def keep_learned(
    connection: Connection,
    subject: Subject,
    kind: EntityType,
    selectors: Selectors,
    *,
    learned_from: int,
    now: datetime,
) -> Learned:
    """They are the subject's from now on, in the place of any before; nothing is counted yet."""
    made = Learned(schema_hash=schema_hash(kind), selectors=selectors.as_config(), learned_at=now)
    values = {
        "schema_hash": made.schema_hash,
        "selectors": dict(made.selectors),
        "learned_from": learned_from,
        "confirmed": 0,
        "failed": 0,
        "failed_in_row": 0,
        "created_at": now,
        "updated_at": now,
    }
    statement = insert_into(connection, learned_selectors).values(
        source_id=subject.source_id, entity_type=subject.entity_type, **values
    )
    keys = ["source_id", "entity_type"]
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=values))
    return made


def count(connection: Connection, uses: Uses, *, now: datetime) -> bool:
    """The uses are counted; whether the selectors are still kept."""
    right = sum(uses.outcomes)
    wrong = len(uses.outcomes) - right
    last = (
        len(uses.outcomes)
        - 1
        - max((at for at, is_right in enumerate(uses.outcomes) if is_right), default=-1)
    )
    table = learned_selectors
    in_row = literal(last) if right else table.c.failed_in_row + last
    mine = (
        (table.c.source_id == uses.subject.source_id)
        & (table.c.entity_type == uses.subject.entity_type)
        & (table.c.created_at == uses.learned.learned_at)
    )
    statement = (
        update(table)
        .where(mine)
        .values(
            confirmed=table.c.confirmed + right,
            failed=table.c.failed + wrong,
            failed_in_row=in_row,
            updated_at=now,
        )
    )
    row = connection.execute(
        statement.returning(table.c.confirmed, table.c.failed, table.c.failed_in_row)
    ).one_or_none()
    if row is not None and is_worn(
        confirmed=row.confirmed, failed=row.failed, in_row=row.failed_in_row
    ):
        connection.execute(delete(table).where(mine))
        return False
    return row is not None


def learned_facts(connection: Connection, source_id: str) -> dict[str, object]:
    """What was learned of the source's pages, for people to read; nothing if nothing was."""
    table = learned_selectors
    query = select(table).where(table.c.source_id == source_id).order_by(table.c.entity_type)
    said = [
        f"{row.entity_type}: {len(row.selectors)} selectors from {row.learned_from} pages,"
        f" {row.confirmed} pages read by them, {row.failed} not"
        for row in connection.execute(query)
    ]
    return {"learned_selectors": "; ".join(said)} if said else {}
