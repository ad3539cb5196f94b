"""What a run learns of its sources' pages while it reads them: where a record's parts stand.

After each flush: what became of learned selectors is counted, and of a source whose pages a model
had to read, selectors are looked for in some of those pages. Nothing of it can fail a run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, select

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType, FieldKind
from ingestion_pipeline.catalogs.extraction.record import LEARNED, ExtractionMethod, FieldValue
from ingestion_pipeline.catalogs.extraction.rule_pipeline import is_json
from ingestion_pipeline.catalogs.extraction.selectors import Selectors
from ingestion_pipeline.catalogs.extraction.source_config import EntityConfig
from ingestion_pipeline.catalogs.extraction.tasks import ReadDone, ReadResult, ReadWork
from ingestion_pipeline.catalogs.learning.learned_selectors import (
    Learned,
    Subject,
    Uses,
    count,
    keep_learned,
)
from ingestion_pipeline.catalogs.learning.selector_learning import TrainingPage, learn_selectors
from ingestion_pipeline.catalogs.states import PageStatus
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.reading.evidence.grounding import PROVED
from ingestion_pipeline.reading.text.decoding import decode
from ingestion_pipeline.store.tables import data_items, extractions, pages, snapshots
from ingestion_pipeline.tasks.errors import WorkError

MOST_LESSONS = 10  # pages; their bodies are loaded and parsed
MOST_RECORDS = 500
# All of them, else only the newest: the layout may have changed in between.
_NEWEST = (MOST_LESSONS, 5, 3, 1)
_BY_MODEL = (ExtractionMethod.CHEAP_MODEL, ExtractionMethod.STRONG_MODEL)
_DEARER = (ExtractionMethod.LAYOUT, *_BY_MODEL)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadPage:
    """A stored page, and the rows of what a model found on it."""

    body_hash: str
    content_type: str | None
    items: Sequence[Any]


class SelectorLearner:
    """What one run knows of learned selectors; `study` runs beside the readings, in a thread."""

    def __init__(self, shop: RunContext) -> None:
        self._shop = shop
        self._known: dict[Subject, Learned | None] = {}
        self._read: dict[Subject, int] = {}
        self._due: dict[Subject, int] = {}

    def hear(self, works: Iterable[ReadWork]) -> None:
        """What the rows say of the sources whose pages were just claimed."""
        self._known |= {_subject(work): work.learned for work in works}

    def taught(self, wanted: EntityConfig, work: ReadWork) -> EntityConfig:
        """What is wanted, with what was learned of where it stands."""
        known = self._known.get(_subject(work))
        if known is None or wanted.selectors is not None:
            return wanted
        return replace(wanted, learned=known.for_kind(wanted.kind))

    def study(self, results: Sequence[ReadResult]) -> None:
        """Learn from readings that have been written; whatever goes wrong is only logged."""
        done = [one for one in results if isinstance(one, ReadDone)]
        learnable = [one for one in done if one.wanted.selectors is None]
        by_subject: dict[Subject, list[ReadDone]] = {}
        for one in learnable:
            by_subject.setdefault(_subject(one.work), []).append(one)
        for subject, its in by_subject.items():
            try:
                self._count(subject, its)
                self._learn(subject, its)
            except Exception:
                log.exception("nothing was learned of %s this time", subject.source_id)

    def _count(self, subject: Subject, done: Sequence[ReadDone]) -> None:
        known = self._known.get(subject)
        if known is None:
            return
        current = known.for_kind(done[0].wanted.kind)
        tried = [one for one in done if one.wanted.learned is not None]
        outcomes = [_is_read(one) for one in tried if one.wanted.learned == current]
        told = [outcome for outcome in outcomes if outcome is not None]
        if not told:
            return
        with self._shop.store.begin() as connection:
            uses = Uses(subject=subject, learned=known, outcomes=told)
            is_kept = count(connection, uses, now=self._shop.store.clock.now(connection))
        if not is_kept:
            log.info("selectors learned of %s fail; they are dropped", subject.source_id)
            self._forget(subject)

    def _forget(self, subject: Subject) -> None:
        for known in (self._known, self._read, self._due):
            known.pop(subject, None)

    def _learn(self, subject: Subject, done: Sequence[ReadDone]) -> None:
        """Look for selectors, seldomer the more pages were in vain."""
        by_model = sum(one.reading.rung in _BY_MODEL for one in done)
        if self._known.get(subject) is not None or not by_model:
            return
        read = self._read[subject] = self._read.get(subject, 0) + by_model
        if read < self._due.get(subject, 1):
            return
        self._due[subject] = read + max(1, read // 2)
        wanted = done[0].wanted
        with self._shop.store.read() as connection:
            rows = _read_pages(connection, subject, wanted.read_as(self._shop.settings))
        lessons = [one for row in rows if (one := _lesson(self._shop, wanted.kind, row))]
        learned_from, selectors = _learned(wanted.kind, lessons)
        if selectors is None:
            return
        with self._shop.store.begin() as connection:
            now = self._shop.store.clock.now(connection)
            self._known[subject] = keep_learned(
                connection, subject, wanted.kind, selectors, learned_from=learned_from, now=now
            )
        log.info("learned selectors of %s from %d pages", subject.source_id, learned_from)


def _subject(work: ReadWork) -> Subject:
    return Subject(source_id=work.task.source_id or "", entity_type=work.entity_type)


def _is_read(one: ReadDone) -> bool | None:
    """Whether learned selectors read the page; None if it says nothing of them.

    So it is where the page has no record, or states them for machines.
    """
    if any(record.reason == LEARNED for record in one.reading.records):
        return True
    return False if one.reading.rung in _DEARER else None


def _learned(kind: EntityType, lessons: Sequence[TrainingPage]) -> tuple[int, Selectors | None]:
    for number in sorted({min(len(lessons), most) for most in _NEWEST}, reverse=True):
        if number and (found := learn_selectors(kind, lessons[:number])):
            return number, found
    return 0, None


def _read_pages(connection: Connection, subject: Subject, read_as: str) -> list[_ReadPage]:
    """The newest pages that a model has read, each content once, with their items in order."""
    query = (
        select(pages.c.id, pages.c.snapshot_id, snapshots.c.body_hash, snapshots.c.content_type)
        .join(extractions, extractions.c.id == pages.c.extraction_id)
        .join(snapshots, snapshots.c.id == pages.c.snapshot_id)
        .where(
            extractions.c.source_id == subject.source_id,
            extractions.c.entity_type == subject.entity_type,
            pages.c.status == PageStatus.SUCCESS.value,
            pages.c.rung.in_([rung.value for rung in _BY_MODEL]),
            pages.c.read_as == read_as,
            pages.c.carried_from.is_(None),
            snapshots.c.body_hash.is_not(None),
        )
        .order_by(pages.c.read_at.desc(), pages.c.id.desc())
        .limit(2 * MOST_LESSONS)
    )
    once: dict[int, Any] = {}
    for row in connection.execute(query):
        once.setdefault(row.snapshot_id, row)
    rows = list(once.values())[:MOST_LESSONS]
    items = _items(connection, [row.id for row in rows])
    return [
        _ReadPage(body_hash=row.body_hash, content_type=row.content_type, items=items[row.id])
        for row in rows
        if row.id in items
    ]


def _items(connection: Connection, page_ids: Sequence[int]) -> dict[int, list[Any]]:
    table = data_items
    query = (
        select(table.c.page_id, table.c.data, table.c.grounding, table.c.is_flagged)
        .where(table.c.page_id.in_(page_ids))
        .order_by(table.c.page_id.desc(), table.c.position)
        .limit(MOST_RECORDS + 1)
    )
    rows = connection.execute(query).all()
    if len(rows) > MOST_RECORDS:  # the last page's may be cut off
        rows = [row for row in rows if row.page_id != rows[-1].page_id]
    return {id_: list(its) for id_, its in groupby(rows, key=lambda row: row.page_id)}


def _lesson(shop: RunContext, kind: EntityType, page: _ReadPage) -> TrainingPage | None:
    """The page with what is proved of its records; None if it cannot teach."""
    if any(item.is_flagged for item in page.items):
        return None
    try:
        body = decode(shop.content.get(page.body_hash), page.content_type)
    except WorkError:  # gone from the content store: others may teach
        return None
    records = [_values(kind, item.data, item.grounding) for item in page.items]
    return None if is_json(body) else TrainingPage(body=body, records=records)


def _values(
    kind: EntityType, data: Mapping[str, Any], grounding: Mapping[str, Any]
) -> dict[str, FieldValue | None]:
    """The values that the page proves, and those that are absent; the others are not known."""
    found: dict[str, FieldValue | None] = {}
    for field in kind.fields:
        value = data.get(field.name)
        if value is None:
            found[field.name] = None
        elif grounding.get(field.name, {}).get("status") in PROVED:
            is_number = field.kind is FieldKind.NUMBER
            found[field.name] = Decimal(str(value)) if is_number else value
    return found
