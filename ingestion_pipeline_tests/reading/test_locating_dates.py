"""A date that a body words in its own way is found by its value, with the original words."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from ingestion_pipeline.reading.evidence.locating import FoundPlace, LocatedBody, body_of, locate

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


def found_in(body: LocatedBody, value: datetime) -> FoundPlace | None:
    return locate(body, ["c7"], {"published_at": value}, now=NOW)["published_at"]


@pytest.mark.parametrize(("message", "value"), WORDED)
def test_a_date_is_found_in_json_by_its_value(message: str, value: datetime) -> None:
    other = {"id": "c8", "when": "1 April 2026"}
    body = body_of(json.dumps([{"id": "c7", "when": message}, other]).encode(), "application/json")

    place = found_in(body, value)

    assert place is not None
    assert (place.quote, place.path, place.by) == (message, "$[0].when", "value")


@pytest.mark.parametrize(("message", "value"), WORDED)
def test_a_date_is_found_in_a_page_behind_the_records_anchor(message: str, value: datetime) -> None:
    text = f"<p>1 April 2026</p><a href='/c7'>Chapter</a> c7 <i>{message}</i><a>c8</a>"
    place = found_in(LocatedBody(text), value)

    assert place is not None
    assert place.by == "value"
    assert place.quote in message
    assert text[place.start : place.end] == place.quote


@pytest.mark.parametrize("message", ["1 April 2026", "2 days ago", "soon", "5", "c5"])
def test_another_date_proves_nothing(message: str) -> None:
    body = body_of(json.dumps([{"id": "c7", "when": message}]).encode(), "application/json")

    assert found_in(body, FIFTH) is None
    assert found_in(LocatedBody(f"c7 {message}"), FIFTH) is None


def test_a_date_that_is_worded_plainly_is_no_conversion() -> None:
    body = body_of(b'[{"id": "c7", "when": "2026-03-05"}]', "application/json")

    place = found_in(body, FIFTH)

    assert place is not None
    assert place.by is None
