"""What one page may cost in a browser."""

from __future__ import annotations

from dataclasses import dataclass

from ingestion_pipeline.pages.verdict import DEFAULT_WAITS, Waits


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
