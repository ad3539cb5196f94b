"""The next stage and the decision of a listing follow from its state."""

from typing import Any

import pytest

from ingestion_pipeline.companies.matching.listing_rules import BaseScore, FilterItem, FilterResult, match_result
from ingestion_pipeline.companies.matching.tasks import (
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


def match_of_score(base: int) -> Any:
    base_score = BaseScore(score=base, method="rules")
    return match_result(a_listing(), a_profile(), base_score, load_settings({}).match, at=NOON)


@pytest.mark.parametrize(
    ("state", "stage", "decision"),
    [
        (JobState(), ListingStage.SCRAPE, None),
        (JobState(stop=STOP), ListingStage.SAVE, "skipped"),
        (JobState(has_data=True), ListingStage.FILTER, None),
        (JobState(has_data=True, filtered=REJECTED), ListingStage.SAVE, "filtered"),
        (JobState(has_data=True, filtered=PASSED), ListingStage.ANALYZE, None),
        (JobState(has_data=True, filtered=PASSED, match=match_of_score(0)), ListingStage.SAVE, "skipped"),
        (JobState(has_data=True, filtered=PASSED, match=match_of_score(99)), ListingStage.SAVE, "matched"),
    ],
)
def test_the_next_stage_follows_from_the_missing_data(
    state: JobState, stage: ListingStage, decision: str | None
) -> None:
    assert next_stage(state) is stage
    if decision is not None:
        assert decision_of(state) == decision


def test_other_rules_or_other_content_have_another_rules_hash() -> None:
    rules = Rules(profile=a_profile(), settings=load_settings({}))
    others = [
        Rules(profile=a_profile(home_city="Berlin"), settings=load_settings({})),
        Rules(profile=a_profile(), settings=load_settings({"INGESTION_FILTER__STRIKE_THRESHOLD": "6"})),
        Rules(profile=a_profile(), settings=load_settings({"INGESTION_MATCH__MIN_SCORE": "81"})),
    ]
    same = Rules(profile=a_profile(), settings=load_settings({"INGESTION_MATCH__COMPANY_WAITS": "9"}))

    assert len({variant.rules_hash("a" * 64) for variant in [rules, *others]}) == 4
    assert rules.rules_hash("a" * 64) == same.rules_hash("a" * 64) != rules.rules_hash("b" * 64)
    assert len(rules.rules_hash("a" * 64)) <= 64
    assert same_content(others[0].rules_hash("a" * 64), "a" * 64)
    assert not same_content(rules.rules_hash("a" * 64), "b" * 64)
