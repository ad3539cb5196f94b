"""Published rows and items are checked against their contracts, and every column says what it is."""

import re
import tracemalloc
from typing import Any

import pytest
from sqlalchemy import insert, update

from ingestion_pipeline.catalogs.extraction.entity_type import entity_types
from ingestion_pipeline.engine.system_spec import ColumnType
from ingestion_pipeline.exports.contracts import (
    CONTRACTS,
    cases_of,
    contract_findings,
    findings,
    item_findings,
    run_item_findings,
)
from ingestion_pipeline.exports.export_request import ITEMS, PUBLISHED, ExportRequest
from ingestion_pipeline.exports.exported_items import ITEM_ROWS, item_columns
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import data_items, datasets, job_listings, pages, sources
from ingestion_pipeline.store.tables.metadata import SHARED_COMMENTS
from ingestion_pipeline_tests.builders import NOON, a_definition
from ingestion_pipeline_tests.exports.datasets import ABSENT, COLLEGE, a_course, a_dataset
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
        "first_listed_at": NOON,
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


def findings_of(store: Store, **filters: Any) -> list[tuple[str, str]]:
    with store.read() as connection:
        findings = item_findings(connection, **filters)
    assert all(finding.is_error for finding in findings)
    return [(finding.subject, finding.message.split(";")[0]) for finding in findings]


def test_valid_items_have_no_findings(store: Store) -> None:
    a_dataset(store, [a_course(course_credits_max="3.5", course_non_credit=False), a_course("CS 102")])

    assert findings_of(store) == []


@pytest.mark.parametrize(
    ("changes", "field", "expected"),
    [
        ({"course_name": None}, "course_name", "stated and proved: the type requires it, not noth"),
        ({"grounding": {"course_name": ABSENT}}, "course_name", "stated and proved"),
        ({"course_credits_max": "three"}, "course_credits_max", "of its field's kind, not 'three'"),
        ({"course_non_credit": "no"}, "course_non_credit", "of its field's kind"),
        ({"course_name": ["x"]}, "course_name", "of its field's kind"),
        ({"course_credits_type": "Doubloons"}, "course_credits_type", "of its field's kind"),
        (
            {"course_prerequisites": "CS 1", "grounding": {"course_prerequisites": None}},
            "course_prerequisites",
            "stated with its evidence, not none",
        ),
    ],
)
def test_an_invalid_item_is_named_with_its_field(
    store: Store, changes: dict[str, Any], field: str, expected: str
) -> None:
    a_dataset(store, [a_course("CS 100"), a_course("CS 101", **changes)])

    [(subject, message)] = findings_of(store)

    assert subject == f"data_items.{field}"
    assert message.startswith(f"{field} must be {expected}")
    assert message.endswith("rows 2")


def test_unpublished_items_are_not_checked(store: Store) -> None:
    invalid_course = a_course("CS 102", course_name=None)
    a_dataset(store, [a_course(), {**invalid_course, "is_flagged": True}, {**invalid_course, "is_repeat": True}])
    a_dataset(store, [invalid_course], version=2, status="quarantined")

    assert findings_of(store) == []
    assert findings_of(store, source_ids=["catalog:other"]) == []


def test_an_unknown_type_is_named_with_its_source(store: Store) -> None:
    a_dataset(store, [a_course()])
    with store.begin() as connection:
        connection.execute(update(datasets).values(entity_type="sonnet"))

    [(subject, message)] = findings_of(store)

    assert subject == "data_items.entity_type"
    assert f"not sonnet: rows {COLLEGE}" in message


def test_a_key_stated_by_two_pages_is_not_unique(store: Store) -> None:
    a_dataset(store, [a_course("CS 1"), a_course("CS 2")])
    a_dataset(store, [], source_id="catalog:other")  # for its page
    with store.begin() as connection:
        connection.execute(
            update(data_items).values(item_key="cs", page_id=data_items.c.id)  # 1 and 2
        )

    assert findings_of(store) == [("data_items.item_key", "item_key must be unique in its dataset, not cs: rows 1")]


@pytest.mark.slow
def test_a_dataset_is_checked_in_bounded_memory(store: Store) -> None:
    text = "x" * 10_000
    a_dataset(store, [a_course(f"CS {n}", course_description=text) for n in range(1_200)])

    tracemalloc.start()
    findings = findings_of(store)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert findings == []
    assert peak < 10_000_000  # of twelve million characters, which are there twice: read and parsed


def test_a_limited_number_of_the_items_of_a_run_is_checked(store: Store) -> None:
    invalid_course = a_course("CS 102", course_name=["x"])
    a_dataset(store, [a_course(), invalid_course, {**invalid_course, "is_flagged": True, "item_key": "f"}])
    a_dataset(store, [invalid_course], version=2, status="building")
    with store.begin() as connection:
        connection.execute(update(pages).values(run_id="mine"))

    def rows(run_id: str | None, most: int = 10) -> list[str]:
        with store.read() as connection:
            findings = run_item_findings(connection, [COLLEGE], run_id=run_id, most=most)
        return [finding.message.split(": ")[1].split(";")[0] for finding in findings]

    assert rows("mine") == ["rows 4"]  # of the last extraction
    assert rows("mine", most=0) == rows("another") == rows(None) == []


PLAIN = {"the", "a", "an", "of", "its", "it", "is", "in", "at", "row", "null", "utc", "which"}
HEALTH = CONTRACTS["source_health"]
ROWS = {**PUBLISHED, HEALTH.export: HEALTH.table, ITEMS: ITEM_ROWS}
COLUMNS = {
    **{name: rows.export_columns() for name, rows in ROWS.items()},
    ITEMS: item_columns(ExportRequest(name="competency", with_flagged=True), []),
}


def significant_words(text: str) -> set[str]:
    """Return the significant words of a text, in the singular."""
    all_words = re.findall("[a-z]+", text.lower().replace("_", " "))
    return {word.removesuffix("s") for word in all_words if word not in PLAIN}


def described_columns(export: str) -> list[str]:
    fields = {field.name for kind in entity_types().values() for field in kind.fields}
    skipped = fields if export == ITEMS else set[str]()
    return [column.name for column in COLUMNS[export] if column.name not in skipped]


@pytest.mark.parametrize("export", COLUMNS)
def test_a_column_meaning_adds_to_its_name(export: str) -> None:
    for name in described_columns(export):
        text = ROWS[export].meaning(name)
        assert len(text.split()) >= 3, name
        assert len(significant_words(text) - significant_words(name)) >= 2, f"{name}: {text}"


@pytest.mark.parametrize("export", PUBLISHED)
def test_a_nullable_column_says_when_it_is_null(export: str) -> None:
    table = PUBLISHED[export].table
    for name in described_columns(export):
        own = table.columns.get(name)
        may_be_null = own is None or (own.nullable and not own.primary_key)
        assert ("null" in ROWS[export].meaning(name)) is may_be_null, name


@pytest.mark.parametrize("export", COLUMNS)
def test_times_money_and_shares_have_their_unit(export: str) -> None:
    for column in COLUMNS[export]:
        if column.name not in described_columns(export):
            continue
        text = ROWS[export].meaning(column.name)
        assert (column.holds is not ColumnType.TIME) or "UTC" in text, column.name
        assert (column.holds is not ColumnType.JSON) or "JSON" in text, column.name
        assert "usd" not in column.name or "US dollars" in text, column.name
        assert not column.name.endswith("_ms") or "milliseconds" in text, column.name
        assert not column.name.endswith("_bytes") or "bytes" in text, column.name


def test_every_described_column_is_computed_by_its_export() -> None:
    columns = {name: {column.name for column in exported} for name, exported in COLUMNS.items()}

    assert [(export, name) for export in ROWS for name in ROWS[export].meanings if name not in columns[export]] == []
    assert set(SHARED_COMMENTS) <= {name for names in columns.values() for name in names}


def test_a_column_without_a_meaning_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"chapters\.colour"):
        PUBLISHED["chapters"].meaning("colour")
