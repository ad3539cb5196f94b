from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.reading.dates import read_date

NOW = datetime(2026, 3, 10, 12, 34, 56, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-03-01T13:00:00+01:00", datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ("2026-03-01T12:00:00Z", datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ("2026-03-01", datetime(2026, 3, 1, tzinfo=UTC)),
        ("1772366400", datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ("1772366400000", datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ("March 1, 2026", datetime(2026, 3, 1, tzinfo=UTC)),
        ("02/10/2014", datetime(2014, 2, 10, tzinfo=UTC)),
    ],
)
def test_a_whole_date_needs_no_present(text: str, expected: datetime) -> None:
    assert read_date(text, now=None) == expected
    assert read_date(text, now=NOW) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2 days ago", datetime(2026, 3, 8, tzinfo=UTC)),
        ("yesterday", datetime(2026, 3, 9, tzinfo=UTC)),
        ("3 hours ago", datetime(2026, 3, 10, 9, tzinfo=UTC)),
        ("5 mins ago", datetime(2026, 3, 10, 12, 29, tzinfo=UTC)),
        ("1 week ago", datetime(2026, 3, 3, tzinfo=UTC)),
        ("March 1", datetime(2026, 3, 1, tzinfo=UTC)),
    ],
)
def test_a_relative_date_is_told_from_the_time_of_fetching(text: str, expected: datetime) -> None:
    assert read_date(text, now=NOW) == expected
    assert read_date(text, now=None) is None


def test_a_relative_date_is_the_same_a_moment_later() -> None:
    later = NOW + timedelta(seconds=3)

    assert read_date("2 hours ago", now=NOW) == read_date("2 hours ago", now=later)


@pytest.mark.parametrize("text", ["", "12", "2026", "soon", "Chapter 12", "99999999999999", "-"])
def test_what_is_no_date_is_none(text: str) -> None:
    assert read_date(text, now=NOW) is None


@given(text=st.text(max_size=60) | st.text("0123456789-/: agodysthe", max_size=30))
def test_no_text_is_too_strange(text: str) -> None:
    found = read_date(text, now=NOW)

    assert found is None or found.tzinfo is UTC
