"""Retention of datasets, extractions, model calls and answers: the newest and what they need."""

from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, Select, delete, exists, func, or_, select, union

from ingestion_pipeline.catalogs.states import CRAWLING_STATES, DatasetStatus
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store.locking import delete_unlocked
from ingestion_pipeline.store.tables import (
    crawl_steps,
    data_items,
    datasets,
    extractions,
    model_answers,
    model_calls,
    model_spending,
    pages,
)

MODEL_ROWS_FOR = timedelta(days=365)  # calls and answers, kept so that no answer is paid twice
SWEPT_AT_ONCE = 50  # datasets or extractions; the rest follows at the next sweep


def old_datasets(connection: Connection, settings: Settings, now: datetime) -> int:  # noqa: ARG001
    """Delete versions beyond the newest `kept_versions` of their source, with their items.

    Never the published one, nor one that an extraction builds or carries pages over from.
    """
    newest_first = datasets.c.version.desc()
    by_source = func.row_number().over(partition_by=datasets.c.source_id, order_by=newest_first)
    by_status = func.row_number().over(partition_by=(datasets.c.source_id, datasets.c.status), order_by=newest_first)
    ranked = select(
        datasets.c.id,
        datasets.c.status,
        datasets.c.extraction_id,
        by_source.label("place"),
        by_status.label("place_among_its_like"),
    ).subquery()
    is_shown = (ranked.c.status == DatasetStatus.PUBLISHED.value) & (ranked.c.place_among_its_like == 1)
    is_in_use = exists().where(
        extractions.c.status.in_(CRAWLING_STATES),
        or_(extractions.c.id == ranked.c.extraction_id, extractions.c.base_dataset_id == ranked.c.id),
    )
    query = (
        select(ranked.c.id)
        .where(ranked.c.place > settings.extraction.kept_versions, ~is_shown, ~is_in_use)
        .order_by(ranked.c.id)
        .limit(SWEPT_AT_ONCE)
    )
    ids = _unlocked(connection, datasets.c.id, query)
    connection.execute(delete(data_items).where(data_items.c.dataset_id.in_(ids)))
    return connection.execute(delete(datasets).where(datasets.c.id.in_(ids))).rowcount


def old_extractions(connection: Connection, settings: Settings, now: datetime) -> int:  # noqa: ARG001
    """Delete extractions beyond the newest of their source, with their steps and pages.

    Never a running one, nor one that built a dataset which is kept, or is being rerun.
    """
    place = func.row_number().over(partition_by=extractions.c.source_id, order_by=extractions.c.id.desc())
    ranked = select(extractions.c.id, extractions.c.status, place.label("place")).subquery()
    needed = union(
        select(datasets.c.extraction_id),
        select(extractions.c.rerun_of).where(
            extractions.c.status.in_(CRAWLING_STATES), extractions.c.rerun_of.is_not(None)
        ),
    ).subquery()
    query = (
        select(ranked.c.id)
        .where(
            ranked.c.place > settings.retention.extractions_per_source,
            ranked.c.status.not_in(CRAWLING_STATES),
            ranked.c.id.not_in(select(needed)),
        )
        .order_by(ranked.c.id)
        .limit(SWEPT_AT_ONCE)
    )
    ids = _unlocked(connection, extractions.c.id, query)
    for column in (pages.c.extraction_id, crawl_steps.c.extraction_id, extractions.c.id):
        connection.execute(delete(column.table).where(column.in_(ids)))
    return len(ids)


def _unlocked(connection: Connection, key: ColumnElement[int], old: Select[int]) -> list[int]:
    """Return those of these ids that nobody has locked: an operator may just reopen one."""
    query = select(key).where(key.in_(old)).order_by(key)
    return list(connection.execute(query.with_for_update(skip_locked=True)).scalars())


def old_model_calls(connection: Connection, _settings: Settings, now: datetime) -> int:
    """Delete old rows of the model ledger; their sums are in each extraction's summary."""
    before = now - MODEL_ROWS_FOR
    is_running = model_calls.c.extraction_id.in_(
        select(extractions.c.id).where(extractions.c.status.in_(CRAWLING_STATES))
    )
    old = delete_unlocked(
        model_calls, model_calls.c.created_at < before, or_(model_calls.c.extraction_id.is_(None), ~is_running)
    )
    gone = connection.execute(old).rowcount
    # Counters of a day, a month or an extraction without recent spending.
    counters = delete_unlocked(model_spending, model_spending.c.updated_at < before)
    return gone + connection.execute(counters).rowcount


def old_model_answers(connection: Connection, _settings: Settings, now: datetime) -> int:
    """Delete old cached answers; the same question would be asked and paid for again."""
    before = now - MODEL_ROWS_FOR
    statement = delete_unlocked(model_answers, model_answers.c.created_at < before)
    return connection.execute(statement).rowcount
