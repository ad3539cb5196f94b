"""What a materialization says: numbers that are known, and nothing in place of the others."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import dagster as dg

from ingestion_pipeline.orchestration.events import materialization
from ingestion_pipeline.series.reporting import SourceReport
from ingestion_pipeline_tests.builders import NOON

REPORT = SourceReport(
    source_id="series:solo",
    series_title="Solo",
    url="https://solo.test/feed",
    tier="hot",
    outcome="1 new",
    polls=16,
    changes=2,
    new=1,
    updated=3,
    withdrawn=4,
    total=20,
    latest_chapter=Decimal("20.5"),
    last_changed_at=NOON,
    newest=[],
    delay_minutes=12.345,
)


def numbers(report: SourceReport) -> dict[str, Any]:
    """What the UI draws."""
    return {
        name: value.value
        for name, value in materialization(report).metadata.items()
        if isinstance(value, dg.IntMetadataValue | dg.FloatMetadataValue)
    }


def test_every_number_is_one_that_the_ui_can_draw() -> None:
    assert numbers(REPORT) == {
        "polled": 16,
        "changed": 2,
        "new": 1,
        "updated": 3,
        "withdrawn": 4,
        "total": 20,
        "latest_chapter": 20.5,
        "delay_minutes": 12.3,
    }


def test_what_nobody_knows_is_not_there_and_never_zero() -> None:
    known = numbers(replace(REPORT, delay_minutes=None, latest_chapter=None))

    assert numbers(REPORT).keys() - known.keys() == {"delay_minutes", "latest_chapter"}
    assert numbers(replace(REPORT, delay_minutes=0.0))["delay_minutes"] == 0
