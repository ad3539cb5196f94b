"""Problems in the data although every run succeeded: gaps, quarantines, stale sources."""

import pytest
from sqlalchemy import update

from ingestion_pipeline.series import checks
from ingestion_pipeline.sources.status import Finding, summary
from ingestion_pipeline.store import FixedClock
from ingestion_pipeline.store.tables import sources
from ingestion_pipeline_tests.series.series_harness import SOLO, SeriesHarness, releases


def test_gaps_are_what_is_missing_after_a_series_own_first_chapter(harness: SeriesHarness) -> None:
    listed = {
        "whole": releases(1, 2, "2.5", 3),
        "gap": releases(1, 2, 5, "5.5"),
        "late": releases(500, 501, 503),
        "zero": releases(0, 2),
        "half": releases("0.5", 2),
        "oneshot": releases(None),
        "far": releases(1, 200),
        "extras": releases(1, "2.99", 3, "7.98", "9.97"),
        "only-extras": releases("5.99", "9.99"),
    }
    for name in listed:
        harness.add_source(f"series:{name}", series_id=name)
    harness.sync_together({f"series:{name}": messages for name, messages in listed.items()})

    with harness.store.read() as connection:
        messages = {finding.subject: finding.message for finding in checks.gaps(connection)}

    many = ", ".join(str(number) for number in range(2, 22))
    assert messages == {
        "gap": "missing: 3, 4",
        "late": "missing: 502",
        "zero": "missing: 1",
        "half": "missing: 1",
        "far": f"missing: {many}, ...",
        "extras": "missing: 2",
    }


def test_a_withdrawn_chapter_is_a_gap(harness: SeriesHarness) -> None:
    harness.add_source()
    for numbers in ((1, 2, 3), (1, 3), (1, 3)):
        harness.sync(releases(*numbers))

    with harness.store.read() as connection:
        assert checks.gaps(connection) == [Finding(subject="solo", message="missing: 2")]


def test_a_quarantine_is_a_finding_until_a_listing_is_ingested_again(harness: SeriesHarness) -> None:
    harness.add_source()
    harness.sync(releases(1))
    harness.sync([])
    with harness.store.read() as connection:
        [finding] = checks.quarantined(connection)
    assert finding.subject == SOLO
    assert finding.message.startswith("quarantined: lists nothing, 1 chapters are known")

    harness.sync(releases(1))
    with harness.store.read() as connection:
        assert checks.quarantined(connection) == []


def test_a_source_is_stale_after_three_intervals_without_success(harness: SeriesHarness, clock: FixedClock) -> None:
    harness.add_source(tier="hot", tier_pinned=True)  # every quarter of an hour
    harness.sync(releases(1))
    harness.add_source("series:new")

    def stale() -> list[Finding]:
        with harness.store.read() as connection:
            return checks.stale(connection, now=clock.at, settings=harness.settings)

    clock.advance(minutes=45)
    assert stale() == []

    clock.advance(minutes=1)
    message = "last success 2026-03-01 12:00 UTC; first sync: 1 new"
    assert stale() == [Finding(subject=SOLO, message=message)]

    clock.advance(hours=12)
    with harness.store.begin() as connection:
        connection.execute(update(sources).where(sources.c.id == SOLO).values(status="disabled"))
    never_polled = Finding(subject="series:new", message="never succeeded; not polled yet")
    assert stale() == [never_polled]


@pytest.mark.parametrize(("count", "last"), [(20, "s19: m"), (21, "and 1 more")])
def test_a_summary_writes_out_the_first_twenty(count: int, last: str) -> None:
    findings = [Finding(subject=f"s{number}", message="m") for number in range(count)]

    lines = summary(findings).splitlines()

    assert (lines[0], lines[-1]) == ("s0: m", last)
    assert len(lines) == count
