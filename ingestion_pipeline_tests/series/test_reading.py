from __future__ import annotations

from ingestion_pipeline.reading.structured.items import Problem, Reading
from ingestion_pipeline.series.chapter import Release
from ingestion_pipeline.series.ingestion import SourceListing
from ingestion_pipeline.series.system import reading_from_bytes, reading_to_bytes
from ingestion_pipeline_tests.series.syncing import releases
from ingestion_pipeline_tests.sources.test_status import a_source

DETAIL = Problem(where="published_at", message="no date", hides_record=False)
LOSS = Problem(where="item 3", message="no link")


def reading(*problems: Problem) -> Reading[Release]:
    return Reading(records=releases(9, 10), problems=problems, is_complete=True, notes=["read as theme x"])


def test_a_reading_comes_back_as_it_was_stored() -> None:
    given = reading(DETAIL, LOSS)

    found = reading_from_bytes(reading_to_bytes(given))

    assert list(found.records) == list(given.records)
    assert (tuple(found.problems), found.is_complete) == (given.problems, True)
    assert found.notes == given.notes


def test_only_a_part_that_may_hide_a_chapter_makes_a_listing_incomplete() -> None:
    source = a_source()

    assert SourceListing.of(source, reading(DETAIL)).is_complete
    assert not SourceListing.of(source, reading(DETAIL, LOSS)).is_complete
    assert SourceListing.of(source, reading(DETAIL, LOSS)).problems == 2
