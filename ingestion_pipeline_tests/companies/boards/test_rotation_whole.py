"""SCRAPE end to end: boards chosen, polled, their jobs judged, until enough match."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ingestion_pipeline.companies.boards.rotation import ScrapeRequest, drain_scrapes
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import tasks
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline_tests.companies.boards.polling import Boards, a_job
from ingestion_pipeline_tests.companies.boards.test_rotation import BOARDS, ask, given_boards
from ingestion_pipeline_tests.companies.matching.listings import GOOD, PROFILE, Listings
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import a_run_context, poll, rows, settings_of

FITTING = ("b4", "b1")  # of b7 ... b0, as they come


@pytest.fixture
def boards(store: Store, clock: FixedClock, settings: Settings, tmp_path: Path) -> Iterator[Boards]:
    """Eight boards with a job each, two of which fit."""
    profile = tmp_path / "profile.yaml"
    profile.write_text(PROFILE)
    wished = settings_of(settings.home, settings.database_url, match__profile=str(profile))
    with FakeWeb({"/robots.txt": 404}) as web:
        found = Boards(a_run_context(store, wished), web, clock)
        given_boards(found)
        for n, one in enumerate(BOARDS):
            found.lists([a_posting(n, one[10:], clock)], token=one[10:])
        yield found


def a_posting(number: int, token: str, clock: FixedClock) -> dict[str, Any]:
    title = "Senior Python Engineer" if token in FITTING else "Junior Painter"
    return a_job(
        number,
        title=f"{title} {number}",
        content=f"<p>{token}: {GOOD}</p>",
        first_published=clock.at.isoformat(),
        absolute_url=f"https://boards.greenhouse.io/{token}/jobs/{number}",
        company_name=token,
    )


def rounds(boards: Boards, tmp_path: Path) -> tuple[list[set[str]], Any]:
    """Runs of the three jobs until the rotation has ended: boards asked in each, and its task."""
    judge = Listings(ctx=boards.ctx, profile=tmp_path / "profile.yaml", port=boards.web.port)
    asked: list[set[str]] = []
    for _ in range(6):
        boards.clock.advance(minutes=1)
        worker = Worker(boards.store, lease_seconds=300)
        drain_scrapes(boards.store, worker, settings=boards.ctx.settings)
        before = len(boards.web.requests)
        poll(boards.ctx, boards.web)
        judge.run()
        paths = [one.path.split("/")[3] for one in boards.web.requests[before:] if "/v1/" in one.path]
        asked.append(set(paths))
        [scrape] = [row for row in rows(boards.store, tasks) if row.kind == "scrape"]
        if scrape.status == "SUCCESS":
            return [some for some in asked if some], scrape
    raise AssertionError("the rotation did not end")


def test_a_rotation_goes_on_from_the_oldest_until_enough_match(boards: Boards, tmp_path: Path) -> None:
    ask(boards, ScrapeRequest(target_matches=2, max_sources=8))

    asked, scrape = rounds(boards, tmp_path)

    assert asked == [{"b7", "b6", "b5", "b4", "b3"}, {"b2", "b1", "b0"}]
    assert scrape.state["matches"] == 2


def test_a_rotation_ends_at_the_match_that_was_wanted(boards: Boards, tmp_path: Path) -> None:
    ask(boards, ScrapeRequest(target_matches=1, max_sources=8))

    asked, scrape = rounds(boards, tmp_path)

    assert asked == [{"b7", "b6", "b5", "b4", "b3"}]
    assert scrape.state["matches"] == 1


def test_a_rotation_takes_no_more_boards_than_it_may(boards: Boards, tmp_path: Path) -> None:
    ask(boards, ScrapeRequest(target_matches=5, max_sources=2))

    asked, scrape = rounds(boards, tmp_path)

    assert asked == [{"b7", "b6"}]
    assert (scrape.state["matches"], len(scrape.state["taken"])) == (0, 2)
