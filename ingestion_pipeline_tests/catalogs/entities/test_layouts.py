"""Layouts of catalogs all over the world: the share of courses that rules read right, and none invented.

Half of the pages were seen while the rules were built; the others were written before and held back, to
measure pages that nobody had in mind. Once read they are known, too: the shares that they gave at first
are in docs/features.md.
"""

import pytest

from ingestion_pipeline.catalogs.extraction.entity_type import entity_type
from ingestion_pipeline.catalogs.extraction.pipeline import read_records
from ingestion_pipeline_tests.catalogs.course_pages import layout_pages, score_page

LEAST_SHARE = 0.98  # the bar is 0.9; this is what was measured, rounded down
HALVES = {half: layout_pages(half) for half in ("built", "held")}
WITHOUT = {
    f"{half}/{name}": text for half, pages in HALVES.items() for name, (text, expected) in pages.items() if not expected
}
WITH = {
    f"{half}/{name}": text for half, pages in HALVES.items() for name, (text, expected) in pages.items() if expected
}


@pytest.mark.parametrize("half", HALVES)
def test_nearly_all_courses_are_right_in_code_title_credits_and_description(half: str) -> None:
    scores = {name: score_page(text, expected) for name, (text, expected) in HALVES[half].items()}

    right, total = (sum(getattr(page_score, it) for page_score in scores.values()) for it in ("right", "total"))
    misses = {name: page_score.misses for name, page_score in scores.items() if page_score.misses}
    assert total > 50
    assert right / total >= LEAST_SHARE, misses
    assert {name for name, page_score in scores.items() if page_score.invented} == set()


@pytest.mark.parametrize("name", WITHOUT)
def test_a_page_without_courses_gives_none_whatever_its_layout(name: str) -> None:
    reading = read_records(entity_type("course"), WITHOUT[name])

    assert reading.records == []
    assert reading.problems == ()


@pytest.mark.parametrize("name", WITH)
def test_every_course_is_proved_by_the_words_of_its_page(name: str) -> None:
    records = read_records(entity_type("course"), WITH[name]).records

    assert records
    assert [record.fields["course_id"] for record in records if record.is_flagged] == []
