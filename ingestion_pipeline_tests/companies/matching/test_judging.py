"""The route of a listing follows from what is known of it; its verdict from what was found."""

from __future__ import annotations

from typing import Any

import pytest

from ingestion_pipeline.companies.matching.filtering import FilterItem, FilterResult
from ingestion_pipeline.companies.matching.scoring import BaseScore, match_result
from ingestion_pipeline.companies.matching.stages import (
    JobState,
    ListingStage,
    Rules,
    decision_of,
    next_stage,
    same_content,
)
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.companies.matching.listings import a_listing, a_profile

PASSED = FilterResult(passed=True, strikes=0, threshold=5)
REJECTED = FilterResult(passed=False, strikes=5, threshold=5)
STOP = FilterItem(category="rejection", name="stop_company", reason="you said so")


def scored(base: int) -> Any:
    found = BaseScore(score=base, method="rules")
    return match_result(a_listing(), a_profile(), found, load_settings({}).match, at=NOON)


@pytest.mark.parametrize(
    ("state", "stage", "verdict"),
    [
        (JobState(), ListingStage.SCRAPE, None),
        (JobState(stop=STOP), ListingStage.SAVE, "skipped"),
        (JobState(has_data=True), ListingStage.FILTER, None),
        (JobState(has_data=True, filtered=REJECTED), ListingStage.SAVE, "filtered"),
        (JobState(has_data=True, filtered=PASSED), ListingStage.ANALYZE, None),
        (JobState(has_data=True, filtered=PASSED, match=scored(0)), ListingStage.SAVE, "skipped"),
        (JobState(has_data=True, filtered=PASSED, match=scored(99)), ListingStage.SAVE, "matched"),
    ],
)
def test_the_next_stage_is_what_is_missing(state: JobState, stage: ListingStage, verdict: str | None) -> None:
    assert next_stage(state) is stage
    if verdict is not None:
        assert decision_of(state) == verdict


def test_other_rules_or_another_content_is_another_judgement() -> None:
    rules = Rules(profile=a_profile(), settings=load_settings({}))
    others = [
        Rules(profile=a_profile(home_city="Berlin"), settings=load_settings({})),
        Rules(profile=a_profile(), settings=load_settings({"INGESTION_FILTER__STRIKE_THRESHOLD": "6"})),
        Rules(profile=a_profile(), settings=load_settings({"INGESTION_MATCH__MIN_SCORE": "81"})),
    ]
    same = Rules(profile=a_profile(), settings=load_settings({"INGESTION_MATCH__BATCH_SIZE": "9"}))

    assert len({one.judged_as("a" * 64) for one in [rules, *others]}) == 4
    assert rules.judged_as("a" * 64) == same.judged_as("a" * 64) != rules.judged_as("b" * 64)
    assert len(rules.judged_as("a" * 64)) <= 64
    assert same_content(others[0].judged_as("a" * 64), "a" * 64)
    assert not same_content(rules.judged_as("a" * 64), "b" * 64)
