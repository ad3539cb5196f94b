"""A source that matches its declaration is neither written nor locked."""

import dataclasses
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, text

from ingestion_pipeline.sources.registry import BY_FILE, Registered, StoredSource, is_unchanged, random_ids, register
from ingestion_pipeline.sources.source import Tier, shard_of
from ingestion_pipeline.store import Store
from ingestion_pipeline_tests.builders import NOON, a_definition

pytestmark = pytest.mark.both_databases

DECLARED = a_definition(url="https://a.test/feed", platform="rss", name="Solo", config={"n": 1}, tier=Tier.HOT)
STORED = StoredSource(
    id=DECLARED.id,
    url=DECLARED.url,
    name=DECLARED.name,
    platform=DECLARED.platform,
    series_id=DECLARED.series,
    company_id=DECLARED.company,
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
