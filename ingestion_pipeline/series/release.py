"""A release: one publication of one chapter, as one source states it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from ingestion_pipeline.urls import without_secrets


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

    def __post_init__(self) -> None:
        """Take secrets out of the addresses: a private feed names its reader in each of them."""
        for name in ("url", "source_chapter_id"):
            if (address := getattr(self, name)) is not None and "://" in address:
                object.__setattr__(self, name, without_secrets(address))
