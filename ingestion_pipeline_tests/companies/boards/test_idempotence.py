"""Polling a board again, also concurrently: one listing per posting, and no write without a change."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import Connection, text, update

from ingestion_pipeline.companies.boards.board_plan import BoardListing
from ingestion_pipeline.companies.boards.board_polls import ingest_boards
from ingestion_pipeline.companies.job_listing import Listing
from ingestion_pipeline.engine.context import IngestResult
from ingestion_pipeline.store import open_store
from ingestion_pipeline.store.tables import sources
from ingestion_pipeline_tests.companies.boards.job_boards import ACME, OTHER, Boards, a_board
from ingestion_pipeline_tests.companies.cases import with_cases
from ingestion_pipeline_tests.companies.platform_fixtures import fixture_body
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.samples import sample

pytestmark = pytest.mark.both_databases

API = {"api_base": "http://api.test"}


def serve_body(web: FakeWeb, path: str, content: bytes) -> None:
    web.routes[path] = Reply(content)


def serve_workday(web: FakeWeb) -> None:
    """Serve a list of two pages; only the first page states the true total."""
    first = [{"title": f"Job {n}", "externalPath": f"/job/Oslo/Job_R-{n}"} for n in range(20)]
    second = [{"title": f"Job {n}", "externalPath": f"/job/Oslo/Job_R-{n}"} for n in range(20, 23)]
    web.routes["/wday/cxs/globex/Careers/jobs"] = [
        Reply(json.dumps({"total": 23, "jobPostings": page}).encode()) for page in (first, second) * 4
    ]


KINDS: dict[str, tuple[str, dict[str, Any], Callable[[FakeWeb], None], int]] = {
    "greenhouse": (
        "https://boards.greenhouse.io/anthropic",
        API,
        lambda web: serve_body(
            web,
            "/v1/boards/anthropic/jobs?content=true&pay_transparency=true",
            sample("jobs/greenhouse/anthropic_4.json").read_bytes(),
        ),
        4,
    ),
    "lever": (
        "https://jobs.eu.lever.co/acme",
        API,
        lambda web: serve_body(web, "/v0/postings/acme?mode=json", fixture_body("lever.json")),
        2,
    ),
    "workday": ("https://globex.wd3.myworkdayjobs.com/Careers", API, serve_workday, 23),
    "personio": (
        "https://tyrell.jobs.personio.com/",
        API,
        lambda web: serve_body(web, "/xml", fixture_body("personio.xml")),
        1,
    ),
    "rss": (
        "https://a.test/jobs.rss",
        {"api_base": "http://api.test/jobs.rss"},
        lambda web: serve_body(web, "/jobs.rss", fixture_body("rss.xml")),
        1,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("platform", KINDS)
def test_polling_a_board_twice_adds_nothing(boards: Boards, platform: str) -> None:
    url, config, serve, count = KINDS[platform]
    serve(boards.web)
    boards.add(a_board(url=url, platform=platform, config=config))
    boards.poll()
    before = (boards.listings(), boards.links(), boards.job_tasks())
    assert [len(table_rows) for table_rows in before] == [count] * 3, boards.source_row().last_outcome

    boards.execute(update(sources).values(content_hash=None, etag=None))  # an unchanged body is parsed again
    boards.poll()

    assert (boards.listings(), boards.links(), boards.job_tasks()) == before
    unchanged_outcomes = (f"{count} found, nothing new", f"{count} found, 1 unreadable")
    assert boards.source_row().last_outcome in unchanged_outcomes


def a_listing(number: int, **changes: Any) -> Listing:
    values: dict[str, Any] = {
        "external_id": str(number),
        "title": f"Engineer {number}",
        "url": f"https://acme.test/jobs/{number}",
        "description": f"We build pipes, number {number}. " + "Work with us. " * 20,
        "company": "Acme Inc.",
    }
    return Listing(**(values | changes))


def ingest_in_own_transaction(boards: Boards, listing: BoardListing, start: threading.Barrier) -> list[IngestResult]:
    url = str(boards.ctx.settings.store_url)
    with closing(open_store(url, clock=boards.clock)) as own:
        start.wait()
        with own.begin() as connection:
            settings = boards.ctx.settings
            return ingest_boards(connection, [listing], now=boards.clock.at, settings=settings)


@pytest.mark.parametrize("duplicate_key", ["url", "words"])
def test_two_boards_that_deliver_the_same_posting_concurrently_make_one_listing(
    boards: Boards, duplicate_key: str
) -> None:
    boards.add_two()
    start = threading.Barrier(2)
    numbers = range(20)
    copies = [
        a_listing(n, external_id=f"x{n}")
        if duplicate_key == "url"
        else a_listing(n, external_id=f"x{n}", url=f"https://other.test/{n}")
        for n in reversed(numbers)
    ]
    board_listings = [boards.board_listing(ACME, [a_listing(n) for n in numbers]), boards.board_listing(OTHER, copies)]

    with ThreadPoolExecutor(2) as pool:
        futures = [
            pool.submit(ingest_in_own_transaction, boards, board_listing, start) for board_listing in board_listings
        ]
        outcomes = sorted(future.result(60)[0].outcome for future in futures)

    assert outcomes == ["first sync: 20 found, 20 duplicate", "first sync: 20 found, 20 new"]
    assert (len(boards.listings()), len(boards.links())) == (20, 40)
    assert len(boards.job_tasks()) == 20


def listing_count(boards: Boards, first: dict[str, Any], second: dict[str, Any]) -> int:
    """Return the number of listings made from one text that two boards list with these fields."""
    boards.add_two()
    copy = a_listing(1, external_id="x", url="https://other.test/1", **second)
    boards.ingest(ACME, [a_listing(1, **first)])
    boards.ingest(OTHER, [copy])
    return len(boards.listings())


@pytest.mark.parametrize("database", ["sqlite"])
@with_cases("first", "second")
def test_the_same_text_in_two_places_is_two_listings(boards: Boards, first: str, second: str) -> None:
    assert listing_count(boards, {"location": first}, {"location": second}) == 2


@pytest.mark.parametrize("database", ["sqlite"])
@with_cases("first", "second")
def test_the_same_place_in_other_words_is_one_listing(boards: Boards, first: str, second: str | None) -> None:
    assert listing_count(boards, {"location": first}, {"location": second}) == 1


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_match_with_any_location_of_a_listing_is_the_same_listing(boards: Boards) -> None:
    two_locations = {"location": "Berlin", "other_locations": ("Paris",)}

    assert listing_count(boards, two_locations, {"location": "Paris"}) == 1


def test_a_board_ingested_by_four_workers_concurrently_is_ingested_once(boards: Boards) -> None:
    boards.add()
    start = threading.Barrier(4)
    listing = boards.board_listing(ACME, [a_listing(n) for n in range(10)])

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(ingest_in_own_transaction, boards, listing, start) for _ in range(4)]
        new = sorted(future.result(60)[0].new for future in futures)

    assert new == [0, 0, 0, 10]
    assert (len(boards.listings()), len(boards.links()), len(boards.job_tasks())) == (10, 10, 10)


def row_versions(connection: Connection) -> Any:
    """Return a value that every write to the two tables changes."""
    if connection.dialect.name == "sqlite":
        return connection.connection.driver_connection.total_changes  # pyright: ignore[reportOptionalMemberAccess]
    return [
        connection.execute(text(f"SELECT xmin, ctid, id FROM {table} ORDER BY id")).all()
        for table in ("job_listings", "listing_sources")
    ]


def test_an_unchanged_board_writes_no_row(boards: Boards) -> None:
    boards.add()
    listings = [a_listing(n) for n in range(30)]
    settings, now = boards.ctx.settings, boards.clock.at

    boards.ingest(ACME, listings)
    with boards.store.begin() as connection:
        before = row_versions(connection)
        ingest_boards(connection, [boards.board_listing(ACME, listings)], now=now, settings=settings)
        assert row_versions(connection) == before
        changed = [a_listing(0, title="Other"), *listings[1:]]
        ingest_boards(connection, [boards.board_listing(ACME, changed)], now=now, settings=settings)
        assert row_versions(connection) != before


WAL = """
SELECT coalesce(sum(record_length), 0) FROM pg_get_wal_records_info(
  :since, pg_current_wal_flush_lsn()) WHERE EXISTS (
    SELECT FROM unnest(ARRAY['job_listings', 'listing_sources']) AS name,
      LATERAL (SELECT pg_relation_filenode(name::regclass) AS node UNION ALL
        SELECT pg_relation_filenode(indexrelid) FROM pg_index WHERE indrelid = name::regclass) files
    WHERE block_ref LIKE '%/' || node || ' %')
"""


@pytest.mark.postgres
@pytest.mark.parametrize("database", ["postgres"])
def test_an_unchanged_board_writes_no_wal_record_of_listings(boards: Boards) -> None:
    boards.add()
    listings = [a_listing(n) for n in range(30)]
    settings, now = boards.ctx.settings, boards.clock.at
    boards.execute(text("CREATE EXTENSION IF NOT EXISTS pg_walinspect"))
    boards.ingest(ACME, listings)
    boards.execute(text("CHECKPOINT"))  # the first change of a page after it is logged as a full page

    def wal_bytes(board_jobs: list[Listing]) -> int:
        board_listing = boards.board_listing(ACME, board_jobs)
        with boards.store.begin() as connection:
            since = connection.execute(text("SELECT pg_current_wal_insert_lsn()")).scalar_one()
            ingest_boards(connection, [board_listing], now=now, settings=settings)
            connection.execute(text("UPDATE sources SET updated_at = updated_at"))  # a poll updates its source
        with boards.store.read() as connection:
            return int(connection.execute(text(WAL), {"since": since}).scalar_one())

    assert wal_bytes(listings) == 0
    assert wal_bytes([a_listing(n, title="Other") for n in range(30)]) > 30 * 50


def test_a_relative_date_does_not_move_with_every_poll(boards: Boards) -> None:
    """Workday states "Posted 3 Days Ago": without this rule each poll would change every job."""
    boards.add()
    first_at = boards.clock.at
    boards.ingest(ACME, [a_listing(1, posted_at=first_at, posted_is_relative=True)])
    later_at = boards.clock.advance(days=1)

    ingest_result = boards.ingest(ACME, [a_listing(1, posted_at=later_at, posted_is_relative=True)])

    assert (ingest_result.updated, boards.listings()[0].posted_at) == (0, first_at)
