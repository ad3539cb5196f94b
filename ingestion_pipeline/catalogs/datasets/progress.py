"""Progress of extractions: pages by step and state, items and cost, one statement for many.

Everything is counted from stored rows, so that no crash can make a sum wrong.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, Row, case, func, select, update

from ingestion_pipeline.catalogs.datasets.carry_over import KEPT, MISSING, UNCHANGED
from ingestion_pipeline.catalogs.states import OPEN_PAGES, UNFINISHED_PAGES, PageStatus, lock_rows
from ingestion_pipeline.reading.llm.ledger import CostLine, costs_of, saved_calls
from ingestion_pipeline.store.bulk import row_source
from ingestion_pipeline.store.tables import CRAWLING, crawl_steps, extractions, pages
from ingestion_pipeline.store.types import Id, Json


@dataclass(slots=True)
class Progress:
    """The progress of one extraction; a page in progress counts as waiting, for it may wait again.

    Counted apart, a page that is retried for ever would look like a change each time. `kept_items`
    come from the dataset before, since their pages failed; `missing` pages stated records before,
    and failed or state none.
    """

    steps: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    items: int = 0
    methods: Counter[str] = field(default_factory=Counter[str])
    carried: int = 0
    kept_items: int = 0
    missing: int = 0
    costs: Sequence[CostLine] = ()
    saved: int = 0

    @property
    def pages(self) -> dict[str, int]:
        """The number of pages by state, over all steps."""
        return dict(sum(self.steps.values(), Counter[str]()))

    @property
    def unfinished(self) -> int:
        """The number of pages that were not fetched, or fetched and not extracted."""
        return sum(count for state, count in self.pages.items() if state in UNFINISHED_PAGES)

    def as_stored(self) -> dict[str, Any]:
        """Return the summary for the extraction's row."""
        return {
            "pages": self.pages,
            "steps": {key: _step(states) for key, states in sorted(self.steps.items())},
            "items": self.items,
            "rungs": dict(self.methods),
            "carried": self.carried,
            "kept": self.kept_items,
            "missing": self.missing,
            "cost": _cost(self.costs, self.saved),
        }


def _step(states: Mapping[str, int]) -> dict[str, Any]:
    total = sum(states.values())
    left = sum(count for state, count in states.items() if state in UNFINISHED_PAGES)
    return {"pages": dict(states), "total": total, "finished": total - left}


def _cost(lines: Sequence[CostLine], saved: int) -> dict[str, Any]:
    return {
        "calls": sum(line.calls for line in lines),
        "saved_calls": saved,
        "input_tokens": sum(line.input_tokens for line in lines),
        "output_tokens": sum(line.output_tokens for line in lines),
        "usd": _dollars(sum((line.cost_usd for line in lines), Decimal(0))),
        "open_usd": _dollars(sum((line.open_usd for line in lines), Decimal(0))),
        "by_call_site": [
            {
                "call_site": line.call_site,
                "model": line.model,
                "calls": line.calls,
                "input_tokens": line.input_tokens,
                "output_tokens": line.output_tokens,
                "usd": _dollars(line.cost_usd),
            }
            for line in lines
        ],
    }


def _dollars(amount: Decimal) -> str:
    """Format as text: a float would not be the sum of its parts."""
    return f"{amount.normalize():f}"


def progress(connection: Connection, extraction_ids: Collection[int]) -> dict[int, Progress]:
    """Return the progress of each of these extractions."""
    ids = list(extraction_ids)
    by_id = {id_: Progress() for id_ in ids}
    for row in connection.execute(_page_counts(ids)):
        entry = by_id[row.extraction_id]
        entry.steps[row.step][row.state] += row.pages
        entry.items += int(row.items or 0)
        entry.carried += row.carried
        entry.kept_items += int(row.kept or 0)
        entry.missing += row.missing
        if row.extraction_method is not None:
            entry.methods[row.extraction_method] += row.pages
    for id_, lines in costs_of(connection, ids).items():
        by_id[id_].costs = lines
    for id_, count in saved_calls(connection, ids).items():
        by_id[id_].saved = count
    return by_id


def _page_counts(ids: Sequence[int]) -> Any:  # noqa: ANN401 - a SQL statement
    waiting = PageStatus.WAITING.value
    state = case((pages.c.status.in_(OPEN_PAGES), waiting), else_=pages.c.status).label("state")
    counted = (
        select(
            pages.c.extraction_id,
            pages.c.step_id,
            state,
            pages.c.extraction_method,
            func.count().label("pages"),
            func.sum(pages.c.item_count).label("items"),
            func.count().filter(UNCHANGED).label("carried"),
            func.sum(pages.c.item_count).filter(KEPT).label("kept"),
            func.count().filter(MISSING).label("missing"),
        )
        .where(pages.c.extraction_id.in_(ids))
        .group_by(pages.c.extraction_id, pages.c.step_id, state, pages.c.extraction_method)
        .subquery("counted")
    )
    query = select(counted, crawl_steps.c.key.label("step")).join(crawl_steps, crawl_steps.c.id == counted.c.step_id)
    return query.order_by(counted.c.step_id, counted.c.state, counted.c.extraction_method)


def running(
    connection: Connection, *, source_ids: Collection[str] | None = None, extraction_id: int | None = None
) -> Sequence[Row[Any]]:
    """Return the rows of the running extractions, the oldest first."""
    query = select(extractions).where(CRAWLING)
    if source_ids is not None:
        query = query.where(extractions.c.source_id.in_(list(source_ids)))
    if extraction_id is not None:
        query = query.where(extractions.c.id == extraction_id)
    return connection.execute(query.order_by(extractions.c.id)).all()


def write_summaries(connection: Connection, summaries: Mapping[int, Mapping[str, Any]], *, now: datetime) -> None:
    """Write these summaries, which have changed, with the time of the change."""
    if not summaries:
        return
    lock_rows(connection, summaries.keys())
    rows = [(id_, dict(summary)) for id_, summary in sorted(summaries.items())]
    new_summaries = row_source(connection, {"id": Id, "summary": Json}, rows, "given")
    connection.execute(
        update(extractions)
        .where(extractions.c.id == new_summaries.c.id)
        .values(summary=new_summaries.c.summary, changed_at=now)
    )
