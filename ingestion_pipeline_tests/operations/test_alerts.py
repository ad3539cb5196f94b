"""Alerts: one for each change of a source's health, and those of the model budget."""

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from multiprocessing.synchronize import Barrier
from typing import Any

import pytest
from sqlalchemy import func, insert, select, text, update

from ingestion_pipeline.catalogs import extraction_control
from ingestion_pipeline.catalogs.checks import quarantined
from ingestion_pipeline.operations.alerts import (
    RUN_FAILED,
    Budget,
    change_of,
    last_heartbeat,
    notify_budget,
    notify_run_failure,
    reached_shares,
    record_health_changes,
    record_heartbeat,
    write_changes,
)
from ingestion_pipeline.operations.source_health import (
    SourceFacts,
    changed_states,
    source_statuses,
    sources_to_review,
    store_states,
)
from ingestion_pipeline.registry import systems
from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.sources.declarations import recipient_of
from ingestion_pipeline.sources.registry import enable
from ingestion_pipeline.sources.source import ALERTS, SOURCE_ALERTS
from ingestion_pipeline.sources.status import Alert, Health
from ingestion_pipeline.store import FixedClock, Store, open_store
from ingestion_pipeline.store.statements import audit
from ingestion_pipeline.store.tables import datasets, model_spending, outbox, source_health, sources, tasks
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline_tests.builders import a_new_task
from ingestion_pipeline_tests.catalog_extractions import CATALOG_ID, CatalogHarness, catalog_harness
from ingestion_pipeline_tests.operations.failing_sources import add_healthy_sources, break_sources, repair_sources
from ingestion_pipeline_tests.polling_runs import rows
from ingestion_pipeline_tests.processes import FORKSERVER, PATIENCE_SECONDS, Child

pytestmark = pytest.mark.both_databases


def with_model_budget(settings: Settings) -> Settings:
    url = settings.database_url
    variables = {"INGESTION_MODEL_BUDGET_MONTH_USD": "10", "INGESTION_DATABASE_URL": url}
    return load_settings(variables)


@pytest.mark.parametrize(
    ("limit", "held_usd", "is_used_up", "expected"),
    [
        (None, "99", False, []),
        ("10", "7.99", False, []),
        ("10", "8", False, [80]),
        ("10", "9.9", True, [80, 100]),
        ("10", "10", False, [80, 100]),
        ("0", "0", False, []),
    ],
)
def test_a_budget_alerts_at_eighty_and_at_a_hundred_percent(
    limit: str | None, held_usd: str, is_used_up: bool, expected: list[int]
) -> None:
    budget = Budget(
        month="2026-03",
        limit_usd=None if limit is None else Decimal(limit),
        held_usd=Decimal(held_usd),
        is_used_up=is_used_up,
    )

    assert list(reached_shares(budget)) == expected


def test_each_share_of_a_monthly_budget_alerts_once(store: Store, settings: Settings, clock: FixedClock) -> None:
    settings = with_model_budget(settings)

    def spend(month: str, amount: str) -> list[int]:
        with store.begin() as connection:
            row = {"scope": f"month:{month}", "held_usd": Decimal(amount), "updated_at": clock.at}
            connection.execute(insert(model_spending).values(row))
        return notify_twice()

    def notify_twice() -> list[int]:
        counts: list[int] = []
        for _ in range(2):
            with store.begin() as connection:
                counts.append(notify_budget(connection, settings, clock.at))
        return counts

    assert spend("2026-03", "8.5") == [1, 0]
    with store.begin() as connection:  # one more call did not fit, and waits
        insert_tasks(connection, [a_new_task(kind="extract_page")], now=clock.at)
        waits = {"error_code": "model_budget", "error": "the model budget for this month is ..."}
        connection.execute(update(tasks).values(waits))
    assert notify_twice() == [1, 0]
    clock.advance(days=31)
    with store.begin() as connection:
        connection.execute(update(tasks).values(error_code=None, error=None))
    assert spend("2026-04", "3") == [0, 0]
    alerts = [(row.subject_kind, row.subject_id) for row in rows(store, outbox)]
    assert alerts == [("budget", "month:2026-03:80"), ("budget", "month:2026-03:100")]


def test_failures_of_a_job_alert_once_an_hour_with_their_number(store: Store, clock: FixedClock) -> None:
    def fail(job: str, run_id: str) -> bool:
        with store.begin() as connection:
            detail: dict[str, Any] = {"job": job, "freed": 0}
            audit(connection, actor="system", action=RUN_FAILED, subject=f"run:{run_id}", now=clock.at, detail=detail)
            return notify_run_failure(connection, job, run_id=run_id, now=clock.at)

    first = [fail("poll_hot", f"r{n}") for n in range(3)]
    other = fail("maintain", "r9")
    clock.advance(hours=1)
    later = fail("poll_hot", "r4")

    assert (first, other, later) == ([True, False, False], True, True)
    texts = [row.payload for row in rows(store, outbox)]
    assert "in the hour before" not in texts[0]["text"]
    assert texts[2]["text"].startswith("run r4; 3 failed in the hour before;")


def test_a_silent_daemon_alerts_once_when_it_is_back(store: Store, settings: Settings, clock: FixedClock) -> None:
    def tick() -> bool:
        with store.begin() as connection:
            return record_heartbeat(connection, settings, now=clock.at)

    def tick_after(**span: float) -> bool:
        clock.advance(**span)
        return tick()

    assert [tick(), tick_after(seconds=30), tick_after(seconds=170)] == [False, False, False]
    gone_at = clock.at
    assert [tick_after(hours=2), tick(), tick_after(seconds=30)] == [True, False, False]
    with store.read() as connection:
        assert last_heartbeat(connection) == clock.at
        [payload] = connection.execute(select(outbox.c.payload)).scalars()
    assert payload["title"] == "the daemon was silent for 2 h 00 min"
    assert payload["silent_from"] == gone_at.isoformat()


def test_a_tick_with_an_older_clock_does_not_move_the_heartbeat_back(
    store: Store, settings: Settings, clock: FixedClock
) -> None:
    with store.begin() as connection:
        record_heartbeat(connection, settings, now=clock.at)
        record_heartbeat(connection, settings, now=clock.at - timedelta(minutes=1))

        assert last_heartbeat(connection) == clock.at


def test_the_kind_alerts_expands_to_every_kind_of_alert() -> None:
    systems()  # whose kinds of notices are accepted besides
    raw = {"id": "ops", "address": "notify:", "kinds": ["alerts", "extraction", "budget"]}
    recipient, problems = recipient_of(raw)

    assert problems == []
    assert recipient is not None
    assert recipient.kinds == (*ALERTS, "extraction")
    assert set(Alert) == set(SOURCE_ALERTS) < set(ALERTS)


def record_changes(store: Store, settings: Settings, *, now: datetime) -> int:
    with store.begin() as connection:
        return record_health_changes(connection, settings, now)


def alert_counts(store: Store) -> Counter[str]:
    return Counter(row.subject_kind for row in rows(store, outbox))


@pytest.mark.slow
def test_fifty_failures_among_a_thousand_sources_alert_once_each_and_recover_once(
    store: Store, settings: Settings, clock: FixedClock
) -> None:
    now = clock.at
    with store.begin() as connection:
        ids = add_healthy_sources(connection, 1_000, now=now)
        assert record_health_changes(connection, settings, now) == 0
        ids_by_failure = break_sources(connection, ids, per_failure=10, now=now)

    counts = [record_changes(store, settings, now=clock.advance(minutes=5)) for _ in range(4)]

    assert counts == [50, 0, 0, 0]
    alerts = {"source_degraded": 30, "breaker_opened": 10, "source_disabled": 10}
    assert alert_counts(store) == alerts
    later = clock.advance(minutes=5)
    with store.begin() as connection:
        repair_sources(
            connection, [source_id for source_ids in ids_by_failure.values() for source_id in source_ids], now=later
        )
    assert [record_changes(store, settings, now=clock.advance(minutes=5)) for _ in range(2)] == [50, 0]
    assert alert_counts(store) == alerts | {"source_recovered": 50}


def test_a_quarantined_feed_alerts_once_and_so_does_its_recovery(
    store: Store, settings: Settings, clock: FixedClock
) -> None:
    def record_poll(outcome: str) -> int:
        now = clock.advance(minutes=5)
        with store.begin() as connection:
            values = {"last_outcome": outcome, "last_success_at": now}
            connection.execute(update(sources).where(sources.c.id == source_id).values(**values))
            return record_health_changes(connection, settings, now)

    with store.begin() as connection:
        [source_id] = add_healthy_sources(connection, 1, now=clock.at)

    held_back = "quarantined: lists nothing; the last good data stays"
    assert [record_poll(held_back), record_poll(held_back), record_poll("unchanged")] == [1, 0, 1]
    assert alert_counts(store) == {"source_degraded": 1, "source_recovered": 1}


def record_changes_at_once(url: str, barrier: Barrier, at: datetime) -> int:
    store = open_store(url, clock=FixedClock(at))
    settings = load_settings({"INGESTION_DATABASE_URL": url})
    try:
        barrier.wait(PATIENCE_SECONDS)
        return record_changes(store, settings, now=at)
    finally:
        store.close()


@pytest.mark.slow
def test_two_processes_that_find_the_same_changes_alert_once_each(
    store: Store, settings: Settings, database_url: str, now: datetime
) -> None:
    with store.begin() as connection:
        ids = add_healthy_sources(connection, 100, now=now)
        break_sources(connection, ids, per_failure=20, now=now)

    barrier = FORKSERVER.Barrier(2)
    children = [Child(record_changes_at_once, database_url, barrier, now) for _ in range(2)]

    assert sum(child.result() for child in children) == 100
    assert alert_counts(store).total() == 100
    with store.read() as connection:
        query = select(func.count()).where(source_health.c.changes == 1)
        assert connection.execute(query).scalar_one() == 100


def test_the_second_of_two_concurrent_transactions_writes_nothing(
    store: Store, settings: Settings, now: datetime
) -> None:
    """Of two maintenance runs that read the same state, only one writes the change."""
    with store.begin() as connection:
        break_sources(connection, add_healthy_sources(connection, 10, now=now), per_failure=1, now=now)

    with store.read() as connection:
        reviewed = [change_of(status) for status in sources_to_review(connection, settings, now=now)]
    changes = [change for change in reviewed if change is not None]

    with store.begin() as connection:
        first = write_changes(connection, changes, now=now)
    with store.begin() as connection:
        second = write_changes(connection, changes, now=now)

    assert (len(first), len(second)) == (5, 0)


def test_a_source_that_fails_again_after_it_was_enabled_alerts_again_and_recovers_once(
    store: Store, settings: Settings, clock: FixedClock
) -> None:
    with store.begin() as connection:
        [blocked, *_] = add_healthy_sources(connection, 1, now=clock.at)
    is_blocked = {"status": "disabled", "status_reason": "disabled, behind a bot wall; ..."}

    for _ in range(2):
        with store.begin() as connection:
            connection.execute(update(sources).values(is_blocked))
        record_changes(store, settings, now=clock.advance(minutes=5))
        with store.begin() as connection:
            enable(connection, blocked, actor="cli:ann", now=clock.at)
        record_changes(store, settings, now=clock.advance(minutes=5))
    assert alert_counts(store) == {"source_disabled": 2}
    with store.begin() as connection:
        repair_sources(connection, [blocked], now=clock.advance(minutes=5))
    record_changes(store, settings, now=clock.at)

    assert alert_counts(store) == {"source_disabled": 2, "source_recovered": 1}


def test_a_source_disabled_by_an_operator_sends_no_alert(store: Store, settings: Settings, now: datetime) -> None:
    with store.begin() as connection:
        add_healthy_sources(connection, 1, now=now)
        off = {"status": "disabled", "status_reason": "cli:ann: noisy", "failure_count": 3}
        connection.execute(update(sources).values(off))

    assert record_changes(store, settings, now=now) == 0


def test_the_worst_sources_come_first(store: Store, settings: Settings, now: datetime) -> None:
    with store.begin() as connection:
        ids = add_healthy_sources(connection, 20, now=now)
        ids_by_failure = break_sources(connection, ids, per_failure=1, now=now)
        connection.execute(update(sources).where(sources.c.id == ids[9]).values(failure_count=1))
        statuses = source_statuses(connection, settings, now=now)

    healths = [status.health.value for status in statuses]
    assert healths[:6] == ["open", "disabled", *["degraded"] * 3, "unsteady"]
    assert set(healths[6:]) == {"healthy"}
    by_failures = [status.facts.id for status in statuses[2:5]]
    assert by_failures == [ids_by_failure["shape"][0], ids_by_failure["gone"][0], ids_by_failure["limited"][0]]


@pytest.mark.parametrize("hours", [1, 30])
def test_the_alert_says_since_when_and_why(store: Store, settings: Settings, now: datetime, hours: int) -> None:
    with store.begin() as connection:
        add_healthy_sources(connection, 1, now=now - timedelta(hours=hours))
        failing = {"failure_count": 4, "last_outcome": "failed: a.test answered 503"}
        connection.execute(update(sources).values(failing))
    record_changes(store, settings, now=now)

    [payload] = [row.payload for row in rows(store, outbox)]
    since = f"{now - timedelta(hours=hours):%Y-%m-%d %H:%M} UTC"
    assert payload["title"] == "job_board:n00000 is degraded"
    assert payload["text"] == (f"4 failed polls in a row, last success {since}; failed: a.test answered 503")
    assert (payload["failures"], payload["health"], payload["before"]) == (4, "degraded", "well")


def store_statuses(store: Store, settings: Settings, now: datetime) -> dict[str, str]:
    """Evaluate and store the health of every source, as `maintain` does; return it by id."""
    with store.begin() as connection:
        record_health_changes(connection, settings, now)
        statuses = source_statuses(connection, settings, now=now)
        store_states(connection, changed_states(connection, statuses, now=now))
    return {status.facts.id: status.health.value for status in statuses}


def health_view(store: Store) -> dict[str, tuple[str | None, Any]]:
    with store.read() as connection:
        rows = connection.execute(text("SELECT source_id, health, health_since FROM v_source_health"))
        return {id_: (health, since) for id_, health, since in rows}


def test_the_view_shows_the_evaluated_health_for_every_kind_of_failure(
    store: Store, settings: Settings, now: datetime
) -> None:
    with store.begin() as connection:
        ids = add_healthy_sources(connection, 30, now=now)
        break_sources(connection, ids, per_failure=2, now=now)
        late = {"not_before": now - timedelta(days=9)}
        connection.execute(update(tasks).where(tasks.c.source_id == ids[-1]).values(late))
        off = {"status": "disabled", "status_reason": "by an operator"}
        connection.execute(update(sources).where(sources.c.id == ids[-2]).values(off))
        new = {"last_success_at": None}
        connection.execute(update(sources).where(sources.c.id == ids[-3]).values(new))

    assert set(health_view(store).values()) == {(None, None)}  # not evaluated yet
    healths = store_statuses(store, settings, now)

    assert {id_: health for id_, (health, _) in health_view(store).items()} == healths
    assert {"open", "degraded", "late", "waiting", "healthy", "off"} <= set(healths.values())


def test_a_status_has_the_time_of_its_last_change(store: Store, settings: Settings, now: datetime) -> None:
    with store.begin() as connection:
        (first, second) = add_healthy_sources(connection, 2, now=now)
    store_statuses(store, settings, now)
    before = health_view(store)
    with store.begin() as connection:
        failing = {"failure_count": 1, "last_error_class": "transient"}
        connection.execute(update(sources).where(sources.c.id == first).values(failing))

    store_statuses(store, settings, now + timedelta(minutes=5))

    after = health_view(store)
    assert (before[first][0], after[first][0]) == ("healthy", "unsteady")
    assert before[first][1] != after[first][1]
    assert before[second] == after[second]


ALERT_KINDS = ("source_degraded", "source_recovered")


@pytest.fixture
def catalog(store: Store, settings: Settings, now: datetime) -> CatalogHarness:
    return catalog_harness(store, settings, now)


def crawl(catalog: CatalogHarness, *keys: str) -> int:
    """Crawl and extract these keys, ten minutes later."""
    catalog.clock.advance(minutes=10)
    return catalog.crawl({"/c/1": keys})


def add_quarantined_dataset(catalog: CatalogHarness) -> int:
    """Publish a dataset of ten items and quarantine one of a single item; return its extraction."""
    crawl(catalog, *(f"c{n}" for n in range(10)))
    return crawl(catalog, "c0")


def crawl_unchanged(catalog: CatalogHarness) -> None:
    """Crawl again and find every page unchanged since the published dataset."""
    catalog.clock.advance(minutes=10)
    base = catalog.rows(datasets)[0]
    id_ = catalog.start_extraction({"/c/1": "SUCCESS"}, base_dataset_id=base.id)
    catalog.carry_over(id_, base.extraction_id, "/c/1")
    [action] = catalog.finish(id_)
    assert action.dataset is not None
    assert action.dataset.is_confirmed


def record_health(catalog: CatalogHarness) -> SourceFacts:
    """Evaluate and store the catalogue's health, as `maintain` does."""
    now, settings = catalog.clock.advance(seconds=1), catalog.ctx.settings
    with catalog.ctx.store.begin() as connection:
        [statuses] = source_statuses(connection, settings, now=now)
        record_health_changes(connection, settings, now)
        store_states(connection, changed_states(connection, [statuses], now=now))
    return statuses


def catalog_alert_counts(catalog: CatalogHarness) -> Counter[str]:
    with catalog.ctx.store.read() as connection:
        kinds = connection.execute(select(outbox.c.subject_kind)).scalars()
        return Counter(kind for kind in kinds if kind in ALERT_KINDS)


def test_a_quarantined_dataset_degrades_its_source_and_alerts_once(catalog: CatalogHarness) -> None:
    id_ = add_quarantined_dataset(catalog)

    facts = [record_health(catalog) for _ in range(3)][-1]

    assert facts.health is Health.DEGRADED
    assert facts.assessment.reason.startswith("quarantined: version 2 is held back: ")
    assert facts.assessment.reason.endswith(f"; extraction {id_}; the last good data stays")
    assert catalog_alert_counts(catalog) == {"source_degraded": 1}
    with catalog.ctx.store.read() as connection:
        query = text("SELECT health, reported_state FROM v_source_health WHERE source_id = :id")
        assert tuple(connection.execute(query, {"id": CATALOG_ID}).one()) == ("degraded", "degraded")


def publish_quarantined(catalog: CatalogHarness) -> None:
    catalog.apply_action(extraction_control.publish, catalog.rows(datasets)[-1].extraction_id)


def crawl_nine_courses(catalog: CatalogHarness) -> None:
    crawl(catalog, *(f"c{n}" for n in range(9)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "end_quarantine", [publish_quarantined, crawl_nine_courses, crawl_unchanged], ids=lambda action: action.__name__
)
def test_a_source_recovers_once_when_its_dataset_is_published_or_the_next_extraction_succeeds(
    catalog: CatalogHarness, end_quarantine: Callable[[CatalogHarness], None]
) -> None:
    add_quarantined_dataset(catalog)
    record_health(catalog)

    end_quarantine(catalog)
    facts = [record_health(catalog) for _ in range(3)][-1]

    assert facts.health is Health.HEALTHY
    assert catalog_alert_counts(catalog) == {"source_degraded": 1, "source_recovered": 1}
    with catalog.ctx.store.read() as connection:
        assert quarantined(connection) == []


def test_a_second_quarantined_dataset_sends_no_second_alert(catalog: CatalogHarness) -> None:
    add_quarantined_dataset(catalog)
    record_health(catalog)

    crawl(catalog, "c1")

    assert record_health(catalog).assessment.reason.startswith("quarantined: version 3 is held back")
    assert catalog_alert_counts(catalog) == {"source_degraded": 1}
