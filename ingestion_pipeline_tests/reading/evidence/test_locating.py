"""Values are located in their own record, as a path or as a span, also dates in other words."""

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from ingestion_pipeline.reading.evidence.locating import FoundPlace, LocatedBody, body_of, locate

JOBS = {
    "jobs": [
        {"id": 1, "title": "Cook", "place": {"name": "Oslo"}, "text": "<p>Fish &amp; chips</p>"},
        {"id": 11, "title": "Cook", "place": {"name": "Oslo"}, "at": "2026-02-20T10:00:00Z"},
    ]
}
PAGE = b"<ul><li id=c10>Part 10, one</li><li id=c1><a href='/c/1'>Part 1</a>, two &lt;3</li></ul>"


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
    body = body_of(PAGE, "text/html")
    place = locate(body, ["c1"], {"it": value})["it"]

    assert (place.quote if place else None) == quote
    if place and place.of == "body":
        assert body.text[place.start : place.end] == quote
        assert (place.start or 0) > PAGE.index(b"c1>")


def test_a_missing_record_proves_none_of_its_values() -> None:
    assert locate(body_of(PAGE, "text/html"), ["c2"], {"it": "Part 1"}) == {"it": None}


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
