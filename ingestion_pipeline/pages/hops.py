"""Where a visit is led on to, by redirects and refreshes."""

from __future__ import annotations

from collections.abc import Callable

from ingestion_pipeline.urls import without_credentials
from ingestion_pipeline.work.errors import Permanent

Check = Callable[[str], None]
"""Raises a `WorkError` if a page must not be asked for."""


class Hops:
    """Redirects and refreshes of one visit, counted together; each is checked before it is gone."""

    def __init__(self, url: str, most: int, check: Check | None) -> None:
        self._url = url
        self._left = most
        self._most = most
        self._check = check
        self.refreshed = False
        self._reloaded = False

    def follow(self, url: str) -> None:
        """Raise if the visit must not be led there."""
        self._left -= 1
        if self._left < 0:
            raise self._refused(f"more than {self._most} times")
        if self._check is not None:
            self._check(url)

    def is_reload(self, page: str, target: str) -> bool:
        """Whether a page only has itself shown again, by another parameter each time.

        It is led to once, since some say so which page they mean.
        """
        is_again, self._reloaded = self._reloaded, _place(page) == _place(target)
        return is_again and self._reloaded

    def refresh(self, page: str, target: str) -> None:
        """The same for a refresh, which no transport has looked at yet."""
        self.refreshed = True
        if page.startswith("https:") and not target.startswith("https:"):
            raise self._refused("from https to http")
        self.follow(target)

    def _refused(self, how: str) -> Permanent:
        return Permanent(f"{without_credentials(self._url)} redirects {how}", code="redirects")


def _place(url: str) -> str:
    return url.partition("#")[0].partition("?")[0]
