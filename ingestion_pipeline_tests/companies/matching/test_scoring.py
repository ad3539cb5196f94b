"""Scores: the formula of the rules, adjustments, limits, thresholds and priority bands."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ingestion_pipeline.companies.matching.listed_job import hours_apart, is_home
from ingestion_pipeline.companies.matching.listing_rules import (
    BaseScore,
    adjustments,
    clamped,
    match_result,
    priority_of,
    rule_score,
)
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.companies.matching.listings import a_listing, a_profile

SETTINGS = load_settings({}).match
PROFILE = a_profile()


def points(name: str, profile: Any = PROFILE, **changes: Any) -> int:
    listing_adjustments = adjustments(a_listing(**changes), profile, SETTINGS, at=NOON)
    return sum(adjustment.points for adjustment in listing_adjustments if adjustment.name == name)


@pytest.mark.parametrize(
    ("days", "expected_points"),
    [
        *((0, 15), (1, 15), (1.01, 5), (2, 5), (2.01, 0), (3, 0), (3.01, -35), (7, -35)),
        *((7.01, -40), (14, -40), (14.01, -45), (30, -45), (30.01, -50), (-1, 0)),
    ],
)
def test_freshness_adds_or_subtracts_points_by_age(days: float, expected_points: int) -> None:
    assert points("freshness", posted_at=NOON - timedelta(days=days)) == expected_points


def test_an_unknown_date_costs_ten_points() -> None:
    assert points("freshness", posted_at=None) == -10


@pytest.mark.parametrize(
    ("location", "expected_points"),
    [
        ("Seattle, WA", 5),
        ("Denver, CO", -2),
        ("Chicago, IL", -2),
        ("New York, NY", -5),
        ("London, UK", -10),
        ("Berlin, Germany", -15),
        ("Bengaluru", -15),
        ("Remote", 0),
        ("Portland", 5),
    ],
)
def test_time_zone_distance_adds_or_subtracts_points(location: str, expected_points: int) -> None:
    assert points("time_zone", locations=(location,)) == expected_points


def test_the_nearest_of_several_locations_counts() -> None:
    assert points("time_zone", locations=("Berlin", "San Francisco")) == 5


@pytest.mark.parametrize(("size", "expected_points"), [("large", 10), ("medium", 0), ("small", -5)])
def test_company_size_adds_or_subtracts_points(size: str, expected_points: int) -> None:
    assert points("company_size", size_category=size) == expected_points
    assert points("company_size", size_category=None) == 0


def test_the_first_role_of_the_title_counts() -> None:
    role_profile = a_profile(roles={"platform": 7, "manager": -10})

    assert points("role", role_profile, title="Platform Manager") == 7
    assert points("role", role_profile, title="Engineering Manager") == -10
    assert points("role", role_profile, title="Engineer") == 0


@pytest.mark.parametrize(
    ("location", "is_there"),
    [
        ("Portland, OR", True),
        ("Portland, Oregon, United States", True),
        ("Remote or Portland", True),
        ("Portland, Maine", False),
        ("South Portland, ME", False),
        ("Salem, OR", False),
        ("Portlandia", False),
    ],
)
def test_the_home_city_must_match_its_region(location: str, *, is_there: bool) -> None:
    assert is_home("Portland, OR", [location]) is is_there


def test_hours_apart_follow_the_season() -> None:
    winter = hours_apart("America/Phoenix", ["Denver"], at=NOON)
    summer = hours_apart("America/Phoenix", ["Denver"], at=NOON + timedelta(days=120))

    assert (winter, summer) == (0, 1)


@pytest.mark.parametrize(
    ("base", "location", "is_match"),
    [(79, "Chicago", False), (80, "Chicago", True), (64, "Portland, OR", False), (65, "Portland, OR", True)],
)
def test_the_thresholds_are_80_and_at_home_65(base: int, location: str, *, is_match: bool) -> None:
    listing = a_listing(locations=(location,))
    adjustment_points = sum(adjustment.points for adjustment in adjustments(listing, PROFILE, SETTINGS, at=NOON))
    base_score = BaseScore(score=base - adjustment_points, method="rules")

    result = match_result(listing, PROFILE, base_score, SETTINGS, at=NOON)

    assert (result.score, result.is_match) == (base, is_match)


@pytest.mark.parametrize(
    ("score", "priority"), [(100, "high"), (85, "high"), (84, "medium"), (70, "medium"), (69, "low")]
)
def test_the_bands_are_85_and_70(score: int, priority: str) -> None:
    assert priority_of(score) == priority


def test_a_score_stays_between_0_and_100() -> None:
    high = match_result(a_listing(), PROFILE, BaseScore(score=99, method="rules"), SETTINGS, at=NOON)
    old = a_listing(posted_at=NOON - timedelta(days=90))
    low = match_result(old, PROFILE, BaseScore(score=3, method="rules"), SETTINGS, at=NOON)

    assert (high.score, low.score) == (100, 0)
    assert (clamped(-1), clamped(101)) == (0, 100)


def test_scores_of_100_are_ranked_by_their_unclamped_value() -> None:
    profile = PROFILE.model_copy(update={"skills": {"Python": 10, "PostgreSQL": 9, "Go": 7, "Rust": 6, "Kafka": 5}})
    words = ["Python, PostgreSQL, Go", ", Rust", ", Kafka"]
    ascending_listings = [a_listing(description="".join(words[: n + 1])) for n in range(3)]
    ascending_listings.append(replace(ascending_listings[-1], locations=("Portland, OR",)))

    results = [
        match_result(listing, profile, rule_score(listing, profile), SETTINGS, at=NOON)
        for listing in ascending_listings
    ]

    assert {result.score for result in results} == {100}
    ranks = [result.rank_score for result in results]
    assert sorted(set(ranks)) == ranks


def test_the_rule_score_is_the_documented_formula() -> None:
    listing = a_listing(title="Senior Engineer", description="Go and Python; Java, React.")

    base_score = rule_score(listing, PROFILE)

    # strength (10 + 7) / (10 + 9 + 7), coverage 2 of 4, level wanted
    assert base_score.score == round(50 * 17 / 26 + 30 * 2 / 4 + 20)
    assert [skill.name for skill in base_score.matched] == ["Python", "Go"]
    assert [skill.name for skill in base_score.missing] == ["Java", "React"]


def test_a_matched_skill_has_its_position_in_the_text() -> None:
    listing = a_listing()

    base_score = rule_score(listing, PROFILE)

    text = listing.text.text
    assert {skill.name: text[skill.start : skill.end] for skill in base_score.matched} == {
        "Python": "Python",
        "PostgreSQL": "PostgreSQL",
    }


def test_a_skill_under_another_name_is_not_missing() -> None:
    profile = PROFILE.model_copy(update={"skills": {"Postgres": 5}})

    base_score = rule_score(a_listing(description="PostgreSQL all day"), profile)

    assert [skill.name for skill in base_score.missing] == ["Python"]


def test_a_listing_without_description_scores_fifty() -> None:
    assert rule_score(a_listing(title="Engineer", description=None), PROFILE).score == 50


def test_the_reason_names_matched_and_missing_skills_and_adjustments() -> None:
    listing = a_listing(description="Python, Java", locations=("Portland, OR",))
    result = match_result(listing, PROFILE, rule_score(listing, PROFILE), SETTINGS, at=NOON)

    assert "names Python" in result.reason
    assert "also wants Java" in result.reason
    assert "in Portland, OR +15" in result.reason
    assert "by rules" in result.reason
