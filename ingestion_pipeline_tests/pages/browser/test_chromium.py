"""Which Chromium is used: the configured one, else one that is installed."""

from pathlib import Path

import pytest

from ingestion_pipeline.pages.browser import NoBrowser, browser_version, find_browser
from ingestion_pipeline.settings import load_settings


def a_program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o700)
    return path


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the search path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path / "playwright"))
    return folder


def test_a_configured_browser_wins_over_the_search_path(tmp_path: Path, path: Path) -> None:
    a_program(path / "chromium")
    configured = a_program(tmp_path / "mine" / "chrome")

    assert find_browser(load_settings({"INGESTION_BROWSER": str(configured)})) == configured


@pytest.mark.parametrize("name", ["chromium", "google-chrome"])
def test_a_browser_is_found_on_the_search_path(path: Path, name: str) -> None:
    program = a_program(path / name)

    assert find_browser(load_settings({})) == program


def test_playwrights_newest_browser_wins_over_the_search_path(tmp_path: Path, path: Path) -> None:
    a_program(path / "chromium")
    for revision in ("999", "1200"):
        newest = a_program(tmp_path / "playwright" / f"chromium-{revision}" / "chrome-linux64" / "chrome")

    assert find_browser(load_settings({})) == newest


def test_a_program_that_prints_no_version_is_not_a_browser(tmp_path: Path) -> None:
    program = a_program(tmp_path / "chrome")
    for text in ("", "#!/bin/sh\nexit 3\n", "#!/bin/sh\necho hello\n"):
        program.write_text(text)
        with pytest.raises(NoBrowser, match="INGESTION_BROWSER"):
            browser_version(program)

    program.write_text("#!/bin/sh\necho warning >&2; echo 'Google Chrome 156.0.8078.79 beta'\n")
    assert browser_version(program) == "Google Chrome 156.0.8078.79"


def test_a_configured_browser_that_is_not_a_program_is_refused(tmp_path: Path, path: Path) -> None:
    a_program(path / "chromium")
    (tmp_path / "notes.txt").touch(mode=0o600)

    for wrong in ("notes.txt", "nothing", "bin"):
        with pytest.raises(NoBrowser, match=f"INGESTION_BROWSER=.*{wrong}.* is not a program"):
            find_browser(load_settings({"INGESTION_BROWSER": str(tmp_path / wrong)}))


@pytest.mark.usefixtures("path")
def test_without_a_browser_the_cure_is_named() -> None:
    with pytest.raises(NoBrowser, match="`make system` installs it"):
        find_browser(load_settings({}))
