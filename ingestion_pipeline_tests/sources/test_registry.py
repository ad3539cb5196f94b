"""Rows of `sources` and their polls: declared, re-declared, enabled and disabled; unchanged ones are not written."""

import dataclasses
from datetime import datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, RowMapping, select, text, update

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import poll_results, registry
from ingestion_pipeline.sources.lookup import UnknownSource, list_sources, sources_by_id
from ingestion_pipeline.sources.registry import (
    BY_FILE,
    Registered,
    SourceExists,
    StoredSource,
    is_unchanged,
    random_ids,
    register,
)
from ingestion_pipeline.sources.scheduling.change_model import ChangeModel
from ingestion_pipeline.sources.source import Definition, SourceStatus, Tier, shard_of
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import audit_log, sources, tasks
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter, LostClaim
from ingestion_pipeline.tasks.errors import Transient
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask, Task, retried
from ingestion_pipeline_tests.builders import NOON, a_definition
from ingestion_pipeline_tests.polling_runs import rows

pytestmark = pytest.mark.both_databases

HOUR = timedelta(hours=1)
SOLO = "series:solo"


def register_now(store: Store, *definitions: Definition) -> Registered:
    with store.begin() as connection:
        return registry.register(connection, definitions, now=store.clock.now(connection))


def source_row(store: Store) -> RowMapping:
    with store.read() as connection:
        return connection.execute(select(sources)).mappings().one()


def poll_row(store: Store) -> RowMapping:
    with store.read() as connection:
        return connection.execute(select(tasks)).mappings().one()


def set_source(store: Store, **values: Any) -> None:
    with store.begin() as connection:
        connection.execute(update(sources).values(**values))


def claim_poll(store: Store) -> Task:
    with store.begin() as connection:
        [task] = claims.claim(
            connection,
            ClaimFilter(kind="poll", source_ids=[SOLO]),
            owner="worker",
            now=store.clock.now(connection),
            lease=HOUR,
            limit=1,
        )
    return task


def finish(store: Store, task: Task, settings: Settings, random: Random) -> None:
    with store.begin() as connection:
        source = sources_by_id(connection, [SOLO])[SOLO]
        success = poll_results.unchanged(task, source, etag="old", last_modified=None)
        poll_results.succeed(connection, [success], now=NOON, settings=settings, random=random)


def audit_entries(store: Store) -> list[tuple[str, str, str]]:
    with store.read() as connection:
        query = select(audit_log.c.actor, audit_log.c.action, audit_log.c.subject)
        return [(a, b, c) for a, b, c in connection.execute(query.order_by(audit_log.c.id))]


def test_a_new_source_has_its_row_and_one_poll_that_is_due_now(store: Store, now: datetime) -> None:
    assert register_now(store, a_definition()) == Registered(added=1, updated=0, unchanged=0)

    source, poll = source_row(store), poll_row(store)
    assert (source["status"], source["tier"], source["tier_pinned"]) == ("active", "warm", False)
    assert (source["host"], source["next_check_at"]) == ("a.test", now)
    assert (poll["kind"], poll["dedupe_key"], poll["source_id"]) == ("poll", SOLO, SOLO)
    assert (poll["status"], poll["not_before"], poll["priority"]) == ("PENDING", now, 2)
    assert (poll["shard"], poll["tracking_id"]) == (source["shard"], source["tracking_id"])


def test_a_poll_created_before_its_disabled_source_does_not_run(store: Store, now: datetime) -> None:
    """Discovered boards are created in this order; an uncertain one would be polled and so approved."""
    with store.begin() as connection:
        early = NewTask(kind="poll", dedupe_key="series:a", source_id="series:a", not_before=now)
        insert_tasks(connection, [early], now=now)
        registry.register(connection, [a_definition(id="series:a", enabled=False)], now=now)
        statuses = connection.execute(select(tasks.c.status)).scalars().all()

    assert statuses == ["SKIPPED"]


def test_an_unchanged_declaration_changes_nothing(store: Store, clock: FixedClock) -> None:
    definition = a_definition(config={"b": 1, "a": [2, {"c": None}]}, name="Solo")
    register_now(store, definition)
    task = claim_poll(store)
    pause = clock.at + 3 * HOUR
    with store.begin() as connection:  # it waits for a retry, as the server asked
        claims.apply(connection, [retried(task, Transient("429"), not_before=pause)], now=clock.at)
    source, poll = source_row(store), poll_row(store)
    clock.advance(hours=1)

    reordered = dataclasses.replace(definition, config={"a": [2, {"c": None}], "b": 1})

    assert register_now(store, reordered) == Registered(added=0, updated=0, unchanged=1)
    assert source_row(store) == source
    assert poll_row(store) == poll


@pytest.mark.slow
def test_a_changed_declaration_resets_the_validators_and_is_fetched_at_once(
    store: Store, clock: FixedClock, settings: Settings, random: Random
) -> None:
    definition = a_definition()
    register_now(store, definition)
    for change in (
        {"url": "https://a.test/other"},
        {"url": "https://b.test/other"},
        {"platform": "mangadex"},
        {"config": {"language": "de"}},
    ):
        finish(store, claim_poll(store), settings, random)
        state = {"synced_at": NOON, "record_count": 9, "change_model": ChangeModel(last_at=7).to_json()}
        set_source(store, content_hash="h", last_modified="m", **state)
        definition = dataclasses.replace(definition, **change)
        later = clock.advance(minutes=5)

        assert register_now(store, definition).updated == 1

        source, poll = source_row(store), poll_row(store)
        assert (source["etag"], source["last_modified"]) == (None, None)
        assert source["content_hash"] is None
        assert (source["next_check_at"], poll["not_before"]) == (later, later)
        assert (poll["url"], poll["shard"]) == (source["url"], source["shard"])
        assert {name: source[name] for name in state} == state


def test_a_running_poll_of_the_old_url_loses_its_claim(
    store: Store, clock: FixedClock, settings: Settings, random: Random
) -> None:
    register_now(store, a_definition())
    running = claim_poll(store)

    register_now(store, a_definition(url="https://b.test/feed"))

    with pytest.raises(LostClaim):
        finish(store, running, settings, random)
    assert source_row(store)["etag"] is None
    poll = poll_row(store)
    assert (poll["status"], poll["attempts"]) == ("PENDING", 0)
    assert (poll["fence"], poll["url"]) == (running.fence + 1, "https://b.test/feed")


def test_a_source_that_moves_to_another_series_is_read_again_as_a_first_sync(store: Store, clock: FixedClock) -> None:
    register_now(store, a_definition(series="sloo"))
    set_source(store, content_hash="h", synced_at=NOON, record_count=9, change_model={"last": 7})

    register_now(store, a_definition(series="solo"))

    source = source_row(store)
    assert (source["series_id"], source["content_hash"]) == ("solo", None)
    assert (source["synced_at"], source["record_count"], source["change_model"]) == (None, 0, None)


def test_a_changed_name_is_written_without_a_fetch(store: Store, clock: FixedClock) -> None:
    register_now(store, a_definition())
    set_source(store, etag="e", content_hash="h", next_check_at=NOON + HOUR)
    clock.advance(minutes=5)

    assert register_now(store, a_definition(name="Solo")).updated == 1

    source = source_row(store)
    assert (source["name"], source["etag"], source["content_hash"]) == ("Solo", "e", "h")
    assert (source["next_check_at"], source["updated_at"]) == (NOON + HOUR, clock.at)


def test_a_tier_is_pinned_and_unpinned_by_the_declaration(store: Store) -> None:
    register_now(store, a_definition())
    set_source(store, tier="cold")

    register_now(store, a_definition(tier=Tier.HOT))
    assert (source_row(store)["tier"], source_row(store)["tier_pinned"]) == ("hot", True)
    assert poll_row(store)["priority"] == 1

    register_now(store, a_definition(tier=None))
    assert (source_row(store)["tier"], source_row(store)["tier_pinned"]) == ("hot", False)
    assert register_now(store, a_definition()).unchanged == 1


def test_a_file_disables_and_enables_its_source(store: Store, clock: FixedClock) -> None:
    register_now(store, a_definition(enabled=False))
    assert len(rows(store, tasks)) == 0
    assert source_row(store)["status_reason"] == BY_FILE

    register_now(store, a_definition())
    assert (source_row(store)["status"], source_row(store)["status_reason"]) == ("active", None)
    assert poll_row(store)["status"] == "PENDING"

    register_now(store, a_definition(enabled=False))
    assert (source_row(store)["status"], poll_row(store)["status"]) == ("disabled", "SKIPPED")

    later = clock.advance(hours=1)
    register_now(store, a_definition())
    assert (poll_row(store)["status"], poll_row(store)["not_before"]) == ("PENDING", later)


def test_an_operators_disable_survives_a_new_import(store: Store, now: datetime) -> None:
    register_now(store, a_definition())
    with store.begin() as connection:
        registry.disable(connection, SOLO, actor="ann", reason="too slow", now=now)

    register_now(store, a_definition())
    register_now(store, a_definition(url="https://b.test/feed"))

    source = source_row(store)
    assert (source["status"], source["status_reason"]) == ("disabled", "ann: too slow")
    assert (source["url"], poll_row(store)["status"]) == ("https://b.test/feed", "SKIPPED")


def test_a_disabled_poll_loses_its_claim_and_its_results(
    store: Store, now: datetime, settings: Settings, random: Random
) -> None:
    register_now(store, a_definition())
    running = claim_poll(store)
    with store.begin() as connection:
        registry.disable(connection, SOLO, actor="ann", reason="too slow", now=now)

    with pytest.raises(LostClaim):
        finish(store, running, settings, random)

    poll = poll_row(store)
    assert (poll["status"], poll["error"], poll["lease_owner"]) == ("SKIPPED", "source disabled", None)
    assert poll["fence"] == running.fence + 1
    assert (source_row(store)["status"], source_row(store)["etag"]) == ("disabled", None)


def test_enabling_resets_the_failures_and_makes_the_source_due(store: Store, clock: FixedClock) -> None:
    register_now(store, a_definition())
    set_source(store, status="open", status_reason="breaker open", failure_count=5)
    with store.begin() as connection:
        connection.execute(update(tasks).values(not_before=NOON + 24 * HOUR))
    later = clock.advance(minutes=1)

    with store.begin() as connection:
        registry.enable(connection, SOLO, actor="ann", now=later, reason="fixed")

    source = source_row(store)
    assert (source["status"], source["status_reason"]) == ("active", None)
    assert (source["failure_count"], source["next_check_at"]) == (0, later)
    assert poll_row(store)["not_before"] == later


def test_every_status_change_and_every_new_source_is_audited(store: Store, now: datetime) -> None:
    with store.begin() as connection:
        registry.add(connection, a_definition(), actor="ann", now=now)
        registry.disable(connection, SOLO, actor="ben", reason="slow", now=now)
        registry.enable(connection, SOLO, actor="cat", now=now)
        registry.remove(connection, SOLO, actor="dan", now=now)

    assert audit_entries(store) == [
        ("ann", "source.add", SOLO),
        ("ben", "source.disable", SOLO),
        ("cat", "source.enable", SOLO),
        ("dan", "source.disable", SOLO),
    ]
    with store.read() as connection:
        [removed] = list_sources(connection)
    assert (removed.status, removed.status_reason) == (SourceStatus.DISABLED, registry.REMOVED)


def test_an_existing_id_cannot_be_added_and_an_unknown_one_cannot_be_changed(store: Store, now: datetime) -> None:
    register_now(store, a_definition())
    before = source_row(store)

    with pytest.raises(SourceExists, match="'series:solo' exists already"), store.begin() as c:
        registry.add(c, a_definition(url="https://b.test/feed"), actor="ann", now=now)
    for switch in (registry.enable, registry.remove):
        with pytest.raises(UnknownSource, match="no source 'series:gone'"), store.begin() as c:
            switch(c, "series:gone", actor="ann", now=now)

    assert source_row(store) == before
    assert audit_entries(store) == []


@pytest.mark.slow
def test_more_definitions_than_fit_a_batch_are_registered_in_one_call(store: Store) -> None:
    many = [
        a_definition(id=f"series:s{number}", url=f"https://h{number % 50}.test/{number}/feed")
        for number in range(registry.REGISTER_BATCH + 1)
    ]

    assert register_now(store, *many).added == len(many)
    assert register_now(store, *many).unchanged == len(many)
    assert len(rows(store, tasks)) == len(many)


DECLARED = a_definition(url="https://a.test/feed", platform="rss", name="Solo", config={"n": 1}, tier=Tier.HOT)
STORED = StoredSource(
    id=DECLARED.id,
    url=DECLARED.url,
    name=DECLARED.name,
    platform=DECLARED.platform,
    series_id=DECLARED.series,
    company_id=DECLARED.company,
    max_delay_seconds=DECLARED.max_delay_seconds,
    origin=DECLARED.origin,
    host="a.test",
    shard=shard_of("a.test"),
    config={"n": 1},
    tier="hot",
    tier_pinned=True,
    status="active",
    status_reason=None,
    version=1,
    poll_status="PENDING",
    poll_ended_at=None,
    poll_shard=shard_of("a.test"),
    poll_priority=Tier.HOT.priority,
    poll_url=DECLARED.url,
)
OFF = {"status": "disabled", "poll_status": "SKIPPED", "poll_ended_at": NOON}


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"poll_status": "PROCESSING", "poll_url": "https://a.test/old"},
        {"status": "open", "status_reason": "5 failures"},
        OFF | {"status_reason": "ops: too slow"},
        OFF | {"poll_status": None},
    ],
    ids=["as declared", "running", "breaker open", "disabled by an operator", "never polled"],
)
def test_a_source_that_matches_its_declaration_is_unchanged(stored: dict[str, Any]) -> None:
    assert is_unchanged(DECLARED, STORED._replace(**stored))


@pytest.mark.parametrize(
    "stored",
    [
        *({name: "other"} for name in ("url", "name", "platform", "origin", "host")),
        *({name: "other"} for name in ("series_id", "company_id", "tier", "poll_url")),
        *({name: 32_768} for name in ("shard", "poll_shard", "poll_priority")),
        {"config": {}},
        {"config": {"n": True}},
        {"config": {"n": 1.0}},
        {"tier_pinned": False},
        {"version": None},
        {"poll_status": None},
        {"poll_status": "FAILED"},
        {"poll_status": "SKIPPED"},
        OFF | {"status_reason": BY_FILE},
        OFF | {"poll_status": "PENDING", "poll_ended_at": None},
    ],
    ids=str,
)
def test_any_difference_from_the_declaration_is_a_change(stored: dict[str, Any]) -> None:
    assert not is_unchanged(DECLARED, STORED._replace(**stored))


def test_a_disabled_declaration_matches_a_disabled_source_only() -> None:
    off = dataclasses.replace(DECLARED, enabled=False)

    assert not is_unchanged(off, STORED)
    assert is_unchanged(off, STORED._replace(**OFF, status_reason=BY_FILE))


def test_registering_unchanged_sources_writes_and_locks_nothing(store: Store) -> None:
    definitions = [dataclasses.replace(DECLARED, id=f"series:{n}", series=f"s{n}") for n in range(3)]
    off = dataclasses.replace(DECLARED, id="series:off", series="off", enabled=False)
    with store.begin() as connection:
        register(connection, [*definitions, off], now=NOON)

    with store.begin() as connection:
        before = write_marker(connection)
        registered = register(connection, [*definitions, off], now=NOON)

        assert write_marker(connection) == before
    assert registered == Registered(added=0, updated=0, unchanged=4)


def write_marker(connection: Connection) -> object:
    """Return a value that changes when a row is written or, on PostgreSQL, locked."""
    if connection.dialect.name == "sqlite":
        driver: Any = connection.connection.dbapi_connection
        return driver.total_changes
    return connection.execute(text("SELECT pg_current_xact_id_if_assigned()::text")).scalar_one()


def test_ids_are_random_uuid4() -> None:
    ids = random_ids(100)

    assert len(set(ids)) == 100
    assert all(str(UUID(id_)) == id_ and UUID(id_).version == 4 for id_ in ids)
    assert {UUID(id_).variant for id_ in ids} == {UUID(int=0x8 << 60).variant}
