"""Size, completeness, points and tiers at their edges."""

import pytest

from ingestion_pipeline.companies.analysis.findings import (
    Completeness,
    Employees,
    completeness,
    employees_in,
    rank_points,
    score,
    size_category,
    tech_alignment,
    tier_of,
)
from ingestion_pipeline.settings.groups import Company

RULES = Company()


@pytest.mark.parametrize(
    ("points", "tier"), [(150, "S"), (149, "A"), (100, "A"), (99, "B"), (70, "B"), (69, "C"), (50, "C"), (49, "D")]
)
def test_a_tier_starts_at_its_minimum(points: int, tier: str) -> None:
    assert tier_of(points) == tier


def test_technologies_of_130_points_count_100() -> None:
    stack = {"languages": ["python", "go"], "databases": ["redis"]}

    assert tech_alignment(stack, {"Python": 60, "Go": 60, "redis": 10, "java": 50}, cap=100) == 100
    assert tech_alignment(stack, {"java": 50}, cap=100) == 0


def test_a_skill_counts_once_however_it_is_spelt() -> None:
    stack = {"languages": ["go"], "infrastructure": ["kubernetes"]}

    assert tech_alignment(stack, {"Golang": 20, "Go": 30, "K8s": 5}, cap=100) == 35


def test_the_best_two_skills_reach_the_cap() -> None:
    assert rank_points({"python": 10, "go": 10, "css": 1}) == {"python": 50, "go": 50, "css": 5}


def test_149_is_a_and_150_is_s() -> None:
    def tier(points: int) -> str:
        company_score = score(
            tech_stack={"languages": ["python"]},
            is_remote_first=None,
            places=["Offices in Portland, OR"],
            ranks={"python": points},
            rules=RULES,
        )
        return f"{company_score.points} {company_score.tier}"

    assert (tier(99), tier(100), tier(130)) == ("149 A", "150 S", "150 S")


def test_missing_information_neither_adds_nor_subtracts_points() -> None:
    company_score = score(tech_stack={}, is_remote_first=None, places=[], ranks={"go": 90}, rules=RULES)

    assert (company_score.points, company_score.tier) == (0, "D")


def test_the_bonus_city_is_a_setting_and_matches_whole_words() -> None:
    def points(city: str, place: str) -> int:
        rules = Company(bonus_city=city)
        return score(tech_stack={}, is_remote_first=None, places=[place], ranks={}, rules=rules).points

    assert points("Portland", "portland, Oregon") == 50
    assert points("Portland", "Portlandia") == 0
    assert points("Graz", "Büro in Graz") == 50
    assert points("", "anywhere") == 0


@pytest.mark.parametrize(
    ("about", "culture", "level"),
    [
        (50, 25, Completeness.THIN),
        (51, 0, Completeness.MINIMAL),
        (0, 26, Completeness.MINIMAL),
        (101, 50, Completeness.MINIMAL),
        (100, 51, Completeness.MINIMAL),
        (101, 51, Completeness.GOOD),
    ],
)
def test_completeness_follows_from_the_length_of_the_texts(about: int, culture: int, level: Completeness) -> None:
    texts = {"about": "a" * about or None, "culture": "c" * culture or None}

    assert completeness(name="A", website="https://a.test", **texts) is level
    assert completeness(name=None, website="https://a.test", **texts) == "thin"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("51-200 employees", (51, 200)),
        ("10,000+", (10_000, None)),
        ("1.200 Mitarbeiter", (1_200, 1_200)),
        ("5k employees", (5_000, 5_000)),
        ("1k-5k", (1_000, 5_000)),
        ("up to 50 people", (1, 50)),
        ("about 250", (250, 250)),
        ("many", None),
        ("0", None),
        ("200-51", None),
        ("99999999999", None),
    ],
)
def test_a_head_count_is_parsed_in_any_format(text: str, expected: tuple[int, int | None] | None) -> None:
    employees = employees_in(text)

    assert (employees and (employees.low, employees.high)) == expected


@pytest.mark.parametrize(
    ("low", "high", "category"),
    [
        (10_000, None, "large"),
        (9_999, None, "medium"),
        (5_000, 10_000, "medium"),
        (100, 100, "medium"),
        (51, 99, "small"),
        (1, 10, "small"),
    ],
)
def test_large_starts_at_ten_thousand_and_small_ends_below_a_hundred(low: int, high: int | None, category: str) -> None:
    assert size_category(Employees(low=low, high=high)) == category
    assert size_category(None) is None
