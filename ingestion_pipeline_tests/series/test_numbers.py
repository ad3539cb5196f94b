import json
import time
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.series.chapter import (
    chapter_number,
    missing_numbers,
    number_text,
    volume_text,
)
from ingestion_pipeline_tests.samples import sample

NUMBERS = st.decimals(min_value=0, max_value=999_999_999, places=5)


def from_mihon(number: float) -> Decimal | None:
    """Convert a number of Mihon, which writes -1 for an unknown one."""
    return None if number == -1 else Decimal(str(number))


@pytest.mark.parametrize(
    ("label", "series_title", "number"),
    [
        ("Mokushiroku Alice Vol.1 Ch.4.5: Mis", "Mokushiroku Alice", "4.5"),
        ("Bleach 567.a Down With Snowwhite", "Bleach", "567.1"),
        ("Ch.191-200 Read Online", "Solo Leveling", "191.2"),
        ("S3 - Chapter 20", "The Gamer", "20"),
        ("Ayame 14 1 - The summer of 14", "Ayame 14", "1"),
        ("027: Part 002: Chapter 001", "Tokyo ESP", "27"),
        ("Fairy Tail 404 omakevol002", "Fairy Tail", "404.98"),
        ("Vol. 2 Chapter 10", None, "10"),
        ("Chapter 86", "86", "86"),
        ("86 Chapter 12", "86", "12"),
        ("86.5", "86", "86.5"),
        ("第１２話", None, "12"),
        ("The 1st Night", None, "1"),
        (".5", None, "0.5"),
        ("1e5", None, "1"),
        (Decimal("1E+2"), None, "100"),
        (10.5, None, "10.5"),
        (7, None, "7"),
    ],
)
def test_a_label_names_its_number(label: str | Decimal | float, series_title: str | None, number: str) -> None:
    assert chapter_number(label, series_title) == Decimal(number)


@pytest.mark.parametrize(
    "label",
    [
        pytest.param(None, id="none"),
        pytest.param("", id="empty"),
        pytest.param("Foo", id="no-digit"),
        pytest.param("²", id="superscript"),
        pytest.param("-1", id="negative-text"),
        pytest.param(-1, id="negative"),
        pytest.param(Decimal("-0.5"), id="negative-decimal"),
        pytest.param(float("nan"), id="nan"),
        pytest.param(float("inf"), id="infinity"),
        pytest.param(Decimal("sNaN"), id="signalling-nan"),
        pytest.param(True, id="truth"),
        pytest.param("Chapter 1234567890", id="ten-digits"),
        pytest.param("Ch. 1.000001", id="six-decimals"),
        pytest.param(10**5000, id="huge"),
        pytest.param(Decimal("1E-999999"), id="tiny"),
    ],
)
def test_a_label_without_a_chapter_number_gives_none(label: str | Decimal | float | None) -> None:
    assert chapter_number(label) is None


@pytest.mark.parametrize(
    ("label", "volume"),
    [
        ("Vol.2 Ch.10", "2"),
        ("Volume 012, Chapter 5", "12"),
        ("Tome 3 - Chapitre 9", "3"),
        ("Band 7: Kapitel 70", "7"),
        ("v3c21", "3"),
        ("第3巻 第12話", "3"),
        ("Том 2 Глава 4", "2"),
        ("Chapter 10 v2", None),
        ("Season 2 Episode 4", None),
        ("Chapter 10", None),
        ("Vol. 20260301", None),
    ],
)
def test_a_label_names_its_volume_and_a_version_or_season_is_none(label: str, volume: str | None) -> None:
    assert volume_text(label) == volume


def test_a_volume_in_the_series_title_is_not_the_chapters_volume() -> None:
    assert volume_text("Band 9 Chapter 2", "Band 9") is None
    assert volume_text("Band 9 Vol. 1 Chapter 2", "Band 9") == "1"


def test_every_vector_of_mihon_holds() -> None:
    vectors = json.loads(sample("manga/chapter_numbers/mihon_chapter_recognition.json").read_text())

    wrong = [
        vector
        for vector in vectors
        if chapter_number(vector["chapter_name"], vector["series_title"]) != from_mihon(vector["expected"])
    ]

    assert len(vectors) == 57
    assert wrong == []


def test_45_is_one_number_however_it_is_written() -> None:
    spellings = ["45", "45.0", "045", "45.00", 45, 45.0, Decimal("45.000"), "Ch. 45", "+45"]

    assert {str(chapter_number(spelling)) for spelling in spellings} == {"45"}
    assert chapter_number("45.5") != chapter_number("45")


@given(NUMBERS)
def test_the_canonical_form_is_idempotent_and_equal(number: Decimal) -> None:
    once = Decimal(number_text(number))

    assert once == number
    assert Decimal(number_text(once)).as_tuple() == once.as_tuple()


@given(NUMBERS, st.integers(0, 5), st.integers(0, 5))
def test_padding_zeros_change_nothing(number: Decimal, leading: int, trailing: int) -> None:
    text = number_text(number)
    padded = "0" * leading + text + ("0" * trailing if "." in text else "." + "0" * (trailing + 1))

    assert chapter_number(padded) == chapter_number(text) == number
    assert str(chapter_number(padded)) == text


@given(st.text(max_size=80), st.none() | st.text(max_size=20))
def test_any_label_gives_a_canonical_number_or_none(label: str, series_title: str | None) -> None:
    number = chapter_number(label, series_title)

    assert number is None or (0 <= number < 10**9 and number_text(number) == str(number))


@pytest.mark.parametrize(
    ("number", "text"), [("45", "45"), ("45.50", "45.5"), ("1E+2", "100"), ("100", "100"), ("0.00001", "0.00001")]
)
def test_a_number_is_written_without_exponent_or_trailing_zeros(number: str, text: str) -> None:
    assert number_text(Decimal(number)) == text


@pytest.mark.parametrize(
    "label",
    ["9" * 10_000, "1." * 5_000, "1a" * 5_000, "vol " * 3_000 + "1 2", "1" + " " * 10_000 + "x"],
    ids=["digits", "dots", "letters", "tags", "spaces"],
)
def test_a_hostile_label_is_parsed_in_bounded_time(label: str) -> None:
    started = time.thread_time()

    for _ in range(10):
        chapter_number(label, label)

    assert time.thread_time() - started < 1


def test_the_length_limit_never_cuts_a_number_in_two() -> None:
    assert chapter_number("x" * 990 + " 1234567 y") == Decimal(1234567)
    assert chapter_number("x" * 995 + " 1234567 y") is None


def test_missing_chapters_are_counted_as_mihon_counts_them() -> None:
    table = json.loads(sample("manga/chapter_numbers/mihon_missing_chapters.json").read_text())

    for row in table["missing_count"]:
        numbers = [from_mihon(number) for number in row["chapter_numbers"]]
        assert len(missing_numbers(numbers)) == row["expected_missing"]


def test_missing_numbers_are_listed_up_to_a_limit() -> None:
    assert missing_numbers([Decimal(1), Decimal("2.2"), Decimal(6), None]) == (3, 4, 5)
    assert len(missing_numbers([Decimal(999_999_999)])) == 100
