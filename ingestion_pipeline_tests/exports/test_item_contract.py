"""Published items are checked against their entity type; violations are named."""

import tracemalloc
from typing import Any

import pytest
from sqlalchemy import update

from ingestion_pipeline.exports.contracts import item_findings, run_item_findings
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import data_items, datasets, pages
from ingestion_pipeline_tests.exports.datasets import ABSENT, COLLEGE, a_course, a_dataset


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
