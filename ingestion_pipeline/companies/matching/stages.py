"""The stages of a listing's evaluation: which is next, and the rules of the pure ones."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from ingestion_pipeline.companies.matching.filtering import FilterItem, FilterResult, filter_listing, stopped
from ingestion_pipeline.companies.matching.listed_job import ListedJob
from ingestion_pipeline.companies.matching.profile import Profile
from ingestion_pipeline.companies.matching.scoring import RULES_VERSION, MatchResult
from ingestion_pipeline.companies.states import ListingDecision
from ingestion_pipeline.settings import Settings

_HALF = 31  # characters of a hash: two of them and a colon fill the column

# The settings that a decision depends on.
_MATCH = ("min_score", "home_city_score", "high_score", "medium_score", "home_city_bonus")


class ListingStage(StrEnum):
    """The next step for a listing; all run in one claim unless one has to wait."""

    SCRAPE = "SCRAPE"
    FILTER = "FILTER"
    ANALYZE = "ANALYZE"
    SAVE = "SAVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The progress of a listing; the next stage follows from what is missing."""

    has_data: bool = False
    stop: FilterItem | None = None
    filtered: FilterResult | None = None
    match: MatchResult | None = None


def next_stage(state: JobState) -> ListingStage:
    """Return SCRAPE without data, FILTER if not filtered, ANALYZE if not scored, else SAVE.

    Listings that the stop lists or the filter rejected go straight to SAVE.
    """
    if state.stop is not None:
        return ListingStage.SAVE
    if not state.has_data:
        return ListingStage.SCRAPE
    if state.filtered is None:
        return ListingStage.FILTER
    is_over = not state.filtered.passed or state.match is not None
    return ListingStage.SAVE if is_over else ListingStage.ANALYZE


def decision_of(state: JobState) -> ListingDecision:
    """Return the decision on a listing that has been through its stages."""
    if state.stop is not None:
        return ListingDecision.SKIPPED
    if state.filtered is not None and not state.filtered.passed:
        return ListingDecision.FILTERED
    is_match = state.match is not None and state.match.is_match
    return ListingDecision.MATCHED if is_match else ListingDecision.SKIPPED


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The profile and settings that every listing of a run is evaluated by."""

    profile: Profile
    settings: Settings

    @property
    def hash(self) -> str:
        """Return a hash that is equal while the same listing gets the same decision."""
        settings = self.settings
        numbers = [getattr(settings.match, name) for name in _MATCH]
        parts = [RULES_VERSION, self.profile.hash, settings.filter.model_dump(), numbers]
        serialised = json.dumps(parts, sort_keys=True)
        return hashlib.sha256(serialised.encode()).hexdigest()[:_HALF]

    def rules_hash(self, content_hash: str) -> str:
        """Return the key of these rules and this content; equal rules give equal prefixes."""
        return f"{self.hash}:{content_hash[: _HALF + 1]}"

    def initial_state(self, listing: ListedJob, *, has_data: bool) -> JobState:
        """Return the state before anything is fetched: only the stop lists are applied."""
        stop = stopped(self.profile, title=listing.title, url=listing.url, company=listing.company)
        return JobState(has_data=has_data, stop=stop)

    def filtered(self, state: JobState, listing: ListedJob, *, at: datetime) -> JobState:
        """Return the state after FILTER."""
        result = filter_listing(listing, self.profile, self.settings.filter, at=at)
        return replace(state, has_data=True, filtered=result)


def same_content(rules_hash: str | None, content_hash: str) -> bool:
    """Return whether the listing's content is unchanged since that evaluation."""
    return rules_hash is not None and rules_hash.endswith(f":{content_hash[: _HALF + 1]}")
