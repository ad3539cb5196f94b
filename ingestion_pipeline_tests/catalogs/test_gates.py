"""What holds a new dataset back: the gates as a table."""

from __future__ import annotations

import pytest

from ingestion_pipeline.catalogs.datasets.gates import DatasetNumbers, RecordPages, evaluate_gates
from ingestion_pipeline.settings.systems import Extraction

LIMITS = Extraction()  # a drop of 30 % and 5 items, half of a field, a fifth unproved


def holding(items: int, *, named: int | None = None, flagged: int = 0) -> DatasetNumbers:
    stated = items if named is None else named
    return DatasetNumbers(items=items, flagged=flagged, fields={"course_id": stated})


@pytest.mark.parametrize(
    ("new", "before", "codes"),
    [
        (holding(0), None, []),
        (holding(0), holding(0), []),
        (holding(0), holding(1), ["empty_after_full"]),
        (holding(70), holding(100), []),
        (holding(69), holding(100), ["dropped"]),
        (holding(2), holding(6), []),
        (holding(1), holding(6), ["dropped"]),
        (holding(200), holding(100), []),
        (holding(100, named=50), holding(100), []),
        (holding(100, named=49), holding(100), ["lost_field"]),
        (holding(100, named=0), holding(100, named=0), []),
        (holding(50, named=10), holding(100), ["dropped", "lost_field"]),
        (holding(10, flagged=2), None, []),
        (holding(10, flagged=3), None, ["unproved"]),
    ],
)
def test_a_dataset_is_judged_against_the_last_good_one(
    new: DatasetNumbers, before: DatasetNumbers | None, codes: list[str]
) -> None:
    found = evaluate_gates(new, before, required=["course_id"], limits=LIMITS)

    assert [one.code for one in found] == codes
    assert all(one.message for one in found)


@pytest.mark.parametrize(
    ("items", "before", "total", "without", "codes"),
    [
        (0, None, 24, 24, ["empty_first"]),
        (0, None, 0, 0, ["empty_first"]),
        (4, None, 24, 20, ["mostly_failed"]),
        (11, None, 24, 13, ["mostly_failed"]),
        (12, None, 24, 12, []),
        (24, None, 24, 0, []),
        (0, holding(0), 24, 24, []),
        (24, holding(24), 24, 13, []),
    ],
)
def test_a_first_dataset_is_judged_by_its_own_pages(
    items: int, before: DatasetNumbers | None, total: int, without: int, codes: list[str]
) -> None:
    pages = RecordPages(total=total, without=without)

    found = evaluate_gates(holding(items), before, required=[], limits=LIMITS, pages=pages)

    assert [one.code for one in found] == codes
    assert all(one.message for one in found)


@pytest.mark.parametrize(("failed", "codes"), [(2, []), (3, ["failed_lists"])])
def test_a_first_dataset_of_which_most_lists_failed_is_held_back(failed: int, codes: list[str]) -> None:
    pages = RecordPages(total=4, without=0, lists=4, failed_lists=failed)

    found = evaluate_gates(holding(4), None, required=[], limits=LIMITS, pages=pages)

    assert [finding.code for finding in found] == codes
    assert all(f"{failed} of 4 lists" in finding.message for finding in found)


@pytest.mark.parametrize(("had", "codes"), [(95, ["lost_field"]), (60, [])])
def test_a_field_that_need_not_be_there_is_missed_if_nearly_all_had_it(had: int, codes: list[str]) -> None:
    before = DatasetNumbers(items=100, fields={"course_credits_max": had})
    new = DatasetNumbers(items=100, fields={"course_credits_max": 0})

    assert [one.code for one in evaluate_gates(new, before, required=[], limits=LIMITS)] == codes
