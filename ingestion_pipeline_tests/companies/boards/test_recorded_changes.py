"""Changes of listings by their boards are recorded with their cause; folded, they give the tables."""

import pytest
from sqlalchemy import delete, select, update

from ingestion_pipeline.companies.boards.listing_rows import close_inactive_boards
from ingestion_pipeline.engine.context import hash_of_bodies
from ingestion_pipeline.store.tables import changes, job_listings, listing_sources, snapshots, sources
from ingestion_pipeline_tests.companies.boards.job_boards import ACME, Boards, a_job, jobs
from ingestion_pipeline_tests.folding import check_fold
from ingestion_pipeline_tests.polling_runs import rows

pytestmark = pytest.mark.both_databases

Summary = set[tuple[str, str, str]]


def recorded(boards: Boards, *, after: int = 0) -> Summary:
    with boards.store.read() as connection:
        check_fold(connection)
    found = [row for row in rows(boards.store, changes) if row.id > after]
    return {(row.table_name, row.op, row.cause) for row in found}


def last(boards: Boards) -> int:
    return max(row.id for row in rows(boards.store, changes))


def test_a_first_sync_and_the_polls_after_it_have_their_causes(boards: Boards) -> None:
    boards.start(jobs(1, 2))
    assert recorded(boards) == {("job_listings", "insert", "first_sync"), ("listing_sources", "insert", "first_sync")}
    assert {(row.source_id, row.ingestion_id is None) for row in rows(boards.store, changes)} == {(ACME, False)}

    before = last(boards)
    boards.poll(jobs(1, 2))
    assert recorded(boards, after=before) == set()

    boards.poll([a_job(1, title="Architect"), *jobs(2, 3)])
    assert recorded(boards, after=before) == {
        (table, op, "source_changed") for table in ("job_listings", "listing_sources") for op in ("insert", "update")
    }

    before = last(boards)
    for _ in range(2):
        boards.poll(jobs(2, 3))
    assert recorded(boards, after=before) == {
        ("job_listings", "update", "source_changed"),
        ("listing_sources", "update", "source_changed"),
    }


def test_an_operator_who_disables_a_board_or_deletes_its_rows_is_the_cause(boards: Boards) -> None:
    boards.start(jobs(1))
    before = last(boards)
    boards.execute(update(sources).values(status="disabled", status_reason="by hand"))
    boards.clock.advance(days=1)
    boards.apply(close_inactive_boards, actor="test")
    boards.execute(delete(listing_sources))
    boards.execute(delete(job_listings))

    assert recorded(boards, after=before) == {
        ("job_listings", "update", "operator"),
        ("job_listings", "delete", "operator"),
        ("listing_sources", "update", "operator"),
        ("listing_sources", "delete", "operator"),
    }


def test_a_list_that_another_parser_reads_otherwise_has_changed_by_the_reader(boards: Boards) -> None:
    boards.start(jobs(1))
    with boards.store.begin() as connection:
        connection.execute(update(job_listings).values(title="As the former parser read it", content_hash="old"))
        connection.execute(update(listing_sources).values(content_hash="old"))
        body = connection.execute(select(snapshots.c.content_hash)).scalar_one()
        former = hash_of_bodies([bytes.fromhex(body)], parser_version="former")
        connection.execute(update(sources).values(parser_version="former", content_hash=former, etag=None))
    before = last(boards)
    boards.poll()

    assert recorded(boards, after=before) == {
        ("job_listings", "update", "reader_changed"),
        ("listing_sources", "update", "reader_changed"),
    }
