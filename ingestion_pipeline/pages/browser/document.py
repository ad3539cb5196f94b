"""Rules for the main document of a rendered page: the same as for a page fetched by HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from ingestion_pipeline.pages.http.fetcher import next_url, wire_url
from ingestion_pipeline.pages.http.status import DEFAULT_WAITS, Waits, status_error
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline.urls import without_credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserLimits:
    """Limits of rendering; `max_bytes` holds for all that a page loads, also after inflating."""

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


Check = Callable[[str], None]
"""Raises a `WorkError` if a page must not lead to the URL."""

_HTML = frozenset({"", "text/html", "application/xhtml+xml"})
_NO_BODY = frozenset({204, 205})


class Document:
    """The main document of a page, from the requested URL through all that it leads to.

    Redirects, refreshes and scripts count alike; every refusal is a `WorkError`.
    """

    def __init__(
        self, url: str, limits: BrowserLimits, *, check_url: Check | None, clock: Callable[[], datetime]
    ) -> None:
        self.requested_url = wire_url(url)
        self.url = self.requested_url
        self.status_code = 0
        self.navigations = -1
        self._limits = limits
        self._check_url = check_url
        self._clock = clock

    def begin(self) -> None:
        """Reset to the requested URL, before it is opened."""
        self.url = self.requested_url
        self.navigations = -1

    def may_request(self, url: str) -> None:
        """Raise if the document must not be requested."""
        self.navigations += 1
        if self.navigations == 0:
            return
        url = next_url(self.url, url)
        if self.navigations > self._limits.max_navigations:
            most = self._limits.max_navigations
            raise Permanent(f"{self._shown} redirects more than {most} times", code="redirects")
        if self._check_url is not None:
            self._check_url(url)
        self.url = url

    def may_show(self, status: int, headers: Mapping[str, str]) -> None:
        """Raise if the response is no web page; header names are lower case."""
        if 300 <= status < 400 and "location" in headers:  # noqa: PLR2004 - it leads on
            return
        if error := status_error(status, headers, self.url, self._clock(), self._limits.waits):
            raise error
        if status in _NO_BODY:
            raise Permanent(f"{self._shown} answered {status}: there is no page", code="no_page")
        if headers.get("content-disposition", "").lower().startswith("attachment"):
            raise self.download()
        label = headers.get("content-type", "").partition(";")[0].strip().lower()
        if label not in _HTML:
            raise Permanent(
                f"{self._shown} is {label[:80]}, no web page; fetch it without `render: true`", code="wrong_type"
            )
        self.status_code = status

    def download(self) -> Permanent:
        """Return the failure of a page that is a download."""
        return Permanent(
            f"{self._shown} is a download, no web page; fetch it without `render: true`", code="wrong_type"
        )

    def too_large(self, max_bytes: int) -> Permanent:
        """Return the failure of a page that loads too much."""
        return Permanent(
            f"{self._shown} loads more than {max_bytes} bytes; if that is right, raise the setting rendering.max_bytes",
            code="too_large",
        )

    @property
    def _shown(self) -> str:
        return without_credentials(self.url)
