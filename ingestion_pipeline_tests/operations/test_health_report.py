"""The health report of a source beyond its row: coverage by kind, changes, failures, costs."""

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Connection, insert, update

from ingestion_pipeline.exports.contracts import CONTRACTS, cases_of
from ingestion_pipeline.operations.source_health import as_row, reported, source_statuses
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Kind
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.sources.scheduling.change_model import ChangeModel, with_changes
from ingestion_pipeline.sources.scheduling.tiers import PollingBudget, expectation
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import (
    chapter_sources,
    chapters,
    crawl_steps,
    extractions,
    model_calls,
    pages,
    series,
    sources,
)
from ingestion_pipeline.tasks.ended_tasks import DeadLetterEntry, add_dead_letters
from ingestion_pipeline.tasks.errors import Permanent, Transient
from ingestion_pipeline_tests.builders import a_definition, a_task

pytestmark = pytest.mark.both_databases

DAY = timedelta(days=1)
SERIES, CATALOG, COMPANY = "series:solo", "catalog:college", "company:acme"


def _daily_timestamps(now: datetime, days: int) -> list[float]:
    return [(now - day * DAY).timestamp() for day in range(days, 0, -1)]


def add_chapters(connection: Connection, numbers: list[str | None], *, now: datetime) -> None:
    """Add chapters detected a day apart, the last one today."""
    connection.execute(insert(series).values(id="solo", title="Solo", created_at=now))
    for position, number in enumerate(numbers):
        at = now - (len(numbers) - 1 - position) * DAY
        row = {"series_id": "solo", "key": str(position), "first_detected_at": at}
        row["number"] = None if number is None else Decimal(number)
        id_ = connection.execute(insert(chapters).values(row).returning(chapters.c.id)).scalar_one()
        link = {"chapter_id": id_, "source_id": SERIES, "releases": [], "fingerprint": str(position)}
        connection.execute(insert(chapter_sources).values(link | {"detected_at": at}))


def add_pages(connection: Connection, *statuses: str, now: datetime) -> None:
    extraction_values = {"status": "COMPLETE", "recipe": {}, "created_at": now, "updated_at": now}
    row = extraction_values | {"source_id": CATALOG, "tracking_id": "t"}
    extraction = connection.execute(insert(extractions).values(row).returning(extractions.c.id)).scalar_one()
    step: dict[str, Any] = {"extraction_id": extraction, "kind": "root", "key": "root"}
    step_id = connection.execute(
        insert(crawl_steps).values(step | {"page_type": "detail", "created_at": now}).returning(crawl_steps.c.id)
    ).scalar_one()
    for position, status in enumerate(statuses):
        page = {"extraction_id": extraction, "step_id": step_id, "host": "a.test"}
        page |= {"url": f"https://a.test/{position}", "key": str(position), "status": status}
        connection.execute(insert(pages).values(page | {"page_type": "detail", "created_at": now}))


def add_model_calls(connection: Connection, *ages: timedelta, now: datetime) -> None:
    call = {
        "call_site": "t",
        "provider": "p",
        "model": "m",
        "format": "f",
        "cache_key": "k",
        "prompt_version": "1",
        "status": "settled",
        "cost_usd": Decimal("0.125"),
        "source_id": CATALOG,
    }
    for age in ages:
        connection.execute(insert(model_calls).values(call | {"created_at": now - age}))


@pytest.mark.slow
def test_a_report_row_has_every_known_value_and_null_for_unknown_ones(
    store: Store, settings: Settings, now: datetime
) -> None:
    with store.begin() as connection:
        definitions = [
            a_definition(),
            a_definition(id=CATALOG, kind=Kind.CATALOG, platform="catalog", series=None),
            a_definition(id=COMPANY, kind=Kind.COMPANY, platform=None, series=None),
        ]
        register(connection, definitions, now=now - 60 * DAY)
        connection.execute(update(sources).values(synced_at=now - 2.5 * DAY, last_success_at=now))
        daily = with_changes(ChangeModel(), [(at, at) for at in _daily_timestamps(now, 9)]).to_json()
        connection.execute(update(sources).where(sources.c.id == SERIES).values(change_model=daily))
        add_chapters(connection, ["1", "2", "2.5", None, "5"], now=now)
        add_pages(connection, "ERROR", "ERROR", now=now - DAY)
        add_pages(connection, "SUCCESS", "EXTRACTED_NO_DATA", "ERROR", "WAITING", now=now)
        add_model_calls(connection, DAY, 29 * DAY, 31 * DAY, now=now)
        task = a_task(id=7, source_id=CATALOG)
        for error in (Permanent("gone", code="a"), Permanent("x", code="b"), Transient("y")):
            add_dead_letters(connection, [DeadLetterEntry(task=task, error=error, stack=None)], now=now)

        registered = sources_by_id(connection, [SERIES])
        polling_budget = PollingBudget({}, settings)
        statuses = source_statuses(connection, settings, now=now)
        rows = {status.id: as_row(status) for status in reported(connection, statuses, settings, now=now)}

    contract = CONTRACTS["source_health"]
    assert list(rows[SERIES]) == [column.name for column in contract.columns()]
    assert list(cases_of(rows.values(), contract)) == []
    solo, college, acme = rows[SERIES], rows[CATALOG], rows[COMPANY]
    assert solo["coverage"] == {"got": 3, "expected": 5, "of": "chapters"}
    estimate = expectation(registered[SERIES], polling_budget, now=now)
    assert solo["changes_per_day"] == estimate["expected_changes_per_day"]
    assert solo["change_confidence"] == estimate["change_confidence"] > 0.6
    assert college["change_confidence"] == 0  # nothing is known of it: as others of its kind
    assert college["coverage"] == {"got": 2, "expected": 4, "of": "pages"}
    assert college["failures"] == {"permanent": 2, "transient": 1}
    assert college["cost_30d_usd"] == Decimal("0.25")
    assert (acme["coverage"], acme["changes_per_day"], acme["failures"]) == (None, None, {})
    assert (solo["breaker"], solo["cost_30d_usd"]) == ("closed", 0)
