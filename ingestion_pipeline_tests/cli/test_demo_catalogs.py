"""The demo's words on its catalogues."""

from __future__ import annotations

from typing import Any

import pytest

from ingestion_pipeline.cli.demo_catalogs import DemoPage, browser_note, crawl_state, why_disabled
from ingestion_pipeline.sources import SourceStatus
from ingestion_pipeline_tests.sources.test_status import a_source

SHIPS = "http://catalog.demo.test/courses/art-204"
WALL = "disabled, behind a login wall: it asks for a password; `ingest sources enable` ends it"


def seen(**values: Any) -> DemoPage:
    return DemoPage(source_id="catalog:a", url=SHIPS, result="new", **values)


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ({}, ""),
        ({"needs_browser": True}, f"no browser was needed: {SHIPS} is unchanged"),
        (
            {"needs_browser": True, "is_rendered": True},
            f"rendered by a browser, because empty without JavaScript: {SHIPS}",
        ),
    ],
)
def test_whether_a_browser_was_opened_is_told(page: dict[str, bool], said: str) -> None:
    assert browser_note([seen(**page)]) == said


@pytest.mark.parametrize(
    ("reason", "short"),
    [
        (WALL, "behind a login wall"),
        ("disabled after 10 failed polls in a row; `ingest sources enable` ends it", "after 10 failed polls in a row"),
        (None, "by hand"),
    ],
)
def test_a_disabled_catalogue_is_named_with_its_reason(reason: str | None, short: str) -> None:
    source = a_source(status=SourceStatus.DISABLED, status_reason=reason)

    assert crawl_state(source) == "disabled"
    assert why_disabled(source).startswith(f"{source.id} is disabled ({short}); `ingest sources")


def test_a_crawl_that_failed_is_not_called_complete() -> None:
    assert crawl_state(a_source(last_error_class="transient")) == "failed"
    assert crawl_state(a_source()) == "complete"
