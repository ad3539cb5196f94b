"""Exported values: unique ids, exact numbers, absolute URLs."""

from collections import Counter
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.exports.exported_items import Ids, absolute, could_be_taken
from ingestion_pipeline.exports.formats import exact, shortest

# Few letters and many numbers: ids that repeat, and ids that look like another's suffix.
IDS = st.lists(st.sampled_from(["A", "A-2", "A-3", "A-2-2", "B", "B-1", "-2"]), max_size=30)


def export_ids(ids_stated: list[str]) -> list[str]:
    repeated = {id_ for id_, times in Counter(ids_stated).items() if times > 1}
    ids = Ids(repeated, {text for text in ids_stated if could_be_taken(text, repeated)})
    return [ids.unique(text) for text in ids_stated]


@given(IDS)
def test_exported_ids_are_unique_and_the_first_of_each_is_unchanged(ids: list[str]) -> None:
    unique = export_ids(ids)

    assert len(set(unique)) == len(unique)
    firsts = {text: ids.index(text) for text in ids}
    assert all(unique[place] == id_ for id_, place in firsts.items())


@given(IDS)
def test_a_repeated_id_only_gains_a_numeric_suffix(ids: list[str]) -> None:
    assert all(
        new == old or (new.startswith(f"{old}-") and new.removeprefix(f"{old}-").isdigit())
        for old, new in zip(ids, export_ids(ids), strict=True)
    )


def test_suffixes_count_from_two() -> None:
    assert export_ids(["A", "B", "A", "A"]) == ["A", "B", "A-2", "A-3"]


@given(st.decimals(allow_nan=False, allow_infinity=False, places=9, max_value=10**20))
def test_a_decimal_keeps_its_value_and_loses_its_zeros(number: Decimal) -> None:
    assert exact(number) == number
    assert Decimal(shortest(number)) == number
    assert "E" not in shortest(number)
    assert not ("." in shortest(number) and shortest(number).endswith("0"))


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (3, Decimal(3)),
        (0.1, Decimal("0.1")),
        ("1.50", Decimal("1.5")),
        ("1E+2", Decimal(100)),
        ("0.12345678949", Decimal("0.123456789")),
        ("9" * 30, None),
        ("NaN", None),
        ("three", None),
        (True, None),
        (None, None),
    ],
)
def test_a_number_is_exact_or_null(value: object, number: Decimal | None) -> None:
    assert exact(value) == number


@pytest.mark.parametrize(
    ("url", "absolute_url"),
    [
        ("/a?b=1", "https://x.test/a?b=1"),
        ("b", "https://x.test/list/b"),
        ("//y.test/c", "https://y.test/c"),
        ("http://y.test/d", "http://y.test/d"),
        ("http://[half", "http://[half"),
        (None, None),
    ],
)
def test_a_url_is_made_absolute_or_left_unchanged(url: str | None, absolute_url: str | None) -> None:
    assert absolute(url, "https://x.test/list/") == absolute_url
