"""Maintenance: deleted and retained rows, tiers that cool down, and concurrent runs."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import Table, func, insert, select, text, update

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.operations import retention
from ingestion_pipeline.operations.retention import SWEEPS, SweepResult, maintain
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.sources import registry
from ingestion_pipeline.sources.poll_tasks import lock_polls
from ingestion_pipeline.sources.source import Tier
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import (
    batch_items,
    chapter_sources,
    dead_letters,
    follows,
    ingestions,
    metadata,
    notices,
    outbox,
    recipients,
    runs,
    snapshots,
    sources,
    tasks,
)
from ingestion_pipeline.tasks.errors import Transient
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline_tests.builders import NOON, a_definition, a_new_task
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.lock_orders import ON_POSTGRES
from ingestion_pipeline_tests.operations.failing_sources import add_healthy_sources, break_sources
from ingestion_pipeline_tests.polling_runs import a_feed, a_run_context, add_sources, fast_settings, poll, rows
from ingestion_pipeline_tests.postgres import wait_until_blocked
from ingestion_pipeline_tests.statements import recorded_statements

pytestmark = pytest.mark.both_databases

SECOND, HOUR, DAY = timedelta(seconds=1), timedelta(hours=1), timedelta(days=1)
LONG_AGO = NOON - 900 * DAY
FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture
def ctx(store: Store, settings: Settings, tmp_path: Path) -> RunContext:
    content = ContentStore(tmp_path / "content")
    return RunContext(store=store, settings=settings, content=content, systems={})


@pytest.fixture
def no_task_is_retained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "FINISHED_ROWS", 0)
    monkeypatch.setattr(retention, "FAILED_ROWS", 0)


def run_sweep(ctx: RunContext, **limits: str) -> SweepResult:
    """Run maintenance with other limits than the defaults."""
    changed = {f"INGESTION_RETENTION__{name.upper()}": value for name, value in limits.items()}
    settings = load_settings(changed)
    sweep = maintain(RunContext(store=ctx.store, settings=settings, content=ctx.content, systems={}))
    assert sweep.errors == []
    return sweep


def task_row(name: str, **values: Any) -> dict[str, Any]:
    row = {"kind": "page", "dedupe_key": name, "payload": {}, "status": "SUCCESS", "priority": 5, "shard": 0}
    times = {"not_before": NOON, "created_at": NOON, "updated_at": NOON}
    return row | times | {"tracking_id": name, "ancestry": []} | values


def add_task(ctx: RunContext, name: str, **values: Any) -> None:
    insert_row(ctx, tasks, task_row(name, **values))


def insert_row(ctx: RunContext, table: Table, row: dict[str, Any]) -> None:
    with ctx.store.begin() as connection:
        connection.execute(insert(table).values(row))


def dead_letter_row(task_id: int, **values: Any) -> dict[str, Any]:
    row = {"task_id": task_id, "task_kind": "poll", "payload": {}, "error_class": "transient", "error_code": "reset"}
    return row | {"error": "reset", "attempts": 3, "tracking_id": "t"} | values


def batch_item_row(**values: Any) -> dict[str, Any]:
    return {"batch_id": "b", "task_id": 1, "fence": 1, "source_id": "series:a", "fetched": {}} | values


def remaining_values(ctx: RunContext, column: Any) -> set[Any]:
    with ctx.store.read() as connection:
        return set(connection.execute(select(column)).scalars())


def test_finished_tasks_are_deleted_after_an_hour_and_failed_ones_after_a_week(ctx: RunContext) -> None:
    ages = {"hour": HOUR, "over": HOUR + SECOND, "week": 7 * DAY, "older": 7 * DAY + SECOND}
    for name, age in ages.items():
        add_task(ctx, f"good {name}", updated_at=NOON - age)
        add_task(ctx, f"bad {name}", updated_at=NOON - age, status="FAILED")
    add_task(ctx, "waits", updated_at=NOON - 90 * DAY, status="PENDING")

    counts = run_sweep(ctx).counts

    assert (counts["finished_tasks"], counts["failed_tasks"]) == (3, 1)
    assert remaining_values(ctx, tasks.c.dedupe_key) == {*("good hour", "bad hour", "bad over", "bad week", "waits")}


def test_failed_tasks_of_catalogues_are_deleted_after_five_days(ctx: RunContext) -> None:
    for kind in ("fetch_page", "extract_page", "detect_recipe", "other"):
        add_task(ctx, kind, kind=kind, updated_at=NOON - 5 * DAY - SECOND, status="FAILED")
    add_task(ctx, "young", kind="fetch_page", updated_at=NOON - 5 * DAY, status="FAILED")

    assert run_sweep(ctx).counts["failed_tasks"] == 3

    assert remaining_values(ctx, tasks.c.dedupe_key) == {"other", "young"}


def test_the_newest_tasks_up_to_the_limit_are_retained(ctx: RunContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "FINISHED_ROWS", 2)
    monkeypatch.setattr(retention, "FAILED_ROWS", 1)
    for status in ("FILTERED", "FAILED"):
        for number in range(5):
            updated_at = NOON - number * SECOND
            add_task(ctx, f"{status} {number}", status=status, updated_at=updated_at)
        for number in range(9):  # polls of disabled sources: they are retained, and do not count
            add_task(ctx, f"poll {status} {number}", kind="poll", status=status)

    counts = run_sweep(ctx).counts

    assert (counts["finished_tasks"], counts["failed_tasks"]) == (3, 4)
    remaining = {key for key in remaining_values(ctx, tasks.c.dedupe_key) if not key.startswith("poll")}
    assert remaining == {"FILTERED 0", "FILTERED 1", "FAILED 0"}


@pytest.mark.slow
def test_at_most_a_thousand_finished_and_five_thousand_failed_tasks_are_retained(ctx: RunContext) -> None:
    finished_and_failed = [
        a_new_task(kind=status.lower(), dedupe_key=str(number))
        for status, count in (("SUCCESS", 1_003), ("FAILED", 5_002))
        for number in range(count)
    ]
    with ctx.store.begin() as connection:
        insert_tasks(connection, finished_and_failed, now=NOON)
        connection.execute(update(tasks).values(status=func.upper(tasks.c.kind), updated_at=NOON))

    counts = run_sweep(ctx).counts

    assert (counts["finished_tasks"], counts["failed_tasks"]) == (3, 2)
    assert len(remaining_values(ctx, tasks.c.id)) == 6_000


@pytest.mark.usefixtures("no_task_is_retained")
def test_a_poll_is_never_deleted(ctx: RunContext) -> None:
    for status in ("SKIPPED", "FAILED", "SUCCESS"):
        add_task(ctx, status, kind="poll", status=status, updated_at=LONG_AGO)

    run_sweep(ctx)

    assert len(remaining_values(ctx, tasks.c.dedupe_key)) == 3


@pytest.mark.usefixtures("no_task_is_retained")
def test_no_task_of_an_active_lineage_is_deleted(ctx: RunContext) -> None:
    old = {"updated_at": LONG_AGO}
    for status in ("PENDING", "PROCESSING"):
        add_task(ctx, f"root of {status}", tracking_id=status, **old)
        add_task(ctx, f"{status} failed", tracking_id=status, status="FAILED", **old)
        add_task(ctx, status, tracking_id=status, status=status, lease_until=NOON, **old)
    add_task(ctx, "ended root", tracking_id="ended", **old)

    run_sweep(ctx)

    remaining = remaining_values(ctx, tasks.c.dedupe_key)
    assert (len(remaining), "ended root" in remaining) == (6, False)


@pytest.mark.usefixtures("no_task_is_retained")
def test_a_permanent_poll_does_not_retain_the_tasks_it_spawned(ctx: RunContext) -> None:
    """A board always has an active poll: its evaluated jobs would have been retained for ever."""
    old = {"updated_at": LONG_AGO, "tracking_id": "board"}
    add_task(ctx, "poll", kind="poll", status="PENDING", **old)
    add_task(ctx, "job", kind="job", **old)

    run_sweep(ctx)

    assert remaining_values(ctx, tasks.c.dedupe_key) == {"poll"}


def test_only_replayed_dead_letters_are_deleted(ctx: RunContext) -> None:
    for number, (failed_at, replayed_at) in enumerate(
        [(NOON - 31 * DAY, NOON), (NOON - 29 * DAY, NOON), (LONG_AGO, None)], start=1
    ):
        insert_row(ctx, dead_letters, dead_letter_row(number, failed_at=failed_at, replayed_at=replayed_at))

    assert run_sweep(ctx).counts["dead_letters"] == 1
    assert remaining_values(ctx, dead_letters.c.task_id) == {2, 3}


def add_snapshot(
    ctx: RunContext, page: str, digest: str, age: timedelta, source: str | None = "series:a", **more: Any
) -> None:
    row: dict[str, Any] = {"source_id": source, "url": page, "content_hash": digest, "fetched_at": NOON - age}
    insert_row(ctx, snapshots, row | {"size_bytes": 1, "status_code": 200} | more)


def test_the_newest_snapshot_of_every_page_is_retained(ctx: RunContext) -> None:
    fetched = partial(add_snapshot, ctx)
    fetched("/1", "one: oldest", 90 * DAY)
    fetched("/1", "one: old", 60 * DAY)
    fetched("/1", "one: newest", 40 * DAY)
    fetched("/2", "two: only", 90 * DAY)
    fetched("/3", "three: young", 29 * DAY)
    fetched("/3", "three: newest", DAY)
    fetched("/1", "other source", 90 * DAY, "series:b")
    fetched("/4", "no source: old", 90 * DAY, None)
    fetched("/4", "no source: newest", 80 * DAY, None)

    assert run_sweep(ctx).counts["snapshots"] == 3
    assert remaining_values(ctx, snapshots.c.content_hash) == {
        *("one: newest", "two: only", "three: young", "three: newest"),
        *("other source", "no source: newest"),
    }


def test_snapshots_are_limited_in_number_and_the_last_good_one_is_always_retained(ctx: RunContext) -> None:
    add_snapshot(ctx, "/1", "older", 29 * DAY)
    add_snapshot(ctx, "/1", "last good", 28 * DAY)
    for number in range(4):
        add_snapshot(ctx, "/1", f"bad {number}", number * DAY, failure="not_a_feed")

    assert run_sweep(ctx, snapshots_per_page="2").counts["snapshots"] == 3
    assert remaining_values(ctx, snapshots.c.content_hash) == {"last good", "bad 0", "bad 1"}


def test_batches_of_dead_runs_are_deleted_and_those_of_live_runs_stay(ctx: RunContext) -> None:
    old, long_ago = NOON - 1_201 * SECOND, NOON - 1_200 * SECOND
    cases: dict[str, tuple[datetime, dict[str, Any]]] = {
        "alive": (old, {"status": "PROCESSING", "lease_until": NOON + SECOND, "fence": 1}),
        "silent": (old, {"status": "PROCESSING", "lease_until": NOON, "fence": 1}),
        "taken over": (old, {"status": "PROCESSING", "lease_until": NOON + HOUR, "fence": 2}),
        "finished": (old, {"status": "PENDING", "fence": 1}),
        "young": (long_ago, {"status": "PENDING", "fence": 1}),
    }
    for name, (fetched_at, task) in cases.items():
        add_task(ctx, name, kind="poll", **task)
        with ctx.store.read() as connection:
            task_id = connection.execute(select(tasks.c.id).where(tasks.c.dedupe_key == name)).scalar_one()
        insert_row(ctx, batch_items, batch_item_row(batch_id=name, task_id=task_id, fetched_at=fetched_at))

    assert run_sweep(ctx).counts["batches"] == 3
    assert remaining_values(ctx, batch_items.c.batch_id) == {"alive", "young"}


def test_heartbeats_of_ended_runs_are_deleted_after_a_week(ctx: RunContext) -> None:
    ends = {"old": NOON - 8 * DAY, "young": NOON - 6 * DAY, "never": None}
    for name, ended_at in ends.items():
        row = {"run_id": name, "lease_owner": "w", "job": "poll_hot", "ended_at": ended_at}
        insert_row(ctx, runs, row | {"started_at": NOON - 9 * DAY, "lease_until": NOON - 9 * DAY})

    assert run_sweep(ctx).counts["runs"] == 1
    assert remaining_values(ctx, runs.c.run_id) == {"young", "never"}


def add_source(ctx: RunContext, name: str, tier: str, *, quiet: timedelta, **row: Any) -> None:
    """A source whose last new record is that old, polled this very moment."""
    definition = a_definition(id=f"series:{name}", tier=Tier(tier) if "pin" in name else None)
    values = {"tier": tier, "last_new_at": NOON - quiet, "last_success_at": NOON, "next_check_at": NOON + HOUR}
    with ctx.store.begin() as connection:
        registry.register(connection, [definition], now=LONG_AGO)
        mine = update(sources).where(sources.c.id == definition.id)
        connection.execute(mine.values(values | row))
        poll = update(tasks).where(tasks.c.source_id == definition.id)
        waits = {"priority": Tier(tier).priority, "not_before": NOON + 3 * HOUR}
        connection.execute(poll.values(waits))


def test_a_quiet_source_cools_one_tier_at_a_time_by_its_last_new_record(ctx: RunContext) -> None:
    add_source(ctx, "hot", "hot", quiet=DAY)
    add_source(ctx, "hot-quiet", "hot", quiet=DAY + SECOND)
    add_source(ctx, "hot-silent", "hot", quiet=90 * DAY)
    add_source(ctx, "hot-pinned", "hot", quiet=90 * DAY)
    add_source(ctx, "hot-never", "hot", quiet=0 * DAY, last_new_at=None)
    add_source(ctx, "hot-open", "hot", quiet=90 * DAY, status="open")
    add_source(ctx, "warm", "warm", quiet=8 * DAY)
    add_source(ctx, "warm-quiet", "warm", quiet=8 * DAY + SECOND)
    add_source(ctx, "cold", "cold", quiet=90 * DAY)

    assert run_sweep(ctx).counts["cooled"] == 4

    with ctx.store.read() as connection:
        query = select(sources.c.id, sources.c.tier, tasks.c.priority, tasks.c.not_before)
        rows = connection.execute(query.join(tasks, tasks.c.source_id == sources.c.id)).all()
    assert {row.id.partition(":")[2]: (row.tier, row.priority) for row in rows} == {
        "hot": ("hot", 1),
        "hot-quiet": ("warm", 2),
        "hot-silent": ("warm", 2),
        "hot-pinned": ("hot", 1),
        "hot-never": ("warm", 2),
        "hot-open": ("hot", 1),
        "warm": ("warm", 2),
        "warm-quiet": ("cold", 3),
        "cold": ("cold", 3),
    }
    assert {row.not_before for row in rows} == {NOON + 3 * HOUR}  # a pause is waited out
    assert run_sweep(ctx).counts["cooled"] == 2


def add_followers(ctx: RunContext, series_id: str, count: int) -> None:
    person: dict[str, Any] = {"address_url": "notify:", "kinds": ["chapter"], "mode": "immediate"}
    person |= {"origin": "row", "created_at": NOON, "updated_at": NOON}
    with ctx.store.begin() as connection:
        for number in range(count):
            name = f"{series_id}-{number}"
            connection.execute(insert(recipients).values(id=name, **person))
            row = {"recipient_id": name, "series_id": series_id, "origin": "row"}
            connection.execute(insert(follows).values(created_at=NOON, **row))


def test_a_source_with_many_followers_is_heated_and_never_cools(ctx: RunContext) -> None:
    month_ago = NOON - 30 * DAY
    for name, readers in (("many", 3), ("few", 2)):
        registered = a_definition(id=f"series:{name}", url=f"https://{name}.test/", series=name)
        with ctx.store.begin() as connection:
            registry.register(connection, [registered], now=month_ago)
        add_followers(ctx, name, readers)
    patient = {"INGESTION_POLLING__AGED_SECONDS": str(60 * DAY // SECOND)}
    settings = load_settings({"INGESTION_TIERS__HOT_READERS": "2"} | patient)

    for _ in range(2):
        maintain(RunContext(store=ctx.store, settings=settings, content=ctx.content, systems={}))

    with ctx.store.read() as connection:
        query = select(sources.c.id, sources.c.tier, tasks.c.priority)
        rows = connection.execute(query.join(tasks, tasks.c.source_id == sources.c.id))
        result = {row.id: (row.tier, row.priority) for row in rows}
    assert result == {"series:many": ("hot", 1), "series:few": ("cold", 3)}


def test_outbox_rows_are_deleted_a_week_after_they_were_handled(ctx: RunContext) -> None:
    rows: list[dict[str, Any]] = [
        {"subject_id": "old", "handled_at": NOON - 8 * DAY},
        {"subject_id": "recent", "handled_at": NOON - 6 * DAY},
        {"subject_id": "unhandled", "handled_at": None},
    ]
    shared = {"subject_kind": "other", "payload": {}, "created_at": NOON - 30 * DAY}
    with ctx.store.begin() as connection:
        connection.execute(insert(outbox), [shared | row for row in rows])

    assert run_sweep(ctx).counts["outbox"] == 1
    assert remaining_values(ctx, outbox.c.subject_id) == {"recent", "unhandled"}


def test_one_failing_sweep_does_not_stop_the_others(ctx: RunContext) -> None:
    add_source(ctx, "hot", "hot", quiet=2 * DAY)
    add_task(ctx, "old", updated_at=NOON - 2 * HOUR)
    with ctx.store.begin() as connection:
        connection.execute(text("DROP TABLE snapshots"))

    sweep = maintain(ctx)

    assert [error.split(":")[0] for error in sweep.errors] == ["snapshots", "content"]
    assert sweep.counts.keys() == SWEEPS.keys() - {"snapshots"}
    assert (sweep.counts["finished_tasks"], sweep.counts["cooled"]) == (1, 1)


def test_unreferenced_content_is_pruned(ctx: RunContext, tmp_path: Path) -> None:
    forms = ("body_hash", "text_hash", "markdown_hash", "screenshot_hash")
    objects = {form: ctx.content.put(form.encode()) for form in forms}
    remaining, lost = ctx.content.put(b"kept"), ctx.content.put(b"lost")
    add_snapshot(ctx, "/1", remaining, HOUR, **objects)
    for path in (tmp_path / "content").glob("??/*"):
        os.utime(path, (0, 0))

    assert maintain(ctx).counts["content"] == 1

    assert ctx.content.get(remaining) == b"kept"
    assert [ctx.content.get(digest).decode() for digest in objects.values()] == list(forms)
    with pytest.raises(Transient):
        ctx.content.get(lost)


@pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)], ids=["postgres"])
def test_cooling_waits_for_an_operator_and_neither_deadlocks(ctx: RunContext) -> None:
    add_source(ctx, "hot", "hot", quiet=2 * DAY)

    with ThreadPoolExecutor(1) as pool:
        with ctx.store.begin() as connection:
            lock_polls(connection, ["series:hot"])
            maintenance = pool.submit(maintain, ctx)
            wait_until_blocked(ctx.store)
            registry.disable(connection, "series:hot", actor="ann", reason="slow", now=NOON)
        sweep = maintenance.result(60)

    assert (sweep.errors, sweep.counts["cooled"]) == ([], 0)
    assert remaining_values(ctx, sources.c.tier) == {"hot"}


RETAINED_TABLES: dict[str, str] = yaml.safe_load((FIXTURES / "retained_tables.yaml").read_text())


def test_sent_alerts_are_deleted_by_age_and_record_notices_stay(ctx: RunContext, now: datetime) -> None:
    notice_states = [
        ("source_degraded", "sent", 91),
        ("budget", "muted", 91),
        ("source_degraded", "failed", 91),
        ("run_failures", "pending", 91),
        ("daemon_silent", "sent", 89),
        ("chapter", "sent", 900),
        ("extraction", "sent", 900),
    ]
    with ctx.store.begin() as connection:
        for position, (kind, status, days) in enumerate(notice_states):
            row = {"recipient": "ops", "subject_kind": kind, "subject_id": str(position)}
            state = {"status": status, "mode": "immediate", "payload": {}}
            connection.execute(insert(notices).values(row | state | {"created_at": now - days * DAY}))

    sweep = maintain(ctx)

    assert sweep.errors == []
    assert sweep.counts["alerts"] == 2
    with ctx.store.read() as connection:
        remaining = connection.execute(select(notices.c.subject_id).order_by(notices.c.id)).scalars()
        assert list(remaining) == ["2", "3", "4", "5", "6"]


@pytest.mark.slow
def test_two_concurrent_maintenance_runs_sweep_and_alert_once(ctx: RunContext, now: datetime) -> None:
    with ctx.store.begin() as connection:
        break_sources(connection, add_healthy_sources(connection, 200, now=now), per_failure=10, now=now)
        finished = [a_new_task(kind="page", dedupe_key=f"t{n}") for n in range(300)]
        insert_tasks(connection, finished, now=now)
        is_page = tasks.c.kind == "page"
        old = {"status": "SUCCESS", "updated_at": now - DAY}
        connection.execute(tasks.update().where(is_page).values(old))

    with ThreadPoolExecutor(2) as pool:
        sweeps: list[SweepResult] = list(pool.map(lambda _: maintain(ctx), range(2)))

    assert [sweep.errors for sweep in sweeps] == [[], []]
    for name, count in (("finished_tasks", 300), ("health", 50)):
        assert sum(sweep.counts[name] for sweep in sweeps) == count
    kinds = [row.subject_kind for row in rows(ctx.store, outbox)]
    assert len(kinds) == 50


@ON_POSTGRES
def test_locked_rows_are_neither_swept_nor_waited_for(ctx: RunContext) -> None:
    ended = {"started_at": LONG_AGO, "ended_at": LONG_AGO, "lease_until": LONG_AGO}
    handled = {"payload": {}, "created_at": LONG_AGO, "handled_at": LONG_AGO}
    swept: dict[str, tuple[Table, dict[str, Any]]] = {
        "finished_tasks": (tasks, task_row("old", updated_at=NOON - DAY)),
        "dead_letters": (dead_letters, dead_letter_row(1, failed_at=LONG_AGO, replayed_at=LONG_AGO)),
        "batches": (batch_items, batch_item_row(fetched_at=LONG_AGO)),
        "runs": (runs, {"run_id": "r", "job": "j", "lease_owner": "o", **ended}),
        "outbox": (outbox, {"subject_kind": "chapter", "subject_id": "1", **handled}),
    }
    for table, row in swept.values():
        insert_row(ctx, table, row)
    with ctx.store.begin() as holder, ThreadPoolExecutor(1) as pool:
        for table, _ in swept.values():
            holder.execute(select(*table.primary_key).with_for_update()).all()
        during = pool.submit(maintain, ctx).result(30)
    afterwards = maintain(ctx)

    assert (during.errors, afterwards.errors) == ([], [])
    assert {name: during.counts[name] for name in swept} == dict.fromkeys(swept, 0)
    assert {name: afterwards.counts[name] for name in swept} == dict.fromkeys(swept, 1)


DOCS = Path(__file__).parents[2] / "docs" / "operating" / "retention.md"


def swept_tables(ctx: RunContext) -> set[str]:
    """Return the tables that a maintenance run deletes from, by the statements that it sends."""
    with recorded_statements(ctx.store.engine) as statements:
        assert maintain(ctx).errors == []
    return {match[1] for statement, _ in statements if (match := re.search(r"DELETE FROM (\w+)", statement))}


def test_every_table_is_swept_or_has_a_reason_to_be_retained(store: Store, tmp_path: Path) -> None:
    swept = swept_tables(a_run_context(store, fast_settings(tmp_path, "")))

    assert swept | RETAINED_TABLES.keys() == metadata.tables.keys()
    assert swept & RETAINED_TABLES.keys() == set()
    assert all(len(reason.split()) >= 3 for reason in RETAINED_TABLES.values())


def test_retained_tables_are_documented() -> None:
    text = DOCS.read_text()

    assert [name for name in RETAINED_TABLES if f"`{name}`" not in text] == []


@pytest.mark.slow
def test_an_unreferenced_ingestion_is_deleted_by_age_and_a_referenced_one_stays(
    store: Store, clock: FixedClock, tmp_path: Path
) -> None:
    ctx = a_run_context(store, fast_settings(tmp_path, ""))
    add_sources(store, a_definition(url="http://a.test/solo"))
    with FakeWeb({"/solo": a_feed(1, 2)}) as web:
        poll(ctx, web)
        clock.advance(days=1)
        web.routes["/solo"] = a_feed(1, 2, note=" mended")
        poll(ctx, web)
    first, second = sorted(rows(store, ingestions), key=lambda row: row.ingested_at)
    retention_seconds = ctx.settings.retention.ingestions_seconds
    clock.advance(seconds=retention_seconds - timedelta(days=1).total_seconds() + 60)

    assert maintain(ctx, dry_run=True).counts["ingestions"] == 1
    assert len(rows(store, ingestions)) == 2
    assert maintain(ctx).counts["ingestions"] == 1
    clock.advance(days=60)
    assert maintain(ctx).counts["ingestions"] == 0

    assert [row.id for row in rows(store, ingestions)] == [second.id]
    assert first.id not in {row.ingestion_id for row in rows(store, chapter_sources)}
