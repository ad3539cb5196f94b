"""The Chromium of this machine; the package brings none of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from ingestion_pipeline.settings import Settings

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
CURE = (
    "`make system` installs it as root, `.venv/bin/playwright install chromium` without,"
    " or name one by INGESTION_BROWSER"
)
_VERSION_SECONDS = 20
_VERSION = re.compile(r"(?<![A-Za-z ])[A-Za-z]++(?: [A-Za-z]++)*+ [0-9]++(?:\.[0-9]++)++")

# Below a folder chromium-REVISION; Linux, then macOS.
_PLAYWRIGHTS_PROGRAMS = (
    "chrome-linux*/chrome",
    "chrome-mac*/Chromium.app/Contents/MacOS/Chromium",
    "chrome-mac*/Google Chrome for Testing.app/Contents/MacOS/Google Chrome for Testing",
)


class NoBrowser(Exception):
    """There is no Chromium to use; the message says what to do about it."""


def find_browser(settings: Settings) -> Path:
    """The program that the settings name, else playwright's own, else the search path's first."""
    if settings.browser:
        given = Path(settings.browser)
        if _is_program(given):
            return given
        raise NoBrowser(f"INGESTION_BROWSER={settings.browser!r} is not a program; name a Chromium")
    if (own := _playwrights_own()) is not None:
        return own
    for name in NAMES:
        if found := shutil.which(name):
            return Path(found)
    raise NoBrowser(f"no Chromium was found: {CURE}")


def browser_version(program: Path) -> str:
    """What the program calls itself, such as `Chromium 156.0.1.2`; it is started for that."""
    try:
        done = subprocess.run(  # noqa: S603 - the operator's own browser
            [program, "--version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise NoBrowser(f"{program} does not start: {error}; {CURE}") from error
    found = _VERSION.search(done.stdout)
    if done.returncode != 0 or found is None:
        said = (done.stderr or done.stdout).strip()[:200]
        raise NoBrowser(f"{program} does not say its version: {said!r}; {CURE}")
    return found[0]


def _playwrights_own() -> Path | None:
    """The newest Chromium that `playwright install` has left on this machine."""
    for folder in _playwrights_folders():
        found = sorted(folder.glob("chromium-*"), key=_revision, reverse=True)
        programs = (
            one for home in found for name in _PLAYWRIGHTS_PROGRAMS for one in home.glob(name)
        )
        if (own := next((one for one in programs if _is_program(one)), None)) is not None:
            return own
    return None


def _playwrights_folders() -> list[Path]:
    given = os.environ.get("PLAYWRIGHT_BROWSERS_PATH")  # noqa: TID251 - playwright's, no setting of ours
    if given and given != "0":
        return [Path(given)]
    try:
        home = Path.home()
    except RuntimeError:  # a user without a home
        return []
    return [home / ".cache" / "ms-playwright", home / "Library" / "Caches" / "ms-playwright"]


def _revision(folder: Path) -> int:
    digits = folder.name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else 0


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
