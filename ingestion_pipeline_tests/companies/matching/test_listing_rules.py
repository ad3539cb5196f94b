"""The filter, the score and the decision of a listing; missing data never counts against it."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ingestion_pipeline.companies.job_listing import Remote
from ingestion_pipeline.companies.matching.listed_job import ListedJob, hours_apart, is_home
from ingestion_pipeline.companies.matching.listing_rules import (
    BaseScore,
    FilterItem,
    FilterResult,
    adjustments,
    clamped,
    filter_listing,
    match_result,
    priority_of,
    rule_score,
    stopped,
    years_required,
)
from ingestion_pipeline.companies.matching.profile import EMPTY_PROFILE, Profile, Seniority, StopLists, Technologies
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
from ingestion_pipeline_tests.companies.cases import tables, with_cases
from ingestion_pipeline_tests.companies.matching.listings import MATCHING_TEXT, a_listing, a_profile

LIMITS = load_settings({}).filter
LONG = "A" + " word" * 60


def apply_filter(listing: ListedJob, profile: Profile | None = None) -> FilterResult:
    return filter_listing(listing, profile or a_profile(), LIMITS, at=NOON)


def salary(most: int | None, **changes: Any) -> dict[str, Any]:
    maximum = None if most is None else str(most)
    return {"minimum": None, "maximum": maximum, "currency": "USD", "period": "year", **changes}


def test_a_listing_without_data_passes_the_filter() -> None:
    filter_result = apply_filter(ListedJob(title=""), strict_profile())

    assert (filter_result.passed, filter_result.strikes, filter_result.items) == (True, 0, ())


def strict_profile() -> Profile:
    """Return a profile that rejects almost every listing."""
    return a_profile(
        job_types_unwanted=("contract", "gig"),
        seniority=Seniority(unwanted=("junior",), strikes={"associate": 2, "mid-level": 1}),
        stop=StopLists(companies=("Spamco",)),
        reject_keywords=("security clearance", "unpaid"),
        technologies=Technologies(required=("Python",), undesired={"PHP": 2, "Perl": 1}, forbidden=("COBOL",)),
    )


def listing_of(changes: dict[str, Any]) -> ListedJob:
    """Return the listing with these changes from a table, where times are relative to noon."""
    texts = {"matching": MATCHING_TEXT, "long": LONG, "fewer_years": MATCHING_TEXT.replace("8 years", "5 years")}
    convert: dict[str, Callable[[Any], Any]] = {
        "description": lambda text: text.format(**texts),
        "salary": lambda stated: salary(**stated),
        "remote": lambda mode: mode and Remote(mode),
        "posted_at": lambda distance: NOON + timedelta(**distance),
        "valid_until": lambda distance: NOON + timedelta(**distance),
    }
    return a_listing(**{name: convert.get(name, lambda value: value)(value) for name, value in changes.items()})


REJECTED: list[tuple[str, dict[str, Any]]] = tables("listing_rules")["rejected"]


@pytest.mark.parametrize(("name", "changes"), REJECTED, ids=lambda value: str(value)[:40])
def test_each_hard_rejection_rejects_with_its_reason(name: str, changes: dict[str, Any]) -> None:
    filter_result = apply_filter(listing_of(changes), strict_profile())

    assert (filter_result.passed, filter_result.rejected_by) == (False, name)
    assert filter_result.items[0].reason


def test_the_first_rejection_in_order_is_reported() -> None:
    merged: dict[str, Any] = {}
    order: list[str] = []
    for _, changes in reversed(REJECTED):
        merged |= {"title": merged.get("title", "Engineer")} | changes
        order.insert(0, str(apply_filter(listing_of(merged), strict_profile()).rejected_by))

    assert order == [name for name, _ in REJECTED]


@with_cases("changes")
def test_similar_wording_is_not_rejected(changes: dict[str, Any]) -> None:
    assert apply_filter(listing_of(changes), strict_profile()).rejected_by is None


@pytest.mark.parametrize(("gap", "name"), [(49, "job_type"), (50, "job_type"), (51, None), (200, None)])
@pytest.mark.parametrize("words", [("contract", "position"), ("position", "contract")])
def test_a_job_type_must_be_within_50_characters_of_the_role(
    words: tuple[str, str], gap: int, name: str | None
) -> None:
    between = f" {'x' * (gap - 2)} "

    listing = a_listing(description=f"{LONG}\n{words[0]}{between}{words[1]}\n{LONG}")

    assert apply_filter(listing, strict_profile()).rejected_by == name


def test_a_partial_word_at_the_edge_of_the_window_is_not_the_role() -> None:
    between = f" {'x' * 45} "
    listing = a_listing(description=f"{LONG}\ncontract{between}jobless people\n{LONG}")

    assert apply_filter(listing, strict_profile()).rejected_by is None


@with_cases("name", "points", "changes")
def test_each_strike_has_its_points(name: str, points: int, changes: dict[str, Any]) -> None:
    filter_result = apply_filter(listing_of(changes), strict_profile())

    assert [(strike.category, strike.name, strike.points) for strike in filter_result.items] == [
        ("strike", name, points)
    ]
    assert (filter_result.passed, filter_result.strikes) == (True, points)


@pytest.mark.parametrize(("undesired", "passes"), [(1, True), (2, False)], ids=["4 passes", "5 filters"])
def test_a_total_of_four_passes_and_five_is_filtered(undesired: int, *, passes: bool) -> None:
    profile = a_profile(technologies=Technologies(undesired={"PHP": undesired}))
    listing = a_listing(salary=salary(120_000), posted_at=NOON - timedelta(days=3), description=f"{MATCHING_TEXT} PHP")

    filter_result = apply_filter(listing, profile)

    assert (filter_result.strikes, filter_result.passed) == (3 + undesired, passes)
    assert filter_result.rejected_by == (None if passes else "strikes")


def test_every_undesired_technology_counts_and_only_the_first_buzzword() -> None:
    filter_result = apply_filter(a_listing(description=f"{MATCHING_TEXT} PHP, Perl; guru, ninja"), strict_profile())

    assert [(strike.name, strike.points) for strike in filter_result.items] == [
        ("technology", 2),
        ("technology", 1),
        ("buzzword", 1),
    ]


@with_cases("text", "years")
def test_the_required_years_of_experience_are_parsed(text: str | None, years: int | None) -> None:
    assert years_required(a_listing(description=text)) == years


@with_cases("changes", "name")
def test_stop_lists_check_company_domain_url_and_title(changes: dict[str, Any], name: str | None) -> None:
    stop = StopLists(companies=("spamco",), domains=("spam.test",), keywords=("blockchain",))
    listing = {"title": "Engineer", "url": "https://a.test/1", "company": "Acme"} | changes

    stop_item = stopped(a_profile(stop=stop), **listing)

    assert (stop_item.name if stop_item else None) == name


def test_without_a_profile_only_the_limits_of_the_settings_filter() -> None:
    plain = a_listing(remote=Remote.ON_SITE, title="Junior Contract Engineer")

    assert apply_filter(plain, EMPTY_PROFILE).passed
    assert apply_filter(a_listing(salary=salary(50_000)), EMPTY_PROFILE).rejected_by == "salary"


def test_a_result_is_stored_item_by_item() -> None:
    stored = apply_filter(a_listing(title="Junior"), strict_profile()).as_dict()

    assert stored["items"] == [
        {
            "category": "rejection",
            "name": "seniority",
            "reason": "you do not want junior",
            "detail": "Junior",
            "points": 0,
        }
    ]


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


@with_cases("location", "expected_points")
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


@with_cases("location", "is_there")
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


PASSED = FilterResult(passed=True, strikes=0, threshold=5)
FILTERED = FilterResult(passed=False, strikes=5, threshold=5)
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
        (JobState(has_data=True, filtered=FILTERED), ListingStage.SAVE, "filtered"),
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
