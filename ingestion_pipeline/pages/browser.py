"""The Chromium of this machine; the package brings none of its own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ingestion_pipeline.settings import Settings

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


class NoBrowser(Exception):
    """There is no Chromium to use; the message says what to do about it."""


def find_browser(settings: Settings) -> Path:
    """The program that the settings name, else the first one on the search path."""
    if settings.browser:
        given = Path(settings.browser)
        if given.is_file() and os.access(given, os.X_OK):
            return given
        raise NoBrowser(f"INGESTION_BROWSER={settings.browser!r} is not a program; name a Chromium")
    for name in NAMES:
        if found := shutil.which(name):
            return Path(found)
    raise NoBrowser(
        "no Chromium was found: `make system` installs it as root, or name one by INGESTION_BROWSER"
    )
