"""The content hash and the quality of a listing, and the stored form of a parsed feed."""

from datetime import UTC, datetime
from typing import Any

import pytest

from ingestion_pipeline.companies.boards.board_plan import content_hash, feed_from_bytes, feed_to_bytes, quality_of
from ingestion_pipeline.companies.job_listing import Listing, Remote, salary_in
from ingestion_pipeline.reading.structured.items import ParsedFeed, Problem

POSTED = datetime(2026, 3, 1, tzinfo=UTC)
GOOD: dict[str, Any] = {
    "url": "https://a.test/1",
    "title": "Engineer",
    "company_name": "Acme",
    "description": "Requirements: pipes. " * 10,
    "location": "Oslo",
    "posted_at": POSTED,
    "salary": {"minimum": "1"},
}


@pytest.mark.parametrize(
    ("without", "level"),
    [
        ({}, "good"),
        ({"location": None}, "minimal"),
        ({"posted_at": None}, "minimal"),
        ({"description": "x" * 101}, "minimal"),
        ({"description": "x" * 100}, "thin"),
        ({"company_name": None}, "thin"),
        ({"url": None}, "thin"),
    ],
)
def test_a_listing_is_thin_minimal_or_good(without: dict[str, Any], level: str) -> None:
    quality = quality_of(GOOD | without)

    assert quality["level"] == level
    assert quality["missing"] == [name for name in without if without[name] is None]


def test_a_content_hash_covers_exactly_the_fields_that_are_evaluated() -> None:
    original = content_hash(GOOD)

    assert original == content_hash(GOOD | {"url": "https://b.test/", "department": "x"})
    for name, other in {"title": "x", "location": "x", "posted_at": None, "remote": "x"}.items():
        assert content_hash(GOOD | {name: other}) != original


def test_a_parsed_feed_survives_a_round_trip_through_the_content_store() -> None:
    listing = Listing(
        external_id="1",
        title="Engineer",
        url=None,
        posted_at=POSTED,
        remote=Remote.HYBRID,
        salary=salary_in("$120-150k a year"),
        other_locations=("Rome",),
        posted_is_relative=True,
    )
    problem = Problem(where="item 2", message="no id")
    reading = ParsedFeed(records=[listing], problems=[problem], is_complete=True, notes=["a part"])

    assert feed_from_bytes(feed_to_bytes(reading)) == reading
