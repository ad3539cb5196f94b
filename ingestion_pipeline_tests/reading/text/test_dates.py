from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.reading.text import values
from ingestion_pipeline.reading.text.values import DateReader, read_date
from ingestion_pipeline_tests.reading.tables import table

NOW = datetime(2026, 3, 10, 12, 34, 56, tzinfo=UTC)


@pytest.mark.parametrize(("text", "expected"), table(__file__, "test_an_absolute_date_does_not_depend_on_now"))
def test_an_absolute_date_does_not_depend_on_now(text: str, expected: datetime) -> None:
    assert read_date(text, now=None) == expected
    assert read_date(text, now=NOW) == expected


@pytest.mark.parametrize(("text", "expected"), table(__file__, "test_a_relative_date_counts_from_the_time_of_fetching"))
def test_a_relative_date_counts_from_the_time_of_fetching(text: str, expected: datetime) -> None:
    assert read_date(text, now=NOW) == expected
    assert read_date(text, now=None) is None


def test_a_relative_date_is_the_same_a_moment_later() -> None:
    later = NOW + timedelta(seconds=3)

    assert read_date("2 hours ago", now=NOW) == read_date("2 hours ago", now=later)


def test_a_date_in_numbers_is_read_as_its_language_writes_it() -> None:
    assert read_date("02/10/2014", now=NOW, day_first=True) == datetime(2014, 10, 2, tzinfo=UTC)


@pytest.mark.parametrize("text", ["2026-03-12", "March 12, 2026", "1774000000"])
def test_a_date_in_the_future_is_not_a_date(text: str) -> None:
    assert read_date(text, now=NOW) is None
    assert read_date(text, now=NOW + timedelta(days=365)) is not None


def test_a_date_one_day_ahead_is_accepted() -> None:
    assert read_date("2026-03-11T12:00:00Z", now=NOW) == datetime(2026, 3, 11, 12, tzinfo=UTC)


def test_a_field_without_dates_is_cheap_and_does_not_hide_a_plain_date() -> None:
    reader = DateReader(now=NOW)
    before = values._worded.cache_info().misses

    dates_read = [reader.read(f"Chapter {number}") for number in range(2_000) for _ in range(2)]

    assert set(dates_read) == {None}
    assert values._worded.cache_info().misses - before == values.MAX_UNREAD
    assert reader.read("2026-03-01") == datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "text", ["", "12", "2026", "soon", "Chapter 12", "99999999999999", "-", "0001-01-01", "New", "in 3 days"]
)
def test_text_that_is_not_a_date_gives_none(text: str) -> None:
    assert read_date(text, now=NOW) is None


@pytest.mark.slow
@given(text=st.text(max_size=60) | st.text("0123456789-/: agodysthe", max_size=30))
def test_no_text_raises(text: str) -> None:
    parsed = read_date(text, now=NOW)

    assert parsed is None or parsed.tzinfo is UTC
