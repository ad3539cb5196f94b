"""Pages that only a browser can show: a URL enters, its DOM leaves as a `Rendered`.

Playwright is imported by whoever starts a browser, and by nobody before. Two things stand between
a page and the network: routes, which know why something is asked for, and a proxy of ours, which
knows the address. When a page deserves a browser does not belong here.
"""

from ingestion_pipeline.pages.browser.chromium import NoBrowser, browser_version, find_browser
from ingestion_pipeline.pages.browser.document import BrowserLimits
from ingestion_pipeline.pages.browser.renderer import BrowserRenderer

__all__ = ["BrowserLimits", "BrowserRenderer", "NoBrowser", "browser_version", "find_browser"]
