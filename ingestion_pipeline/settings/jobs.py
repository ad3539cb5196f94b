"""What holds for companies, their boards and listings: how they are scored, filtered, matched."""

from __future__ import annotations

from pydantic import Field

from ingestion_pipeline.settings.groups import DAY, Group


class Company(Group):
    """When a company is known well, and what its score is made of."""

    fresh_seconds: float = Field(
        default=30 * DAY, ge=0, description="a good record younger than this is not analysed again"
    )
    about_minimal: int = Field(default=50, ge=0, description="characters; more is minimal")
    about_good: int = Field(default=100, ge=0, description="characters; more is good")
    culture_minimal: int = Field(default=25, ge=0, description="characters; more is minimal")
    culture_good: int = Field(default=50, ge=0, description="characters; more is good")
    bonus_city: str = Field(default="Portland", description="an office there is worth the bonus")
    portland_bonus: int = Field(default=50, ge=0, description="points for an office in bonus_city")
    tech_cap: int = Field(default=100, ge=0, description="points that technologies come to at most")
    remote_bonus: int = Field(default=15, ge=0, description="points for remote first")
    ml_bonus: int = Field(default=10, ge=0, description="points for machine learning")
    tier_s: int = Field(default=150, description="points from which a company is of tier S")
    tier_a: int = Field(default=100, description="points")
    tier_b: int = Field(default=70, description="points")
    tier_c: int = Field(default=50, description="points; fewer are tier D")
    large_employees: int = Field(default=10_000, ge=1, description="from so many on it is large")
    small_employees: int = Field(default=100, ge=1, description="below so many it is small")
    concurrency: int = Field(default=8, ge=1, le=128, description="companies analysed at a time")


class Boards(Group):
    """How boards are discovered, listed, and rotated."""

    missing_before_closed: int = Field(
        default=2, ge=1, le=10, description="complete listings without a job that close it"
    )
    target_matches: int = Field(default=5, ge=1, description="a rotation ends after so many")
    max_sources: int = Field(default=20, ge=1, description="boards that a rotation takes at most")
    drop_share: float = Field(
        default=0.5, ge=0, le=1, description="fewer listings than before by this: quarantined"
    )
    drop_floor: int = Field(default=5, ge=1, description="and at least so many listings fewer")
    lost_field_share: float = Field(
        default=0.5, ge=0, le=1, description="a field that so many listings lost: quarantined"
    )
    stale_seconds: float = Field(
        default=14 * DAY, gt=0, description="a board without a successful poll for so long is stale"
    )


class Filter(Group):
    """What speaks against a listing before anything is asked of a model."""

    strike_threshold: int = Field(default=5, ge=1, description="so many strikes filter a listing")
    salary_floor: int = Field(default=100_000, ge=0, description="a year; below it is rejected")
    strike_salary: int = Field(default=150_000, ge=0, description="a year; below it is two strikes")
    strike_experience_years: int = Field(default=6, ge=0, description="fewer asked is one strike")
    short_description: int = Field(default=200, ge=0, description="fewer characters are one strike")
    max_age_days: float = Field(default=7, gt=0, description="older is rejected")
    strike_age_days: float = Field(default=1, gt=0, description="older is one strike")


class Match(Group):
    """How well a listing must fit the profile."""

    profile: str = Field(default="profile.yaml", description="the file that says what fits")
    min_score: int = Field(default=80, ge=0, le=100, description="from so many on it is a match")
    home_city_score: int = Field(
        default=65, ge=0, le=100, description="instead of min_score in the profile's home city"
    )
    high_score: int = Field(default=85, ge=0, le=100, description="from so many on: priority high")
    medium_score: int = Field(default=70, ge=0, le=100, description="from so many on: medium")
    home_city_bonus: int = Field(default=15, description="points in the profile's home city")
    batch_size: int = Field(default=200, ge=1, le=2_000, description="listings judged at a time")
    concurrency: int = Field(default=8, ge=1, le=128, description="listings that ask a model")
    company_waits: int = Field(
        default=3, ge=0, le=10, description="how often a listing waits for its company's data"
    )
    company_wait_seconds: float = Field(
        default=60, ge=0, description="how long it waits each time for its company's data"
    )
