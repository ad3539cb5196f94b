"""Published tables are checked against their contract; violations name the row and the cure."""

from typing import Any

import pytest
from sqlalchemy import insert, update

from ingestion_pipeline.exports.contracts import CONTRACTS, cases_of, contract_findings, findings
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import job_listings, sources
from ingestion_pipeline_tests.builders import NOON, a_definition
from ingestion_pipeline_tests.polling_runs import add_sources

LISTINGS = CONTRACTS["job_listings"]


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


OF_TABLES = [contract for contract in CONTRACTS.values() if not contract.table.own]


@pytest.mark.slow
def test_valid_rows_have_no_findings(store: Store) -> None:
    a_listing(store)
    add_sources(store, a_definition())

    assert [contract_findings(store, contract, most=100) for contract in OF_TABLES] == [[]] * len(OF_TABLES)


@pytest.mark.slow
def test_a_broken_value_is_named_with_its_row_and_the_cure(store: Store) -> None:
    a_listing(store)
    broken_id = a_listing(store, status="ajar", url=None)

    (finding,) = contract_findings(store, LISTINGS, most=100)

    assert finding.subject == "job_listings.status"
    assert finding.message.startswith(f"status must be one of open, closed, not ajar: rows {broken_id};")
    assert "correct the row" in finding.message
    assert finding.is_error


def test_an_odd_address_is_a_warning(store: Store) -> None:
    broken_id = a_listing(store, url="ftp://a.test/1")

    (finding,) = contract_findings(store, LISTINGS, most=100)

    assert not finding.is_error
    assert f"rows {broken_id};" in finding.message


def test_only_the_partitions_of_the_run_are_checked(store: Store) -> None:
    add_sources(store, a_definition(), a_definition(id="series:other"))
    with store.begin() as connection:
        connection.execute(update(sources).where(sources.c.id == "series:other").values(url="ftp://a.test/"))

    contract = CONTRACTS["sources"]
    assert contract_findings(store, contract, ["series:solo"], most=100) == []
    assert len(contract_findings(store, contract, ["series:solo", "series:other"], most=100)) == 1


def test_the_newest_of_many_rows_are_checked(store: Store) -> None:
    a_listing(store, status="ajar")
    a_listing(store)

    assert contract_findings(store, LISTINGS, most=1) == []
    assert len(contract_findings(store, LISTINGS, most=2)) == 1


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=list(CONTRACTS))
def test_every_rule_belongs_to_a_published_column(contract: Any) -> None:
    assert set(contract.rules) <= {column.name for column in contract.columns()}


LONG = "x" * 100
VALUES: list[dict[str, Any]] = [
    {},
    {"title": None},
    {"url": None, "remote": None, "decision": None},
    {"url": "ftp://a.test/"},
    {"url": "https://a.test/\n"},
    {"url": ""},
    {"status": "ajar"},
    {"status": ""},
    {"remote": LONG},
    {"decision": "skipped", "title": ""},
    {"id": 3},
    {"id": None},
    {"title": None, "status": "no", "url": "x", "remote": "y"},
]


def test_each_broken_rule_is_one_finding_with_its_rows() -> None:
    rows = [{"id": number, "title": "Cook", "status": "open"} | changes for number, changes in enumerate(VALUES)]

    broken = findings(LISTINGS, cases_of(rows, LISTINGS))

    assert {
        (finding.subject, finding.is_error): finding.message.split(": rows ")[1].split(";")[0] for finding in broken
    } == {
        ("job_listings.id", True): "3, None",
        ("job_listings.title", True): "1, 12",
        ("job_listings.url", False): "3, 5, 12",
        ("job_listings.status", True): "6, 7, 12",
        ("job_listings.remote", True): "8, 12",
    }


def test_many_broken_rows_are_counted_in_a_bounded_message() -> None:
    rows = ({"id": number, "status": f"word {number}"} for number in range(10_000))

    (finding,) = findings(LISTINGS, cases_of(rows, LISTINGS))

    assert "not word 0, word 1, word 2: rows 0, 1," in finding.message
    assert " and 9980 more;" in finding.message
    assert len(finding.message) < 400
