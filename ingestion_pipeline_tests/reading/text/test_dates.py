from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.reading.text import values
from ingestion_pipeline.reading.text.values import DateReader, read_date

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
        ("Mar. 1st, 2026", datetime(2026, 3, 1, tzinfo=UTC)),
        ("1 Mar 2026", datetime(2026, 3, 1, tzinfo=UTC)),
        ("02/10/2014", datetime(2014, 2, 10, tzinfo=UTC)),
        ("25/12/2014", datetime(2014, 12, 25, tzinfo=UTC)),
        ("02.10.2014", datetime(2014, 10, 2, tzinfo=UTC)),
        ("2014/10/2", datetime(2014, 10, 2, tzinfo=UTC)),
        ("2014年10月2日", datetime(2014, 10, 2, tzinfo=UTC)),
        ("10 Mart 2024", datetime(2024, 3, 10, tzinfo=UTC)),
        ("1 de marzo de 2024", datetime(2024, 3, 1, tzinfo=UTC)),
    ],
)
def test_an_absolute_date_does_not_depend_on_now(text: str, expected: datetime) -> None:
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
        ("an hour ago", datetime(2026, 3, 10, 11, tzinfo=UTC)),
        ("2d ago", datetime(2026, 3, 8, tzinfo=UTC)),
        ("just now", datetime(2026, 3, 10, 12, 34, tzinfo=UTC)),
        ("3 months ago", datetime(2025, 12, 10, tzinfo=UTC)),
        ("hace 2 días", datetime(2026, 3, 8, tzinfo=UTC)),
        ("il y a 3 heures", datetime(2026, 3, 10, 9, tzinfo=UTC)),
        ("2 giờ trước", datetime(2026, 3, 10, 10, tzinfo=UTC)),
        ("2 дня назад", datetime(2026, 3, 8, tzinfo=UTC)),
        ("3 saat önce", datetime(2026, 3, 10, 9, tzinfo=UTC)),
        ("5分前", datetime(2026, 3, 10, 12, 29, tzinfo=UTC)),
        ("昨天", datetime(2026, 3, 9, tzinfo=UTC)),
        ("March 1", datetime(2026, 3, 1, tzinfo=UTC)),
        ("March 15", datetime(2025, 3, 15, tzinfo=UTC)),
    ],
)
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
