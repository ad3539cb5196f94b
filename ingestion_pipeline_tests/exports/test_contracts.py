"""What is published keeps its contract; what breaks it is named, with the row and the cure."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import insert, update

from ingestion_pipeline.exports.contracts import CONTRACTS, broken
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import job_listings, sources
from ingestion_pipeline_tests.builders import NOON, a_definition
from ingestion_pipeline_tests.pollers import given_sources

LISTINGS = CONTRACTS["job_listings"]


@pytest.fixture
def database() -> str:
    """A contract looks at frames: what the other database gives is the same."""
    return "sqlite"


def a_listing(store: Store, **changes: Any) -> int:
    values: dict[str, Any] = {
        "source_id": "job_board:acme",
        "fingerprint": "f",
        "title": "Cook",
        "url": "https://a.test/1",
        "status": "open",
        "quality": {},
        "content_hash": "c",
        "tracking_id": "t",
        "first_seen_at": NOON,
        "changed_at": NOON,
    }
    statement = insert(job_listings).values(**(values | changes))
    with store.begin() as connection:
        return connection.execute(statement.returning(job_listings.c.id)).scalar_one()


def test_what_keeps_its_contract_is_not_mentioned(store: Store) -> None:
    a_listing(store)
    given_sources(store, a_definition())

    assert [broken(store, one, most=100) for one in CONTRACTS.values()] == [[]] * len(CONTRACTS)


def test_a_broken_value_is_named_with_its_row_and_the_cure(store: Store) -> None:
    a_listing(store)
    bad = a_listing(store, status="ajar", url=None)

    (found,) = broken(store, LISTINGS, most=100)

    assert found.subject == "job_listings.status"
    assert found.message.startswith(f"status is to be one of open, closed, not ajar: rows {bad};")
    assert "correct the row" in found.message
    assert found.is_error


def test_an_odd_address_is_a_warning(store: Store) -> None:
    bad = a_listing(store, url="ftp://a.test/1")

    (found,) = broken(store, LISTINGS, most=100)

    assert not found.is_error
    assert f"rows {bad};" in found.message


def test_only_the_partitions_of_the_run_are_looked_at(store: Store) -> None:
    given_sources(store, a_definition(), a_definition(id="series:other"))
    with store.begin() as connection:
        connection.execute(
            update(sources).where(sources.c.id == "series:other").values(url="ftp://a.test/")
        )

    contract = CONTRACTS["sources"]
    assert broken(store, contract, ["series:solo"], most=100) == []
    assert len(broken(store, contract, ["series:solo", "series:other"], most=100)) == 1


def test_of_many_rows_the_newest_are_looked_at(store: Store) -> None:
    a_listing(store, status="ajar")
    a_listing(store)

    assert broken(store, LISTINGS, most=1) == []
    assert len(broken(store, LISTINGS, most=2)) == 1


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=list(CONTRACTS))
def test_a_rule_is_of_a_column_that_is_exported_and_every_column_is_described(
    contract: Any,
) -> None:
    names = [one.name for one in contract.columns()]

    assert set(contract.rules) <= set(names)
    assert sum(contract.describe(name) != name.replace("_", " ") for name in names) >= 3
