"""What can be wrong although every run succeeded: gaps, quarantines, silence."""

from __future__ import annotations

from random import Random

import pytest
from sqlalchemy import update

from ingestion_pipeline.series import checks
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.health import Finding, summary
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import sources
from ingestion_pipeline_tests.series.syncing import SOLO, Syncing, releases


@pytest.fixture
def syncing(store: Store, clock: FixedClock, settings: Settings, random: Random) -> Syncing:
    return Syncing(store, clock, settings, random)


def test_gaps_are_what_is_missing_after_a_series_own_first_chapter(syncing: Syncing) -> None:
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
        syncing.given_source(f"series:{name}", series_id=name)
    syncing.sync_together({f"series:{name}": found for name, found in listed.items()})

    with syncing.store.read() as connection:
        found = {one.subject: one.message for one in checks.gaps(connection)}

    many = ", ".join(str(number) for number in range(2, 22))
    assert found == {
        "gap": "missing: 3, 4",
        "late": "missing: 502",
        "zero": "missing: 1",
        "half": "missing: 1",
        "far": f"missing: {many}, ...",
        "extras": "missing: 2",
    }


def test_a_withdrawn_chapter_is_a_gap(syncing: Syncing) -> None:
    syncing.given_source()
    for listed in ((1, 2, 3), (1, 3), (1, 3)):
        syncing.sync(releases(*listed))

    with syncing.store.read() as connection:
        assert checks.gaps(connection) == [Finding(subject="solo", message="missing: 2")]


def test_a_quarantine_is_found_until_a_listing_is_believed_again(syncing: Syncing) -> None:
    syncing.given_source()
    syncing.sync(releases(1))
    syncing.sync([])
    with syncing.store.read() as connection:
        [found] = checks.quarantined(connection)
    assert found.subject == SOLO
    assert found.message.startswith("quarantined: lists nothing, 1 chapters are known")

    syncing.sync(releases(1))
    with syncing.store.read() as connection:
        assert checks.quarantined(connection) == []


def test_a_source_is_stale_after_three_intervals_without_success(syncing: Syncing, clock: FixedClock) -> None:
    syncing.given_source(tier="hot", tier_pinned=True)  # every quarter of an hour
    syncing.sync(releases(1))
    syncing.given_source("series:new")

    def stale() -> list[Finding]:
        with syncing.store.read() as connection:
            return checks.stale(connection, now=clock.at, settings=syncing.settings)

    clock.advance(minutes=45)
    assert stale() == []

    clock.advance(minutes=1)
    said = "last success 2026-03-01 12:00 UTC; first sync: 1 new"
    assert stale() == [Finding(subject=SOLO, message=said)]

    clock.advance(hours=12)
    with syncing.store.begin() as connection:
        connection.execute(update(sources).where(sources.c.id == SOLO).values(status="disabled"))
    never = Finding(subject="series:new", message="never succeeded; not polled yet")
    assert stale() == [never]


@pytest.mark.parametrize(("count", "last"), [(20, "s19: m"), (21, "and 1 more")])
def test_a_summary_writes_out_the_first_twenty(count: int, last: str) -> None:
    findings = [Finding(subject=f"s{number}", message="m") for number in range(count)]

    lines = summary(findings).splitlines()

    assert (lines[0], lines[-1]) == ("s0: m", last)
    assert len(lines) == count
