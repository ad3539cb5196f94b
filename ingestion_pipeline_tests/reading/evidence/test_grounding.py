"""Spans and paths that prove a value, and above all those that do not."""

import json
import re
import time
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestion_pipeline.reading import Grounding, ground
from ingestion_pipeline.reading.evidence.grounding import NormalForm, Value
from ingestion_pipeline.reading.evidence.locating import FoundPlace, LocatedBody, body_of, locate
from ingestion_pipeline_tests.reading.tables import table

# ruff: noqa: RUF001  letters of other scripts are what is tested

PAGE = (
    "CS 1332 - Data Structures & Algorithms\n3.000 Credit hours, 13 weeks, 3.5 CEU\n"
    "Fee: 1.234,50 EUR. Begins March 5, 2024, at the oﬃce in Straße 7, Café Noir.\n"
    "See [Composition I](/english/engl101) and https://a.test/x?y=1 for CS 101L."
)
WORLD = (
    "東京大学は日本の国立大学です。第3回講義は2024年3月5日に行われます。がっこう\n"
    "Курс «Программирование на Питоне» стоит 1\u00a0500 рублей.\nهذا الكِتَابُ سنة ٢٠٢٤\n"
    "각국의 학교 हिन्दी किताब"
)


def proof(value: Value, text: str) -> tuple[str, str | None]:
    grounding = ground(value, text)
    return grounding.status.value, text[grounding.start : grounding.end] if grounding.start is not None else None


@pytest.mark.parametrize(
    ("value", "status", "span"),
    [*table(__file__, "test_a_value_is_proved_by_the_span_that_states_it"), (Decimal("1234.5"), "value", "1.234,50")],
)
def test_a_value_is_proved_by_the_span_that_states_it(value: Value, status: str, span: str) -> None:
    assert proof(value, PAGE) == (status, span)


@pytest.mark.parametrize(
    "value",
    [
        *("CS 133", "CS 101", "S 1332", "Data Structures & Algorithms II", "cafe noir"),
        *(1, 33, 0.5, 12345, 4, 101, "332", "3.5.1", -13, "14 weeks, 3.5 CEU", "engl101"),
        *(date(2024, 5, 3), "2024-03-06", "05/03/2024", "https://a.test/x?y", "https://a.test/x"),
        "4.000 Credit hours, 13 weeks, 3.5 CEU",
    ],
)
def test_a_value_that_is_not_on_the_page_is_absent(value: Value) -> None:
    assert proof(value, PAGE) == ("absent", None)


@pytest.mark.parametrize("value", ["", " ", "-", "…", "\u200b", "!?", None, True, False, float("nan")])
def test_a_value_without_letters_and_digits_is_never_proved(value: Value) -> None:
    assert ground(value, PAGE) == ground(value, "") == ground("-", "a - b")
    assert ground(value, PAGE).status == "unverifiable"
    assert not ground(value, PAGE).is_proof


@pytest.mark.parametrize(("value", "status", "span"), table(__file__, "test_every_script_is_read"))
def test_every_script_is_read(value: Value, status: str, span: str | None) -> None:
    assert proof(value, WORLD) == (status, span)


@pytest.mark.parametrize(
    ("value", "text", "status"),
    [*table(__file__, "test_numbers_match_by_value_and_never_inside_others"), (Decimal("1.234"), "1.234 kg", "exact")],
)
def test_numbers_match_by_value_and_never_inside_others(value: Value, text: str, status: str) -> None:
    assert ground(value, text).status == status


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        *("2026-03-05", "2026/3/5", "5 March 2026", "March 5th, 2026", "Mar 5, 2026", "05.03.2026"),
        *("3/5/2026", "5/3/2026 and 25/3/2026", "2026年3月5日", "5 mars 2026", "5. März 2026"),
        *("5 de marzo de 2026", "5 марта 2026", "Thu, 05 Mar 2026 10:00", "3/5/26", "٢٠٢٦-٠٣-٠٥"),
    ],
)
def test_a_day_is_proved_however_it_is_written(text: str) -> None:
    assert ground(date(2026, 3, 5), f"Posted {text} by us").is_proof


@pytest.mark.parametrize(
    "text", ["3/5/2026 and 25/3/2026", "2026-03-051", "15 March 2026", "March 2026", "5 March 1926"]
)
def test_another_day_is_not_proof(text: str) -> None:
    assert ground(date(2026, 3, 5), f"Posted {text} by us").status == "absent"


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.text(min_size=1, max_size=80), st.data())
def test_text_between_two_word_boundaries_is_an_exact_match(text: str, data: st.DataObject) -> None:
    words = list(re.finditer(r"[^\W_]+", text))
    if not words or "](" in text:
        return
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, len(words) - 1))
    value = text[words[first].start() : words[last].end()]

    grounding = ground(value, text)

    assert grounding.status in {"exact", "value", "absent", "unverifiable"}
    if grounding.status == "absent":  # the word continues with a mark, or a number with its decimals
        assert not is_apart(text, words[first].start(), words[last].end())
    elif grounding.status == "exact":
        assert NormalForm.of(value).text == NormalForm.of(text[grounding.start : grounding.end]).text


def is_apart(text: str, start: int, end: int) -> bool:
    around = text[max(0, start - 2) : start] + text[end : end + 2]
    return all(character in " \n" for character in around)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=40), st.text(max_size=200))
def test_a_span_contains_what_it_proves_and_nothing_raises(value: str, text: str) -> None:
    grounding = ground(value, text)

    if grounding.status == "exact":
        assert grounding.start is not None
        expected = NormalForm.of(value).text
        assert expected in NormalForm.of(text[grounding.start : grounding.end]).text or value in text
    assert (grounding.start is None) == (grounding.status in {"absent", "unverifiable"})


@settings(max_examples=100, deadline=None)
@given(st.decimals(min_value=0, max_value=10**9, places=2, allow_nan=False), st.integers(1, 9))
def test_a_number_matches_as_written_and_not_with_another_digit(value: Decimal, digit: int) -> None:
    assert ground(value, f"costs {value:,} EUR").is_proof
    assert not ground(value, f"costs {digit}{value} EUR").is_proof
    assert not ground(value, f"costs {value}{digit} EUR").is_proof


@settings(max_examples=100, deadline=None)
@given(st.dates(date(1901, 1, 1), date(2099, 12, 31)))
def test_a_day_is_found_in_words_and_in_figures(day: date) -> None:
    assert ground(day, f"on {day:%d %B %Y}.").is_proof
    assert ground(day, f"on {day:%Y-%m-%d}.").status == "exact"


@pytest.mark.slow
def test_hundreds_of_values_are_grounded_on_a_large_page_in_seconds() -> None:
    courses = [f"CS {1000 + n} Topic number {n} of computing, part {n % 7}" for n in range(4_000)]
    page = "\n".join(courses)
    assert len(page) > 150_000
    started = time.thread_time()

    found_groundings = [ground(course, page) for course in courses[:200]]
    lost = [ground(course.replace("computing", "farming animals"), page) for course in courses[:20]]
    fuzzy = ground("CS 1500 Topics number 500 of computin, part 3", page)

    assert {grounding.status for grounding in found_groundings} == {"exact"}
    assert {grounding.status for grounding in lost} == {"absent"}
    assert fuzzy.status == "fuzzy"
    assert time.thread_time() - started < 5


def test_a_grounding_has_three_fields() -> None:
    assert ground("b", "a b c") == Grounding(status=ground("b", "b").status, start=2, end=3)


JOBS = {
    "jobs": [
        {"id": 1, "title": "Cook", "place": {"name": "Oslo"}, "text": "<p>Fish &amp; chips</p>"},
        {"id": 11, "title": "Cook", "place": {"name": "Oslo"}, "at": "2026-02-20T10:00:00Z"},
    ]
}
JOB_PAGE = b"<ul><li id=c10>Part 10, one</li><li id=c1><a href='/c/1'>Part 1</a>, two &lt;3</li></ul>"


@pytest.mark.parametrize(
    ("anchor", "value", "path"),
    [
        ("11", "Cook", "$.jobs[1].title"),
        ("11", "Oslo", "$.jobs[1].place.name"),
        ("11", datetime(2026, 2, 20, 10, tzinfo=UTC), "$.jobs[1].at"),
        ("1", "Fish & chips", "$.jobs[0].text"),
        ("11", "Fish & chips", None),
        ("12", "Cook", None),
        ("11", Decimal(1), None),
    ],
)
def test_in_json_a_value_is_a_path_in_the_record_of_the_anchor(anchor: str, value: object, path: str | None) -> None:
    body = body_of(json.dumps(JOBS).encode(), "application/json")
    place = locate(body, [anchor], {"it": value})["it"]

    assert (place.path if place else None) == path


@pytest.mark.parametrize(
    ("value", "quote"),
    [(Decimal(1), "1"), ("Part 1", "Part 1"), ("http://a.test/c/1", "/c/1"), ("two <3", "two &lt;3"), ("three", None)],
)
def test_in_a_page_a_value_is_a_span_near_the_anchor(value: object, quote: str | None) -> None:
    body = body_of(JOB_PAGE, "text/html")
    place = locate(body, ["c1"], {"it": value})["it"]

    assert (place.quote if place else None) == quote
    if place and place.of == "body":
        assert body.text[place.start : place.end] == quote
        assert (place.start or 0) > JOB_PAGE.index(b"c1>")


def test_a_missing_record_proves_none_of_its_values() -> None:
    assert locate(body_of(JOB_PAGE, "text/html"), ["c2"], {"it": "Part 1"}) == {"it": None}


FIFTH = datetime(2026, 3, 5, tzinfo=UTC)
NOW = datetime(2026, 3, 8, 15, 30, tzinfo=UTC)
WORDED = [
    ("5 de marzo de 2026", FIFTH),
    ("05.03.2026", FIFTH),
    ("2026年3月5日", FIFTH),
    ("3 days ago", FIFTH),
    ("2 Hours ago", datetime(2026, 3, 8, 13, tzinfo=UTC)),
    ("yesterday", datetime(2026, 3, 7, tzinfo=UTC)),
]


def located_in(body: LocatedBody, value: datetime) -> FoundPlace | None:
    return locate(body, ["c7"], {"published_at": value}, now=NOW)["published_at"]


@pytest.mark.parametrize(("message", "value"), WORDED)
def test_a_date_is_found_in_json_by_its_value(message: str, value: datetime) -> None:
    other_record = {"id": "c8", "when": "1 April 2026"}
    body = body_of(json.dumps([{"id": "c7", "when": message}, other_record]).encode(), "application/json")

    place = located_in(body, value)

    assert place is not None
    assert (place.quote, place.path, place.by) == (message, "$[0].when", "value")


@pytest.mark.parametrize(("message", "value"), WORDED)
def test_a_date_is_found_in_a_page_behind_the_records_anchor(message: str, value: datetime) -> None:
    text = f"<p>1 April 2026</p><a href='/c7'>Chapter</a> c7 <i>{message}</i><a>c8</a>"
    place = located_in(LocatedBody(text), value)

    assert place is not None
    assert place.by == "value"
    assert place.quote in message
    assert text[place.start : place.end] == place.quote


@pytest.mark.parametrize("message", ["1 April 2026", "2 days ago", "soon", "5", "c5"])
def test_another_date_proves_nothing(message: str) -> None:
    body = body_of(json.dumps([{"id": "c7", "when": message}]).encode(), "application/json")

    assert located_in(body, FIFTH) is None
    assert located_in(LocatedBody(f"c7 {message}"), FIFTH) is None


def test_a_date_in_its_own_words_is_not_a_conversion() -> None:
    body = body_of(b'[{"id": "c7", "when": "2026-03-05"}]', "application/json")

    place = located_in(body, FIFTH)

    assert place is not None
    assert place.by is None


def test_a_number_is_not_located_inside_a_longer_one() -> None:
    page = body_of(
        b"<a href='/c/17.5'>Ch. 17.5</a> <a href='/c/170'>Ch. 170</a> <a href='/c/17'>Ch. 17</a>", "text/html"
    )

    found = locate(page, ["/c/17"], {"number": "17", "url": "https://a.test/c/17"})

    places = {name: place and place.start for name, place in found.items()}
    last = page.text.index("/c/17'")
    assert places["url"] == last
    assert places["number"] is not None
    assert places["number"] >= last
