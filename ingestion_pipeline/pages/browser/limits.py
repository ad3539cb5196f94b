"""What one page may cost in a browser."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from ingestion_pipeline.pages.verdict import DEFAULT_WAITS, Waits
from ingestion_pipeline.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserLimits:
    """`max_bytes` holds for all that a page loads, on the wire and again after inflating."""

    pages: int = 4
    deadline_seconds: float = 60.0
    discovery_seconds: float = 600.0
    patience_seconds: float = 10.0
    connect_seconds: float = 10.0
    max_bytes: int = 50_000_000
    max_html_bytes: int = 10_000_000
    max_navigations: int = 5
    screenshot_height: int = 4_000
    blocked_resources: frozenset[str] = frozenset({"font", "image", "media"})
    sandbox: str = "auto"
    waits: Waits = DEFAULT_WAITS

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The limits that the settings name."""
        rendering, fetch = settings.rendering, settings.fetch
        return cls(
            pages=rendering.pages,
            deadline_seconds=rendering.deadline_seconds,
            discovery_seconds=rendering.discovery_seconds,
            patience_seconds=rendering.patience_seconds,
            connect_seconds=fetch.connect_seconds,
            max_bytes=rendering.max_bytes,
            max_html_bytes=fetch.max_bytes,
            max_navigations=fetch.max_redirects,
            screenshot_height=rendering.screenshot_height,
            blocked_resources=rendering.blocked_types,
            sandbox=rendering.sandbox,
            waits=Waits(
                blocked=timedelta(seconds=fetch.blocked_wait_seconds),
                rate_limited=timedelta(seconds=fetch.rate_limit_wait_seconds),
                longest=timedelta(seconds=fetch.longest_wait_seconds),
            ),
        )
