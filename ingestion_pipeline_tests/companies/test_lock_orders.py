"""Polls, listings and companies are locked in one order."""

from datetime import datetime
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import Connection, insert, select, text, update

from ingestion_pipeline.companies.boards.listing_rows import LOCK
from ingestion_pipeline.companies.company_runs import CompanyWork, persist_failure
from ingestion_pipeline.companies.matching.evaluation import PAGE_GONE
from ingestion_pipeline.companies.matching.tasks import ListingItem, Rules
from ingestion_pipeline.companies.records import COMPANY, analysis_task
from ingestion_pipeline.engine.handler import Failed, Skipped
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.source import Kind
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import companies, job_listings, sources, tasks
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker
from ingestion_pipeline.tasks.ended_tasks import DeadLetterTask
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask
from ingestion_pipeline_tests.builders import NOON, a_definition
from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.companies.matching.listings import a_profile, write_outcomes
from ingestion_pipeline_tests.lock_orders import ON_POSTGRES, rows_locked_while_waiting
from ingestion_pipeline_tests.polling_runs import a_run_context, add_sources

pytestmark = ON_POSTGRES
ACME = "company:acme"
COMPANIES = select(companies.c.id)
BOARD_WRITES = text(f"SELECT pg_advisory_xact_lock({LOCK})")


def add_company(store: Store, id_: str) -> None:
    common = {"status": "active", "quality": {}, "discovered_by": "operator", "tracking_id": "t"}
    times = {"created_at": NOON, "updated_at": NOON}
    with store.begin() as connection:
        connection.execute(insert(companies).values({"id": id_} | common | times))


def test_failing_a_company_locks_its_poll_before_its_record(
    store: Store, settings: Settings, now: datetime, random: Random
) -> None:
    kind = {"kind": Kind.COMPANY, "platform": "page", "series": None}
    add_sources(store, a_definition(id=ACME, url="http://acme.test/", company="acme", **kind))
    add_company(store, "acme")
    with store.begin() as connection:
        source = sources_by_id(connection, [ACME])[ACME]
        insert_tasks(connection, [analysis_task("acme", source.url, now=now)], now=now)
    [task] = Worker(store, lease_seconds=60).claim(ClaimFilter(kind=COMPANY), limit=1)
    gone = Permanent("it answered 404", code="http_404")
    item = CompanyWork(task=task, source=source, company_id="acme", website=source.url, name=None)
    failure = Failed(task=task, item=item, error=gone, decision=DeadLetterTask())

    def write(connection: Connection) -> None:
        persist_failure(connection, failure, now=now, settings=settings, random=random)

    poll = select(tasks.c.id).where(tasks.c.kind == "poll")
    assert rows_locked_while_waiting(store, write, held=poll, among=COMPANIES) == []


@pytest.mark.parametrize("command", ["disable", "remove"])
def test_disabling_a_board_does_not_lock_it_while_waiting_for_listings(
    store: Store, database_url: str, tmp_path: Path, command: str
) -> None:
    board = {"kind": Kind.JOB_BOARD, "platform": "greenhouse", "series": None}
    add_sources(store, a_definition(id="job_board:a", url="http://a.test/", **board))
    environment = {"INGESTION_HOME": str(tmp_path / "home"), "INGESTION_DATABASE_URL": database_url}
    with store.begin() as connection:
        connection.execute(update(sources).values(record_count=1))

    def stop(_: Connection) -> None:
        Ingest(environment).output("sources", command, "job_board:a")

    all_sources = select(sources.c.id)
    assert rows_locked_while_waiting(store, stop, held=BOARD_WRITES, among=all_sources) == []


def test_decisions_wait_for_a_board_that_writes_listings_without_locking_any(
    store: Store, settings: Settings, now: datetime
) -> None:
    row = {"source_id": "job_board:a", "fingerprint": "f", "title": "Cook", "content_hash": "c"}
    row |= {"status": "open", "quality": {}, "tracking_id": "t"}
    with store.begin() as connection:
        times = {"first_seen_at": now, "first_listed_at": now, "changed_at": now}
        listing = insert(job_listings).values(row | times).returning(job_listings.c.id)
        payload = {"listing_id": connection.execute(listing).scalar_one()}
        new = NewTask(kind="JOB", dedupe_key="1", not_before=now, payload=payload)
        insert_tasks(connection, [new], now=now)
    [task] = Worker(store, lease_seconds=60).claim(ClaimFilter(kind="JOB"), limit=1)
    gone: Skipped[ListingItem] = Skipped(task=task, reason="404", code=PAGE_GONE)
    rules = Rules(profile=a_profile(), settings=settings)

    def write(_: Connection) -> None:
        write_outcomes(a_run_context(store, settings), rules, gone)

    all_listings = select(job_listings.c.id)
    assert rows_locked_while_waiting(store, write, held=BOARD_WRITES, among=all_listings) == []
