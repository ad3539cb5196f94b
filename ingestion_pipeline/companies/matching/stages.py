"""From a listing to a verdict: which stage is next, and what each of the pure ones makes of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from ingestion_pipeline.companies.matching.filtering import (
    FilterItem,
    FilterResult,
    filter_listing,
    stopped,
)
from ingestion_pipeline.companies.matching.listed_job import ListedJob
from ingestion_pipeline.companies.matching.profile import Profile
from ingestion_pipeline.companies.matching.scoring import RULES_VERSION, MatchResult
from ingestion_pipeline.companies.states import ListingDecision
from ingestion_pipeline.settings import Settings

_HALF = 31  # characters of a hash: two of them and a colon fill the column

# Of the settings those that a verdict depends on.
_MATCH = ("min_score", "home_city_score", "high_score", "medium_score", "home_city_bonus")


class ListingStage(StrEnum):
    """What is done next to a listing; all of them in one claim, unless one has to wait."""

    SCRAPE = "SCRAPE"
    FILTER = "FILTER"
    ANALYZE = "ANALYZE"
    SAVE = "SAVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """What is known of a listing so far; the route follows from what is missing."""

    has_data: bool = False
    stop: FilterItem | None = None
    filtered: FilterResult | None = None
    match: MatchResult | None = None


def next_stage(state: JobState) -> ListingStage:
    """No data: SCRAPE; not filtered: FILTER; not scored: ANALYZE; else SAVE.

    What the stop lists or the filter ended goes straight to SAVE.
    """
    if state.stop is not None:
        return ListingStage.SAVE
    if not state.has_data:
        return ListingStage.SCRAPE
    if state.filtered is None:
        return ListingStage.FILTER
    is_over = not state.filtered.passed or state.match is not None
    return ListingStage.SAVE if is_over else ListingStage.ANALYZE


def verdict_of(state: JobState) -> ListingDecision:
    """What a listing came to that has been through its stages."""
    if state.stop is not None:
        return ListingDecision.SKIPPED
    if state.filtered is not None and not state.filtered.passed:
        return ListingDecision.FILTERED
    is_match = state.match is not None and state.match.is_match
    return ListingDecision.MATCHED if is_match else ListingDecision.SKIPPED


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What every listing of a run is judged by."""

    profile: Profile
    settings: Settings

    @property
    def hash(self) -> str:
        """The same as long as the same listing gets the same verdict."""
        settings = self.settings
        numbers = [getattr(settings.match, name) for name in _MATCH]
        parts = [RULES_VERSION, self.profile.hash, settings.filter.model_dump(), numbers]
        said = json.dumps(parts, sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()[:_HALF]

    def judged_as(self, content_hash: str) -> str:
        """By which rules a listing of this content was judged; those of equal rules begin alike."""
        return f"{self.hash}:{content_hash[: _HALF + 1]}"

    def begun(self, listing: ListedJob, *, has_data: bool) -> JobState:
        """Before anything is fetched: the stop lists."""
        stop = stopped(self.profile, title=listing.title, url=listing.url, company=listing.company)
        return JobState(has_data=has_data, stop=stop)

    def filtered(self, state: JobState, listing: ListedJob, *, at: datetime) -> JobState:
        """After FILTER."""
        found = filter_listing(listing, self.profile, self.settings.filter, at=at)
        return replace(state, has_data=True, filtered=found)


def same_content(judged_as: str | None, content_hash: str) -> bool:
    """Whether a listing that was judged then has said the same ever since."""
    return judged_as is not None and judged_as.endswith(f":{content_hash[: _HALF + 1]}")
