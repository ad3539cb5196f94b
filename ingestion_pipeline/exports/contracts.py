"""What each asset publishes, column by column: one declaration for the catalogue and for the check.

A contract never stops what it describes: rows that break it are named, with the cure. Bad readings
are held back elsewhere, before they are rows. Whether rows keep it is found out in `holding`, what
columns mean stands in `meanings`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from ingestion_pipeline.catalogs.states import DatasetStatus, PageStatus
from ingestion_pipeline.companies.states import (
    CompanyStatus,
    ListingDecision,
    ListingStatus,
    Priority,
)
from ingestion_pipeline.exports.columns import ExportColumn, Holds
from ingestion_pipeline.exports.meanings import meaning
from ingestion_pipeline.exports.tables import table_columns
from ingestion_pipeline.sources.health import Health
from ingestion_pipeline.sources.recipient import Mode
from ingestion_pipeline.sources.source import Kind, SourceStatus, Tier
from ingestion_pipeline.websites.states import AnalysisStatus

_URL = r"https?://.+"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractRule:
    """What holds of every value of a column; a broken one is an error unless it is a warning."""

    said: str
    cure: str
    matches: str | None = None
    among: tuple[str, ...] = ()
    between: tuple[float, float] | None = None
    is_required: bool = False
    is_warning: bool = False

    @property
    def pattern(self) -> str:
        """What a whole text matches."""
        return rf"^(?:{self.matches})$"

    def holds(self, value: object) -> bool:
        """Whether it does of this value; of a missing one all does that does not require it."""
        if value is None:
            return not self.is_required
        if self.matches is not None:
            return re.match(self.pattern, str(value)) is not None
        if self.between is not None:
            low, high = self.between
            return isinstance(value, int | float | Decimal) and low <= value <= high
        return not self.among or value in self.among


KEY = ContractRule(
    said="unique and never missing",
    cure="the database would not take it: `ingest doctor` looks at its integrity",
    is_required=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """The rows of an export that an asset publishes, and what holds of their columns."""

    asset: str
    export: str
    rules: Mapping[str, Sequence[ContractRule]] = field(
        default_factory=dict[str, Sequence[ContractRule]]
    )

    own: Sequence[ExportColumn] = ()

    def columns(self) -> list[ExportColumn]:
        """As the export has them, or its own: what is not published is no part of it."""
        return list(self.own) or table_columns(self.export)

    def describe(self, column: str) -> str:
        """What the column means, and what holds of it."""
        told = [meaning(self.export, column), *(one.said for one in self.rules.get(column, ()))]
        return "; ".join(told)

    def all_rules(self) -> dict[str, Sequence[ContractRule]]:
        """By column; ids are unique besides."""
        has_id = any(one.name == "id" for one in self.columns())
        return {**({"id": [KEY]} if has_id else {}), **self.rules}


def _needed(cure: str) -> ContractRule:
    return ContractRule(said="never missing", cure=cure, is_required=True)


def _among(*words: str) -> ContractRule:
    cure = "a newer version may have written it: upgrade, or correct the row"
    return ContractRule(said=f"one of {', '.join(words)}", cure=cure, among=words)


_ADDRESS = ContractRule(
    said="an http or https address",
    cure="`ingest explain` shows what the source says; correct its config",
    matches=_URL,
    is_warning=True,
)
_LOOK = "`ingest sources show ID` has what it was made of"
_COUNT = ContractRule(said="0 and up", cure=_LOOK, between=(0, float("inf")))
_HEALTH_HOLDS = {
    Holds.TIME: ("last_checked_at", "last_success_at", "next_check_at"),
    Holds.WHOLE: ("failure_count", "record_count"),
    Holds.FLOAT: ("changes_per_day", "change_confidence"),
    Holds.DECIMAL: ("cost_30d_usd",),
    Holds.JSON: ("failures", "coverage"),
}
_HEALTH_NAMES = (
    *("id", "kind", "tier", "status", "health", "health_reason", "why", "last_outcome"),
    *("last_checked_at", "last_success_at", "next_check_at", "failure_count", "record_count"),
    *("error_class", "breaker", "failures", "coverage", "cost_30d_usd", "changes_per_day"),
    "change_confidence",
)
_HEALTH = tuple(
    ExportColumn(
        name=name,
        holds=next((one for one, some in _HEALTH_HOLDS.items() if name in some), Holds.TEXT),
    )
    for name in _HEALTH_NAMES
)
_ANEW = "analyse the website anew: materialize its partition"
_TITLE = _needed("`ingest explain` shows the body; the reader's selector may have moved")

CONTRACTS: Mapping[str, Contract] = {
    one.asset: one
    for one in (
        Contract(
            asset="sources",
            export="sources",
            rules={
                "url": [_ADDRESS],
                "tier": [_among(*Tier)],
                "status": [_among(*SourceStatus)],
            },
        ),
        Contract(
            asset="chapters",
            export="chapter_sources",
            rules={
                "chapter_id": [_needed("the chapter is gone; `ingest series` moves links")],
                "url": [_ADDRESS],
            },
        ),
        Contract(
            asset="pages",
            export="pages",
            rules={"url": [_ADDRESS], "status": [_among(*PageStatus)]},
        ),
        Contract(
            asset="datasets",
            export="datasets",
            rules={
                "version": [
                    ContractRule(
                        said="from 1 on", cure="delete the dataset", between=(1, float("inf"))
                    )
                ],
                "status": [_among(*DatasetStatus)],
                "item_count": [_COUNT],
            },
        ),
        Contract(
            asset="companies",
            export="companies",
            rules={
                "website": [_ADDRESS],
                "status": [_among(*CompanyStatus)],
                "tier": [_among("S", "A", "B", "C", "D")],
            },
        ),
        Contract(
            asset="job_listings",
            export="job_listings",
            rules={
                "title": [_TITLE],
                "url": [_ADDRESS],
                "remote": [_among("remote", "hybrid", "on_site")],
                "status": [_among(*ListingStatus)],
                "verdict": [_among(*ListingDecision)],
            },
        ),
        Contract(
            asset="job_matches",
            export="job_matches",
            rules={
                "score": [
                    ContractRule(
                        said="0 to 100", cure="judge it anew: touch the profile", between=(0, 100)
                    )
                ],
                "priority": [_among(*Priority)],
                "reason": [_needed("judge it anew: touch the profile")],
            },
        ),
        Contract(
            asset="website_info",
            export="website_analyses",
            rules={"url": [_ADDRESS], "status": [_among(*AnalysisStatus)]},
        ),
        Contract(
            asset="website_prompts",
            export="website_analyses",
            rules={
                "progress_percent": [ContractRule(said="0 to 100", cure=_ANEW, between=(0, 100))]
            },
        ),
        Contract(
            asset="website_analysis",
            export="website_rankings",
            rules={
                "visibility": [ContractRule(said="0 to 1", cure=_ANEW, between=(0, 1))],
                "score": [ContractRule(said="0 to 100", cure=_ANEW, between=(0, 100))],
            },
        ),
        Contract(
            asset="notices",
            export="notices",
            rules={
                "recipient": [_needed("`ingest recipients list` shows who there is")],
                "status": [_among("pending", "sent", "failed", "muted")],
                "mode": [_among(*Mode)],
            },
        ),
        Contract(
            asset="source_health",
            export="source_health",
            rules={
                "kind": [_among(*Kind)],
                "tier": [_among(*Tier)],
                "status": [_among(*SourceStatus)],
                "health": [_among(*Health)],
                "health_reason": [_needed(_LOOK)],
                "why": [_needed(_LOOK)],
                "breaker": [_among("open", "closed")],
                "failure_count": [_COUNT],
                "record_count": [_COUNT],
                "changes_per_day": [_COUNT],
                "change_confidence": [ContractRule(said="0 to 1", cure=_LOOK, between=(0, 1))],
                "cost_30d_usd": [_COUNT],
            },
            own=_HEALTH,
        ),
    )
}
