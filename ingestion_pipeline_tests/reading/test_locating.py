"""A value is found in its own record, as a path or as a span, however the body words it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from ingestion_pipeline.reading.evidence.locating import body_of, locate

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


def test_a_record_that_is_not_there_proves_none_of_its_values() -> None:
    assert locate(body_of(PAGE, "text/html"), ["c2"], {"it": "Part 1"}) == {"it": None}
