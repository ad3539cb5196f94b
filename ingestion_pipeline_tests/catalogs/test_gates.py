"""The gates of a new dataset, as tables."""

import pytest

from ingestion_pipeline.catalogs.datasets.publishing import DatasetNumbers, RecordPages, evaluate_gates
from ingestion_pipeline.settings.groups import Extraction

LIMITS = Extraction()  # a drop of 30 % and 5 items, half of a field, a fifth unproved


def dataset_numbers(items: int, *, named: int | None = None, flagged: int = 0) -> DatasetNumbers:
    stated = items if named is None else named
    return DatasetNumbers(items=items, flagged=flagged, fields={"course_id": stated})


@pytest.mark.parametrize(
    ("new", "before", "codes"),
    [
        (dataset_numbers(0), None, []),
        (dataset_numbers(0), dataset_numbers(0), []),
        (dataset_numbers(0), dataset_numbers(1), ["empty_after_full"]),
        (dataset_numbers(70), dataset_numbers(100), []),
        (dataset_numbers(69), dataset_numbers(100), ["dropped"]),
        (dataset_numbers(2), dataset_numbers(6), []),
        (dataset_numbers(1), dataset_numbers(6), ["dropped"]),
        (dataset_numbers(200), dataset_numbers(100), []),
        (dataset_numbers(100, named=50), dataset_numbers(100), []),
        (dataset_numbers(100, named=49), dataset_numbers(100), ["lost_field"]),
        (dataset_numbers(100, named=0), dataset_numbers(100, named=0), []),
        (dataset_numbers(50, named=10), dataset_numbers(100), ["dropped", "lost_field"]),
        (dataset_numbers(10, flagged=2), None, []),
        (dataset_numbers(10, flagged=3), None, ["unproved"]),
    ],
)
def test_a_dataset_is_compared_with_the_last_good_one(
    new: DatasetNumbers, before: DatasetNumbers | None, codes: list[str]
) -> None:
    findings = evaluate_gates(new, before, required=["course_id"], limits=LIMITS)

    assert [finding.code for finding in findings] == codes
    assert all(finding.message for finding in findings)


@pytest.mark.parametrize(
    ("items", "before", "total", "without", "codes"),
    [
        (0, None, 24, 24, ["empty_first"]),
        (0, None, 0, 0, ["empty_first"]),
        (4, None, 24, 20, ["mostly_failed"]),
        (11, None, 24, 13, ["mostly_failed"]),
        (12, None, 24, 12, []),
        (24, None, 24, 0, []),
        (0, dataset_numbers(0), 24, 24, []),
        (24, dataset_numbers(24), 24, 13, []),
    ],
)
def test_a_first_dataset_is_evaluated_by_its_own_pages(
    items: int, before: DatasetNumbers | None, total: int, without: int, codes: list[str]
) -> None:
    pages = RecordPages(total=total, without=without)

    findings = evaluate_gates(dataset_numbers(items), before, required=[], limits=LIMITS, pages=pages)

    assert [finding.code for finding in findings] == codes
    assert all(finding.message for finding in findings)


@pytest.mark.parametrize(("failed", "codes"), [(2, []), (3, ["failed_lists"])])
def test_a_first_dataset_whose_lists_mostly_failed_is_quarantined(failed: int, codes: list[str]) -> None:
    pages = RecordPages(total=4, without=0, lists=4, failed_lists=failed)

    findings = evaluate_gates(dataset_numbers(4), None, required=[], limits=LIMITS, pages=pages)

    assert [finding.code for finding in findings] == codes
    assert all(f"{failed} of 4 lists" in finding.message for finding in findings)


@pytest.mark.parametrize(("count_before", "codes"), [(95, ["lost_field"]), (60, [])])
def test_the_loss_of_an_optional_field_is_found_if_nearly_all_items_had_it(count_before: int, codes: list[str]) -> None:
    before = DatasetNumbers(items=100, fields={"course_credits_max": count_before})
    new = DatasetNumbers(items=100, fields={"course_credits_max": 0})

    assert [finding.code for finding in evaluate_gates(new, before, required=[], limits=LIMITS)] == codes
