"""The health report of sources, the picture of their freshness, and the metrics."""

import re
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Connection, insert, update

from ingestion_pipeline.engine.system_spec import Metric
from ingestion_pipeline.exports.contracts import CONTRACTS, cases_of
from ingestion_pipeline.operations.alerts import record_heartbeat
from ingestion_pipeline.operations.metrics import Backlog, backlog, exposition, metric_text, numbers
from ingestion_pipeline.operations.source_health import (
    COLUMNS,
    LEGEND,
    NEVER,
    NOT_YET,
    Grid,
    as_row,
    colour_of,
    freshness,
    freshness_picture,
    reported,
    source_statuses,
)
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Kind
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.sources.scheduling.change_model import ChangeModel, with_changes
from ingestion_pipeline.sources.scheduling.tiers import PollingBudget, expectation
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import (
    batch_items,
    chapter_sources,
    chapters,
    crawl_steps,
    extractions,
    model_calls,
    pages,
    runs,
    series,
    sources,
    tasks,
)
from ingestion_pipeline.tasks.ended_tasks import DeadLetterEntry, add_dead_letters
from ingestion_pipeline.tasks.errors import Permanent, Transient
from ingestion_pipeline.tasks.queue import queues
from ingestion_pipeline_tests.builders import a_definition, a_task
from ingestion_pipeline_tests.operations.failing_sources import add_healthy_sources, break_sources

pytestmark = pytest.mark.both_databases

DAY = timedelta(days=1)
SERIES, CATALOG, COMPANY = "series:solo", "catalog:college", "company:acme"


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
        times = [(now - day * DAY).timestamp() for day in range(9, 0, -1)]
        daily = with_changes(ChangeModel(), [(at, at) for at in times]).to_json()
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


HOUR = timedelta(hours=1)


def freshness_grid(store: Store, settings: Settings, *, now: datetime) -> Grid:
    with store.read() as connection:
        return freshness(source_statuses(connection, settings, now=now), now=now)


@pytest.mark.parametrize("database", ["sqlite"])
def test_few_sources_have_a_row_each_and_many_are_grouped(store: Store, settings: Settings, now: datetime) -> None:
    with store.begin() as connection:
        ids = add_healthy_sources(connection, 6, now=now)
        ages = dict(zip(ids[1:4], (HOUR, 9 * HOUR, 99 * HOUR), strict=True))
        for id_, age in ages.items():
            where = sources.c.id == id_
            connection.execute(update(sources).where(where).values(tier="warm", last_success_at=now - age))
        unread = sources.c.id.in_(ids[4:])
        connection.execute(update(sources).where(unread).values(last_success_at=None))
        in_vain = sources.c.id == ids[4]
        connection.execute(update(sources).where(in_vain).values(failure_count=1))
    few = freshness_grid(store, settings, now=now)
    with store.begin() as connection:
        add_healthy_sources(connection, 100, now=now)
    many = freshness_grid(store, settings, now=now)

    places = {name: row.index(1) for name, row in zip(few.names, few.counts, strict=True)}
    columns = [COLUMNS[places[source_id]] for source_id in ids]
    assert columns == ["≤ 1", "≤ 1", "≤ 3", "> 10", "never", "not yet"]
    assert many.is_gathered
    assert set(many.names) <= {"job_board hot", "job_board warm", "series hot", "series warm"}
    assert sum(map(sum, many.counts)) == 100


def test_a_source_not_yet_polled_is_grey_and_one_that_never_succeeded_is_red() -> None:
    red, green, _ = colour_of(NEVER)

    assert len(set(colour_of(NOT_YET))) == 1
    assert red > 2 * green
    assert [column for _, column in LEGEND if column in {NEVER, NOT_YET}] == [NEVER, NOT_YET]


@pytest.mark.slow
def test_the_picture_of_very_many_sources_is_small() -> None:
    names = tuple(f"{kind} {tier}" for kind in "abcde" for tier in ("hot", "warm", "cold"))
    row = (90_000, 5, 0, 17, 0, 3, 1_000, 2_000)
    picture = freshness_picture(Grid(names=names, counts=(row,) * 15, is_gathered=True))

    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 60_000
    with pytest.raises(ValueError, match="no source"):
        freshness_picture(Grid(names=(), counts=(), is_gathered=False))


NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\\\|\\"|\\n)*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (-?[0-9.]+(?:e[+-]?[0-9]+)?)")
MEANING = re.compile(rf"# HELP ({NAME}) (\S.*)")
KIND = re.compile(rf"# TYPE ({NAME}) (counter|gauge)")


def parse_exposition(text: str) -> dict[str, float]:
    """Return every sample by name and labels; fail on anything that the format does not allow."""
    assert text.endswith("\n")
    samples: dict[str, float] = {}
    metric_names: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        if meaning := MEANING.fullmatch(line):
            kind = KIND.fullmatch(next(lines))
            assert kind, line
            assert kind[1] == meaning[1]
            assert kind[1] not in metric_names, "the samples of a metric are contiguous"
            assert (kind[2] == "counter") == kind[1].endswith("_total")
            metric_names.append(kind[1])
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample, line
        assert sample[1] == metric_names[-1], "a sample follows its own HELP line"
        key = f"{sample[1]}{{{sample[2]}}}" if sample[2] else sample[1]
        assert key not in samples
        samples[key] = float(sample[3])
    return samples


def scrape(store: Store, settings: Settings, *, now: datetime) -> dict[str, float]:
    with store.read() as connection:
        statuses = source_statuses(connection, settings, now=now)
        return parse_exposition(exposition(numbers(connection, settings, statuses, now=now)))


def test_the_metrics_of_an_empty_store_follow_the_exposition_format(
    store: Store, settings: Settings, now: datetime
) -> None:
    samples = scrape(store, settings, now=now)

    assert samples['ingestion_sources{health="healthy"}'] == 0
    assert samples["ingestion_taken_at_seconds"] == now.timestamp()
    assert not any(name.startswith("ingestion_daemon") for name in samples)


def test_the_metrics_count_what_is_stored(store: Store, settings: Settings, now: datetime) -> None:
    minute = timedelta(minutes=1)
    call = {
        "call_site": "t",
        "provider": "p",
        "model": "m",
        "format": "f",
        "cache_key": "k",
        "prompt_version": "1",
        "created_at": now - minute,
    }
    with store.begin() as connection:
        ids = add_healthy_sources(connection, 20, now=now)
        break_sources(connection, ids, per_failure=1, now=now)
        due = {"not_before": now - 3 * minute, "attempts": 2}
        connection.execute(update(tasks).where(tasks.c.source_id == ids[7]).values(due))
        counts = {"poll_count": 5, "change_count": 1, "strike_count": 1}
        connection.execute(update(sources).where(sources.c.id.in_(ids[:2])).values(counts))
        add_dead_letters(connection, [DeadLetterEntry(task=a_task(), error=Permanent("x"), stack=None)], now=now)
        run = {"run_id": "r", "lease_owner": "o", "job": "poll_hot", "lease_until": now}
        span = {"started_at": now - 2 * minute, "ended_at": now - minute}
        connection.execute(insert(runs).values(run | span))
        for status, cost in (("settled", "0.25"), ("cached", "0"), ("failed", "0.5")):
            row = call | {"status": status, "cost_usd": Decimal(cost)}
            connection.execute(insert(model_calls).values(row))
        record_heartbeat(connection, settings, now=now)

    samples = scrape(store, settings, now=now)

    expected = {
        'ingestion_sources{health="open"}': 1,
        'ingestion_sources{health="degraded"}': 3,
        'ingestion_sources{health="healthy"}': 15,
        'ingestion_polls_total{outcome="unchanged"}': 6,
        'ingestion_polls_total{outcome="failed"}': 2,
        'ingestion_queue_depth{kind="poll",state="due"}': 1,
        'ingestion_queue_depth{kind="poll",state="later"}': 18,
        'ingestion_queue_oldest_due_seconds{kind="poll"}': 180,
        'ingestion_queue_retries{kind="poll"}': 2,
        "ingestion_polls_overdue": 0,
        "ingestion_polls_oldest_overdue_seconds": 0,
        "ingestion_ingestion_lag_seconds": 0,
        'ingestion_tasks_ended{kind="poll",status="skipped",error_class="none"}': 1,
        'ingestion_dead_letters_open{error_class="permanent"}': 1,
        'ingestion_runs_ended_24h{job="poll_hot"}': 1,
        'ingestion_run_seconds_24h{job="poll_hot"}': 60,
        'ingestion_model_calls_30d{outcome="answered"}': 1,
        'ingestion_model_calls_saved{by="cache"}': 1,
        "ingestion_model_cost_30d_usd": 0.75,
        "ingestion_daemon_last_tick_seconds": now.timestamp(),
        'ingestion_website_phase_tasks{phase="website-analysis",state="waiting"}': 0,
    }
    assert {name: samples.get(name) for name in expected} == expected


def test_a_label_holds_any_text_and_no_line_break() -> None:
    text = metric_text(Metric("x", "a\\b\nc", (({"job": 'say "hi"\n\\'}, 1.5),)))

    assert list(parse_exposition(text)) == [r'ingestion_x{job="say \"hi\"\n\\"}']
    assert text.splitlines()[0] == r"# HELP ingestion_x a\\b\nc"


def current_backlog(store: Store, settings: Settings, now: datetime) -> Backlog:
    with store.read() as connection:
        facts = [status.facts for status in source_statuses(connection, settings, now=now)]
        waiting = queues(connection, now=now)
        return backlog(connection, facts, waiting, now=now, limits=settings.health)


def test_an_empty_store_has_no_backlog(store: Store, settings: Settings, now: datetime) -> None:
    assert current_backlog(store, settings, now) == Backlog(
        due=0, overdue=0, oldest_overdue_seconds=0, waiting_to_ingest=0, ingestion_lag_seconds=0
    )


def test_due_and_overdue_polls_and_fetched_listings_are_counted_with_their_age(
    store: Store, settings: Settings, now: datetime
) -> None:
    with store.begin() as connection:
        ids = add_healthy_sources(connection, 6, now=now)
        ages = {ids[0]: timedelta(minutes=1), ids[1]: timedelta(days=3), ids[2]: timedelta(days=9)}
        for id_, age in ages.items():
            due = {"not_before": now - age}
            connection.execute(update(tasks).where(tasks.c.source_id == id_).values(due))
        off = update(sources).where(sources.c.id == ids[2])
        connection.execute(off.values(status="disabled"))  # it is not due
        item = {"batch_id": "b", "task_id": 1, "fence": 1, "source_id": ids[3], "fetched": {}}
        fetched_at = now - timedelta(minutes=7)
        connection.execute(insert(batch_items).values(item | {"fetched_at": fetched_at}))

    assert current_backlog(store, settings, now) == Backlog(
        due=2, overdue=1, oldest_overdue_seconds=3 * 86_400, waiting_to_ingest=1, ingestion_lag_seconds=420
    )
