"""Credits in the forms that catalogs use, and numbers that are none."""

from decimal import Decimal

import pytest

from ingestion_pipeline.catalogs.extraction.rules.course_words import (
    leading_credits,
    read_credits,
    slot_credits,
    trailing_credits,
)


@pytest.mark.parametrize(
    ("text", "low", "high", "kind"),
    [
        ("3.000 Credit hours", "3.000", None, None),
        ("1.000 TO     6.000 Credit hours", "1.000", "6.000", None),
        ("0.000 OR 3.000 Credit hours", "0.000", "3.000", None),
        ("Credit Hours: 1.0", "1.0", None, None),
        ("Credits 1 to 4. 1 to 4 Other Hours.", "1", "4", None),
        ("(Cross-listed with CPR E). (3-0) Cr. 3.", "3", None, None),
        ("3 cr.", "3", None, None),
        ("1 Course Unit", "1", None, None),
        ("3 semester hours", "3", None, "SemesterHour"),
        ("5 quarter credits", "5", None, "QuarterHour"),
        ("Units: 3-5", "3", "5", None),
        ("3 credit(s) At least 1x fall or spring", "3", None, None),
        ("7.5 ECTS", "7.5", None, None),
        ("7,5 LP", "7.5", None, None),
        ("6 Units of Credit", "6", None, None),
        ("4 単位", "4", None, None),
        ("Units: 3-0-9", "12", None, None),
    ],
)
def test_a_line_states_credits(text: str, low: str, high: str | None, kind: str | None) -> None:
    stated = read_credits(text)

    assert stated is not None
    assert stated.low == Decimal(low)
    assert stated.high == (Decimal(high) if high else None)
    assert stated.kind == kind


@pytest.mark.parametrize(
    "text",
    [
        *("3.000 Lecture hours", "Lecture Contact Hours: 3", "Lab Contact Hours: 0", "Room 3"),
        *("Carries no credit toward the major.", "120 credits", "credit for 2019 work", "$300 credits"),
    ],
)
def test_hours_of_teaching_sums_and_prose_are_no_credits(text: str) -> None:
    assert read_credits(text) is None


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [("3", "3", None), ("[0.50]", "0.50", None), ("1 - 4", "1", "4"), ("2-4-6 units", "12", None)],
)
def test_in_a_slot_a_number_is_enough(text: str, low: str, high: str | None) -> None:
    stated = slot_credits(text)

    assert stated is not None
    assert stated.low == Decimal(low)
    assert stated.high == (Decimal(high) if high else None)


def test_continuing_education_units_and_non_credit_are_recognized() -> None:
    ceu, none = read_credits("CEUs: 9.6"), read_credits("Non-credit")

    assert ceu is not None
    assert (ceu.ceu, ceu.low) == (Decimal("9.6"), None)
    assert none is not None
    assert none.non_credit
    assert none.low is None


@pytest.mark.parametrize(
    "stated",
    [
        *("(3 cr.)", "(3 hrs.)", "(3)", "3 credits.", "Credit Hours: 3.00.", "Cr. 3. (3-0)."),
        *("Credits 3. 3 Lecture Hours.", "Units: 3;"),
    ],
)
def test_a_paragraph_may_begin_with_its_credits(stated: str) -> None:
    parsed = leading_credits(f"{stated} Who draws maps, and for whom.")

    assert parsed is not None
    assert parsed[0].low == 3
    assert parsed[1] == "Who draws maps, and for whom."


@pytest.mark.parametrize(
    ("text", "low"),
    [
        ("Sorting, searching and graphs. 3 credits.", 3),
        ("Sorting, searching and graphs. (4 units)", 4),
        ("Students who have earned 90 credits.", None),
        ("It may be repeated for up to 6 credits.", None),
    ],
)
def test_a_paragraph_may_end_with_its_credits(text: str, low: int | None) -> None:
    stated = trailing_credits(text)

    assert (stated.low if stated else None) == low


@pytest.mark.parametrize("text", ["(3 cr; A-F or Audit; offered Every Fall)", "3 Points of light"])
def test_a_remark_or_a_phrase_is_no_paragraph_with_credits(text: str) -> None:
    assert leading_credits(text) is None
