"""Dataset reports: extraction numbers of a catalogue's last extraction, for people and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, Row, and_, exists, false, func, or_, select

from ingestion_pipeline.catalogs.datasets.carry_over import KEPT, UNCHANGED
from ingestion_pipeline.catalogs.extraction.record import ExtractionMethod
from ingestion_pipeline.catalogs.states import PageStatus
from ingestion_pipeline.reading.evidence.grounding import PROVED
from ingestion_pipeline.reading.llm.ledger import costs
from ingestion_pipeline.store.tables import data_items, datasets, extractions, model_calls, pages

SHOWN = 10  # rows of the preview
SAMPLED_ITEMS = 20_000  # the newest; enough for a rate, whatever the size of the dataset
_BY_RULES = [ExtractionMethod.API, ExtractionMethod.EMBEDDED, ExtractionMethod.SELECTORS, ExtractionMethod.LAYOUT]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetReport:
    """The dataset of a source's last extraction: its own, or the one it has confirmed so far.

    `no_data` names pages without records, and why; `kept_items` come from the dataset before, since
    their pages failed. The `saved_by_*` fields count what no model was asked for: cached answers,
    unchanged pages, pages read by rules.
    """

    source_id: str
    extraction_id: int
    extraction_status: str
    entity_type: str | None
    dataset_id: int | None
    version: int | None
    status: str
    items: int
    new_items: int
    flagged: int
    pages: Mapping[str, int]
    grounded_share: float | None
    input_tokens: int
    output_tokens: int
    cost_usd: Decimal
    saved_by_cache: int
    saved_by_unchanged: int
    saved_by_rules: int
    preview: Sequence[Mapping[str, Any]]
    no_data: Sequence[str] = ()
    kept_items: int = 0

    @property
    def read(self) -> int:
        """The number of pages whose records are known."""
        return sum(self.pages.get(status.value, 0) for status in _READ)


_READ = (PageStatus.SUCCESS, PageStatus.EXTRACTED_NO_DATA)


def dataset_report(connection: Connection, source_id: str) -> DatasetReport | None:
    """Return the numbers of the source's last extraction; None if it never had one."""
    query = select(extractions).where(extractions.c.source_id == source_id)
    last = connection.execute(query.order_by(extractions.c.id.desc()).limit(1)).one_or_none()
    if last is None:
        return None
    # Its own dataset; before that exists, and if nothing changed, the base.
    own = _dataset(connection, last)
    carried, by_rules = _saved_pages(connection, last.id)
    lines = costs(connection, extraction_id=last.id)
    return DatasetReport(
        source_id=source_id,
        extraction_id=last.id,
        extraction_status=last.status,
        entity_type=own.entity_type if own else None,
        dataset_id=own.id if own else None,
        version=own.version if own else None,
        status=own.status if own else "none",
        items=_items(connection, own, last.id),
        new_items=_new_items(connection, own, last),
        flagged=_count(connection, own, is_flagged=True),
        pages=_states(connection, last.id),
        grounded_share=_grounded_share(connection, own),
        input_tokens=sum(line.input_tokens for line in lines),
        output_tokens=sum(line.output_tokens for line in lines),
        cost_usd=sum((line.cost_usd for line in lines), Decimal(0)),
        saved_by_cache=_kept_answers(connection, last.id),
        saved_by_unchanged=carried,
        saved_by_rules=by_rules,
        preview=_preview(connection, own),
        no_data=_empty_pages(connection, last.id),
        kept_items=_kept_items(connection, last.id),
    )


def _empty_pages(connection: Connection, extraction_id: int) -> list[str]:
    """Return the first pages without data, each with the reason."""
    query = (
        select(pages.c.url, pages.c.failure["message"].as_string().label("why"))
        .where(
            pages.c.extraction_id == extraction_id,
            pages.c.status == PageStatus.EXTRACTED_NO_DATA.value,
            pages.c.failure.is_not(None),
        )
        .order_by(pages.c.id)
        .limit(SHOWN)
    )
    return [f"{row.url}: {row.why}" for row in connection.execute(query)]


def _kept_items(connection: Connection, extraction_id: int) -> int:
    query = select(func.coalesce(func.sum(pages.c.item_count), 0)).where(pages.c.extraction_id == extraction_id, KEPT)
    return int(connection.execute(query).scalar_one())


def _dataset(connection: Connection, last: Row[Any]) -> Row[Any] | None:
    mine = or_(
        datasets.c.extraction_id == last.id,
        datasets.c.id.in_([dataset_id for dataset_id in (last.dataset_id, last.base_dataset_id) if dataset_id]),
    )
    query = select(datasets).where(mine).order_by(datasets.c.version.desc()).limit(1)
    return connection.execute(query).one_or_none()


def _states(connection: Connection, extraction_id: int) -> dict[str, int]:
    query = (
        select(pages.c.status, func.count().label("pages"))
        .where(pages.c.extraction_id == extraction_id)
        .group_by(pages.c.status)
        .order_by(pages.c.status)
    )
    return {row.status: row.pages for row in connection.execute(query)}


def _items(connection: Connection, own: Row[Any] | None, extraction_id: int) -> int:
    """Count the dataset's items; while it is being built, also those of unchanged pages."""
    if own is None:
        return 0
    count = _count(connection, own)
    if own.extraction_id != extraction_id:
        return count
    of_page = exists().where(data_items.c.dataset_id == own.id, data_items.c.page_id == pages.c.id)
    brought = select(func.coalesce(func.sum(pages.c.item_count), 0)).where(
        pages.c.extraction_id == extraction_id, pages.c.carried_from.is_not(None), ~of_page
    )
    return count + int(connection.execute(brought).scalar_one())


def _count(connection: Connection, own: Row[Any] | None, *, is_flagged: bool = False) -> int:
    if own is None:
        return 0
    query = select(func.count()).where(data_items.c.dataset_id == own.id, ~data_items.c.is_repeat)
    if is_flagged:
        query = query.where(data_items.c.is_flagged)
    return connection.execute(query).scalar_one()


def _new_items(connection: Connection, own: Row[Any] | None, last: Row[Any]) -> int:
    """Count the items that the published dataset before it does not have."""
    if own is None or own.extraction_id != last.id:
        return 0
    before = data_items.alias("before")
    was_there = exists().where(before.c.dataset_id == last.base_dataset_id, before.c.item_key == data_items.c.item_key)
    query = select(func.count()).where(data_items.c.dataset_id == own.id, ~data_items.c.is_repeat, ~was_there)
    return connection.execute(query).scalar_one()


def _grounded_share(connection: Connection, own: Row[Any] | None) -> float | None:
    """Return the share of field values that are proved; None if there are none."""
    if own is None:
        return None
    query = (
        select(data_items.c.grounding)
        .where(data_items.c.dataset_id == own.id)
        .order_by(data_items.c.id.desc())
        .limit(SAMPLED_ITEMS)
    )
    total = proved = 0
    for grounding in connection.execute(query).scalars():
        total += len(grounding)
        proved += sum(evidence["status"] in PROVED for evidence in grounding.values())
    return proved / total if total else None


def _saved_pages(connection: Connection, extraction_id: int) -> tuple[int, int]:
    """Return how many pages are unchanged, and how many of the others were read by rules."""
    is_carried = func.coalesce(UNCHANGED, false())
    by_rules = and_(~is_carried, pages.c.extraction_method.in_([method.value for method in _BY_RULES]))
    query = select(func.count().filter(is_carried), func.count().filter(by_rules)).where(
        pages.c.extraction_id == extraction_id
    )
    carried, ruled = connection.execute(query).one()
    return carried, ruled


def _kept_answers(connection: Connection, extraction_id: int) -> int:
    query = select(func.count()).where(model_calls.c.extraction_id == extraction_id, model_calls.c.status == "cached")
    return connection.execute(query).scalar_one()


def _preview(connection: Connection, own: Row[Any] | None) -> list[Mapping[str, Any]]:
    if own is None:
        return []
    query = (
        select(data_items.c.data)
        .where(data_items.c.dataset_id == own.id, ~data_items.c.is_repeat)
        .where(~data_items.c.is_flagged)
        .order_by(data_items.c.item_key, data_items.c.id)
        .limit(SHOWN)
    )
    return list(connection.execute(query).scalars())
