"""Learn selectors for a run's sources while it reads their pages.

After each flush the outcomes of learned selectors are counted; for a source whose pages a model had
to read, selectors are learned from some of those pages. No failure here can fail a run.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, select

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType, FieldKind
from ingestion_pipeline.catalogs.extraction.record import LEARNED, ExtractionMethod, FieldValue
from ingestion_pipeline.catalogs.extraction.rule_pipeline import is_json
from ingestion_pipeline.catalogs.extraction.selectors import Selectors
from ingestion_pipeline.catalogs.extraction.source_config import EntityConfig
from ingestion_pipeline.catalogs.extraction.tasks import ReadDone, ReadWork
from ingestion_pipeline.catalogs.learning.learned_selectors import (
    LearnedSelectors,
    SelectorScope,
    SelectorUses,
    record_uses,
    save_learned,
)
from ingestion_pipeline.catalogs.learning.selector_learning import TrainingPage, learn_selectors
from ingestion_pipeline.catalogs.states import PageStatus
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.reading.evidence.grounding import PROVED
from ingestion_pipeline.reading.text.decoding import decode
from ingestion_pipeline.store.tables import data_items, extractions, pages, snapshots
from ingestion_pipeline.tasks.errors import WorkError

MAX_TRAINING_PAGES = 10  # their bodies are loaded and parsed
MAX_TRAINING_RECORDS = 500
# All of them, else only the newest ones: the layout may have changed in between.
_NEWEST_COUNTS = (MAX_TRAINING_PAGES, 5, 3, 1)
_BY_MODEL = (ExtractionMethod.CHEAP_MODEL, ExtractionMethod.STRONG_MODEL)
_COSTLIER = (ExtractionMethod.LAYOUT, *_BY_MODEL)

log = logging.getLogger(__name__)


class SelectorLearner:
    """The learned selectors of one run; `learn_from` runs in a thread beside the readings."""

    def __init__(self, ctx: RunContext) -> None:
        self._ctx = ctx
        self._learned_by_scope: dict[SelectorScope, LearnedSelectors | None] = {}
        self._pages_read: dict[SelectorScope, int] = {}
        self._next_attempt_pages: dict[SelectorScope, int] = {}

    def register(self, works: Iterable[ReadWork]) -> None:
        """Remember the stored selectors of the sources whose pages were just claimed."""
        self._learned_by_scope |= {_scope(work): work.learned for work in works}

    def with_learned(self, config: EntityConfig, work: ReadWork) -> EntityConfig:
        """Return the config with the learned selectors, unless selectors are configured."""
        learned = self._learned_by_scope.get(_scope(work))
        if learned is None or config.selectors is not None:
            return config
        return replace(config, learned=learned.for_kind(config.kind))

    def learn_from(self, done: Sequence[ReadDone]) -> None:
        """Learn from readings that have been written; a failure is only logged."""
        by_scope: dict[SelectorScope, list[ReadDone]] = {}
        for result in done:
            if result.config.selectors is None:
                by_scope.setdefault(_scope(result.work), []).append(result)
        for scope, scope_results in by_scope.items():
            try:
                self._count(scope, scope_results)
                self._learn(scope, scope_results)
            except Exception:
                log.exception("selector learning failed source=%s", scope.source_id)

    def _count(self, scope: SelectorScope, done: Sequence[ReadDone]) -> None:
        learned = self._learned_by_scope.get(scope)
        if learned is None:
            return
        current = learned.for_kind(done[0].config.kind)
        tried = [result for result in done if result.config.learned is not None]
        outcomes = [_was_read_by_learned(result) for result in tried if result.config.learned == current]
        conclusive = [outcome for outcome in outcomes if outcome is not None]
        if not conclusive:
            return
        with self._ctx.store.begin() as connection:
            uses = SelectorUses(scope=scope, learned=learned, outcomes=conclusive)
            is_kept = record_uses(connection, uses, now=self._ctx.store.clock.now(connection))
        if not is_kept:
            log.info("learned selectors dropped source=%s reason=too_many_failures", scope.source_id)
            for by_scope in (self._learned_by_scope, self._pages_read, self._next_attempt_pages):
                by_scope.pop(scope, None)

    def _learn(self, scope: SelectorScope, done: Sequence[ReadDone]) -> None:
        """Try to learn selectors, less often the more pages were tried in vain."""
        by_model = sum(result.reading.method in _BY_MODEL for result in done)
        if self._learned_by_scope.get(scope) is not None or not by_model:
            return
        read = self._pages_read[scope] = self._pages_read.get(scope, 0) + by_model
        if read < self._next_attempt_pages.get(scope, 1):
            return
        self._next_attempt_pages[scope] = read + max(1, read // 2)
        config = done[0].config
        with self._ctx.store.read() as connection:
            rows = _read_pages(connection, scope, config.reader_hash(self._ctx.settings))
        training_pages = [page for pair in rows if (page := _training_page(self._ctx, config.kind, pair))]
        learned_from, selectors = _learn_from_newest(config.kind, training_pages)
        if selectors is None:
            return
        with self._ctx.store.begin() as connection:
            now = self._ctx.store.clock.now(connection)
            self._learned_by_scope[scope] = save_learned(
                connection, scope, config.kind, selectors, learned_from=learned_from, now=now
            )
        log.info("selectors learned source=%s pages=%d", scope.source_id, learned_from)


def _scope(work: ReadWork) -> SelectorScope:
    return SelectorScope(source_id=work.task.source_id or "", entity_type=work.entity_type)


def _was_read_by_learned(result: ReadDone) -> bool | None:
    """Return whether learned selectors read the page; None if the result is inconclusive.

    That is so where the page has no record, or has embedded data.
    """
    if any(record.reason == LEARNED for record in result.reading.records):
        return True
    return False if result.reading.method in _COSTLIER else None


def _learn_from_newest(kind: EntityType, training_pages: Sequence[TrainingPage]) -> tuple[int, Selectors | None]:
    for number in sorted({min(len(training_pages), most) for most in _NEWEST_COUNTS}, reverse=True):
        if number and (selectors := learn_selectors(kind, training_pages[:number])):
            return number, selectors
    return 0, None


def _read_pages(connection: Connection, scope: SelectorScope, reader_hash: str) -> list[tuple[Any, Sequence[Any]]]:
    """Return rows of the newest pages that a model has read, each content once, with the ordered items."""
    query = (
        select(pages.c.id, pages.c.snapshot_id, snapshots.c.body_hash, snapshots.c.content_type)
        .join(extractions, extractions.c.id == pages.c.extraction_id)
        .join(snapshots, snapshots.c.id == pages.c.snapshot_id)
        .where(
            extractions.c.source_id == scope.source_id,
            extractions.c.entity_type == scope.entity_type,
            pages.c.status == PageStatus.SUCCESS.value,
            pages.c.extraction_method.in_([method.value for method in _BY_MODEL]),
            pages.c.reader_hash == reader_hash,
            pages.c.carried_from.is_(None),
            snapshots.c.body_hash.is_not(None),
        )
        .order_by(pages.c.read_at.desc(), pages.c.id.desc())
        .limit(2 * MAX_TRAINING_PAGES)
    )
    once: dict[int, Any] = {}
    for row in connection.execute(query):
        once.setdefault(row.snapshot_id, row)
    rows = list(once.values())[:MAX_TRAINING_PAGES]
    items = _items(connection, [row.id for row in rows])
    return [(row, items[row.id]) for row in rows if row.id in items]


def _items(connection: Connection, page_ids: Sequence[int]) -> dict[int, list[Any]]:
    table = data_items
    query = (
        select(table.c.page_id, table.c.data, table.c.grounding, table.c.is_flagged)
        .where(table.c.page_id.in_(page_ids))
        .order_by(table.c.page_id.desc(), table.c.position)
        .limit(MAX_TRAINING_RECORDS + 1)
    )
    rows = connection.execute(query).all()
    if len(rows) > MAX_TRAINING_RECORDS:  # the last page's items may be incomplete
        rows = [row for row in rows if row.page_id != rows[-1].page_id]
    return {id_: list(page_rows) for id_, page_rows in groupby(rows, key=lambda row: row.page_id)}


def _training_page(ctx: RunContext, kind: EntityType, page: tuple[Any, Sequence[Any]]) -> TrainingPage | None:
    """Return the page with the proved values of its records; None if it is unsuitable."""
    row, items = page
    if any(item.is_flagged for item in items):
        return None
    try:
        body = decode(ctx.content.get(row.body_hash), row.content_type)
    except WorkError:  # gone from the content store: use other pages
        return None
    records = [_values(kind, item.data, item.grounding) for item in items]
    return None if is_json(body) else TrainingPage(body=body, records=records)


def _values(kind: EntityType, data: Mapping[str, Any], grounding: Mapping[str, Any]) -> dict[str, FieldValue | None]:
    """Return proved and absent values; a field without proof is left out."""
    values: dict[str, FieldValue | None] = {}
    for field in kind.fields:
        value = data.get(field.name)
        if value is None:
            values[field.name] = None
        elif grounding.get(field.name, {}).get("status") in PROVED:
            is_number = field.kind is FieldKind.NUMBER
            values[field.name] = Decimal(str(value)) if is_number else value
    return values
