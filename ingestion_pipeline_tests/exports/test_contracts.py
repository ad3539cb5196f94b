"""What is published keeps its contract; what breaks it is named, with the row and the cure."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import insert, update

from ingestion_pipeline.exports.contracts import CONTRACTS, cases_in, cases_of, contract_findings, findings
from ingestion_pipeline.exports.frames import to_frame
from ingestion_pipeline.exports.tables import table_columns
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


OF_TABLES = [one for one in CONTRACTS.values() if not one.own]


def test_what_keeps_its_contract_is_not_mentioned(store: Store) -> None:
    a_listing(store)
    given_sources(store, a_definition())

    assert [contract_findings(store, one, most=100) for one in OF_TABLES] == [[]] * len(OF_TABLES)


def test_a_broken_value_is_named_with_its_row_and_the_cure(store: Store) -> None:
    a_listing(store)
    bad = a_listing(store, status="ajar", url=None)

    (found,) = contract_findings(store, LISTINGS, most=100)

    assert found.subject == "job_listings.status"
    assert found.message.startswith(f"status must be one of open, closed, not ajar: rows {bad};")
    assert "correct the row" in found.message
    assert found.is_error


def test_an_odd_address_is_a_warning(store: Store) -> None:
    bad = a_listing(store, url="ftp://a.test/1")

    (found,) = contract_findings(store, LISTINGS, most=100)

    assert not found.is_error
    assert f"rows {bad};" in found.message


def test_only_the_partitions_of_the_run_are_looked_at(store: Store) -> None:
    given_sources(store, a_definition(), a_definition(id="series:other"))
    with store.begin() as connection:
        connection.execute(update(sources).where(sources.c.id == "series:other").values(url="ftp://a.test/"))

    contract = CONTRACTS["sources"]
    assert contract_findings(store, contract, ["series:solo"], most=100) == []
    assert len(contract_findings(store, contract, ["series:solo", "series:other"], most=100)) == 1


def test_of_many_rows_the_newest_are_looked_at(store: Store) -> None:
    a_listing(store, status="ajar")
    a_listing(store)

    assert contract_findings(store, LISTINGS, most=1) == []
    assert len(contract_findings(store, LISTINGS, most=2)) == 1


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=list(CONTRACTS))
def test_a_rule_is_of_a_column_that_is_published(contract: Any) -> None:
    assert set(contract.rules) <= {one.name for one in contract.columns()}


LONG = "x" * 100
VALUES: list[dict[str, Any]] = [
    {},
    {"title": None},
    {"url": None, "remote": None, "verdict": None},
    {"url": "ftp://a.test/"},
    {"url": "https://a.test/\n"},
    {"url": ""},
    {"status": "ajar"},
    {"status": ""},
    {"remote": LONG},
    {"verdict": "skipped", "title": ""},
    {"id": 3},
    {"id": None},
    {"title": None, "status": "no", "url": "x", "remote": "y"},
]


def test_rows_and_frames_are_held_against_a_contract_alike() -> None:
    """A poll has no time for pandas: what it finds row by row is what pandera would have found."""
    columns = table_columns("job_listings")
    base = {one.name: None for one in columns} | {"title": "Cook", "status": "open"}
    rows = [base | {"id": place} | changes for place, changes in enumerate(VALUES)]
    frame = to_frame(columns, iter([[[row[one.name] for one in columns] for row in rows]]))

    def told(cases: Any) -> set[tuple[str, str, bool, str]]:
        found = findings(LISTINGS, cases)
        rows_of = [one.message.split(": rows ")[1].split(";")[0] for one in found]
        return {
            (one.subject, one.message.split(", not ")[0], one.is_error, rows)
            for one, rows in zip(found, rows_of, strict=True)
        }

    by_row = told(one for one in cases_of(rows, LISTINGS) if one.column != "id")
    by_frame = told(one for one in cases_in(frame, LISTINGS) if one.column != "id")

    assert by_row == by_frame
    assert len(by_row) == 4
    ids = {"id must be unique and never missing"}
    assert {one[1] for one in told(cases_of(rows, LISTINGS))} >= ids
    assert {one[1] for one in told(cases_in(frame, LISTINGS))} >= ids


def test_a_flood_of_broken_rows_is_counted_and_not_kept() -> None:
    rows = ({"id": place, "status": f"word {place}"} for place in range(10_000))

    (found,) = findings(LISTINGS, cases_of(rows, LISTINGS))

    assert "not word 0, word 1, word 2: rows 0, 1," in found.message
    assert " and 9980 more;" in found.message
    assert len(found.message) < 400
