"""Rendering pages in a browser: a URL goes in, its DOM comes out as a `Rendered`.

Playwright is imported only when a browser is started. Two things stand between a page and the
network: routes, which know why something is requested, and our proxy, which knows the address.
Which page needs a browser is decided elsewhere.
"""

from ingestion_pipeline.pages.browser.chromium import NoBrowser, browser_version, find_browser
from ingestion_pipeline.pages.browser.renderer import BrowserRenderer

__all__ = ["BrowserRenderer", "NoBrowser", "browser_version", "find_browser"]
