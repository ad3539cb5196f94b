from __future__ import annotations

from ingestion_pipeline.assembly import open_renderer
from ingestion_pipeline.pages.browser import BrowserLimits
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline_tests.builders import NOON


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
