"""Rescores companies when the profile or the points change, without fetching any page.

The record stores what the pages stated: technologies, remote first, and whether the city was among
its places. Another city in the settings takes effect at the company's next analysis.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, or_, select

from ingestion_pipeline.companies.analysis.scoring import Score, rank_points, score, scoring_hash
from ingestion_pipeline.companies.boards.listing_rows import update_rows
from ingestion_pipeline.companies.matching.profile import Profile
from ingestion_pipeline.companies.matching.runs import settings_profile
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.settings.systems import Company
from ingestion_pipeline.store.tables import companies

SCORED_AT_ONCE = 500


def ranks_of(settings: Settings) -> dict[str, int]:
    """Return the points of the profile's skills; empty without a usable profile."""
    profile = settings_profile(settings)
    return rank_points(profile.skills) if isinstance(profile, Profile) else {}


def is_scoring_due(connection: Connection, settings: Settings) -> bool:
    """Return whether a company was scored with another profile or other points."""
    own = scoring_hash(ranks_of(settings), settings.company)
    query = select(companies.c.id).where(_scored_otherwise(own)).limit(1)
    return connection.execute(query).first() is not None


def rescore(connection: Connection, settings: Settings, *, now: datetime) -> int:
    """Rescore a batch of companies with outdated scores; return how many."""
    ranks = ranks_of(settings)
    own = scoring_hash(ranks, settings.company)
    query = select(companies.c.id, companies.c.tech_stack, companies.c.is_remote_first, companies.c.score_parts)
    batch = query.where(_scored_otherwise(own)).order_by(companies.c.id).limit(SCORED_AT_ONCE).with_for_update()
    outdated = connection.execute(batch).mappings()
    scores = {row["id"]: score_again(row, ranks, settings.company) for row in outdated}
    if not scores:
        return 0
    rows = [(id_, result.points, result.tier, dict(result.parts)) for id_, result in scores.items()]
    names = ("id", "score", "tier", "score_parts")
    update_rows(connection, companies, names, rows, {"scoring_hash": own, "updated_at": now})
    return len(scores)


def score_again(row: RowMapping, ranks: Mapping[str, int], rules: Company) -> Score:
    """Return the score of the company's stored data with these ranks and points."""
    parts: Mapping[str, int] = row["score_parts"] or {}
    was_there = parts.get("city", 0) > 0
    return score(
        tech_stack=row["tech_stack"] or {},
        is_remote_first=row["is_remote_first"],
        places=[rules.bonus_city] if was_there else [],
        ranks=ranks,
        rules=rules,
    )


def _scored_otherwise(own: str) -> ColumnElement[bool]:
    stored = companies.c.scoring_hash
    return and_(companies.c.score.is_not(None), or_(stored.is_(None), stored < own, stored > own))
