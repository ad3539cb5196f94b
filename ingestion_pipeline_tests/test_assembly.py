from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ingestion_pipeline.assembly import open_from_environment, open_renderer
from ingestion_pipeline.pages.browser import BrowserLimits
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline_tests.builders import NOON


@pytest.mark.parametrize("level", ["DEBUG", "ERROR"])
def test_our_loggers_speak_from_the_level_that_is_set(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, level: str
) -> None:
    caplog.set_level("WARNING", logger="ingestion_pipeline")  # put back at the end of the test
    log = logging.getLogger("ingestion_pipeline.work.queue")

    _, store = open_from_environment(
        {"INGESTION_HOME": str(tmp_path), "INGESTION_LOG_LEVEL": level}
    )

    store.close()
    assert logging.getLevelName(log.getEffectiveLevel()) == level


def test_the_limits_of_a_browser_are_those_of_the_settings() -> None:
    by_default = open_renderer(load_settings({}), clock=lambda: NOON)
    changed = open_renderer(
        load_settings(
            {
                "INGESTION_RENDERING__PAGES": "7",
                "INGESTION_RENDERING__BLOCKED_RESOURCES": "media,stylesheet",
                "INGESTION_FETCH__MAX_REDIRECTS": "2",
            }
        ),
        clock=lambda: NOON,
    )

    assert by_default._limits == BrowserLimits()
    assert changed._limits.pages == 7
    assert changed._limits.blocked_resources == {"media", "stylesheet"}
    assert changed._limits.max_navigations == 2
