"""A release: one publication of one chapter, as one source states it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One row of a source's listing; several may share a number (languages, groups)."""

    number: Decimal | None
    title: str | None
    url: str | None
    language: str | None
    scanlation_group: str | None
    source_chapter_id: str | None
    volume: str | None
    published_at: datetime | None
