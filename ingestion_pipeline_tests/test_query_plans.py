"""Every statement of ticks and runs uses an index, on both databases.

A statement that reads the tasks or the sources row by row, from end to end, turns the test red;
news have a test of their own, beside the notices.
"""

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import Connection, bindparam, text

from ingestion_pipeline.catalogs.frontier import CrawlFilter, waiting_sources
from ingestion_pipeline.catalogs.recipes.detected_recipes import has_waiting_detection
from ingestion_pipeline.catalogs.states import EXTRACTION_TASKS
from ingestion_pipeline.companies.boards.listing_rows import has_inactive_boards
from ingestion_pipeline.companies.company_runs import is_scoring_due
from ingestion_pipeline.companies.company_runs import is_work_waiting as is_company_waiting
from ingestion_pipeline.companies.matching.listing_runs import is_work_waiting as is_listing_waiting
from ingestion_pipeline.registry import ingesting_kinds
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Kind, poll_tasks
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.poll_tasks import backlog
from ingestion_pipeline.sources.source import Tier
from ingestion_pipeline.sources.status import unreported
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.types import UtcDateTime
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter, lost_runs
from ingestion_pipeline.websites.analysis_rows import is_work_waiting as is_website_waiting
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.test_task_indexes import generic_query_plans

pytestmark = pytest.mark.both_databases

HOUR = timedelta(hours=1)
BIG = ("tasks", "sources")
# Nearly all were polled and wait for the next poll, as in an installation that has run for a while.
SOURCES = text(
    """
    INSERT INTO sources (id, kind, url, config, origin, host, shard, tier, status, tracking_id,
                         last_checked_at, last_changed_at, reported_at, created_at, updated_at)
    WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < 9999)
    SELECT 'series:' || n, CASE WHEN n % 50 = 0 THEN 'job_board' ELSE 'series' END, 'u', '{}',
           'row', 'h', n, 'warm', CASE WHEN n % 100 = 0 THEN 'disabled' ELSE 'active' END, 't',
           :now, CASE WHEN n % 200 = 0 THEN :now END, :now, :now, :now
    FROM numbers
    """
).bindparams(bindparam("now", type_=UtcDateTime()))
POLLS = text(
    """
    INSERT INTO tasks (kind, dedupe_key, source_id, payload, status, priority, shard, not_before,
                       tracking_id, ancestry, created_at, updated_at)
    SELECT 'poll', id, id, '{}', 'PENDING', shard % 3 + 1, shard,
           CASE WHEN shard % 1000 = 0 THEN :now ELSE :later END, 't', '[]', :now, :now
    FROM sources
    """
).bindparams(bindparam("now", type_=UtcDateTime()), bindparam("later", type_=UtcDateTime()))


@pytest.fixture
def store(store: Store) -> Store:
    with store.begin() as connection:
        connection.execute(SOURCES, {"now": NOON})
        connection.execute(POLLS, {"now": NOON, "later": NOON + HOUR})
    if store.engine.dialect.name == "postgresql":  # as its autovacuum does; SQLite has none
        with store.engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.execute(text("VACUUM ANALYZE"))
    return store


def claim_tasks(connection: Connection) -> object:
    claim_filter = ClaimFilter(kind="poll", priority=1, shard=0, shards=2)
    return claims.claim(connection, claim_filter, owner="me", now=NOON, lease=HOUR, limit=100)


ASKED: dict[str, Callable[[Connection], object]] = {
    "a tick: what is due": lambda c: poll_tasks.due_counts(c, Tier.HOT, now=NOON),
    "a tick: whether ingestion lags": lambda c: backlog(c, now=NOON, limit=50_000, kinds=ingesting_kinds()),
    "pending_work: retries": lambda c: poll_tasks.unscheduled_shards(c, now=NOON, shards=2),
    "pending_work: pages": lambda c: waiting_sources(c, CrawlFilter(), now=NOON, limit=10_000, kinds=EXTRACTION_TASKS),
    "pending_work: recipes": lambda c: has_waiting_detection(c, now=NOON),
    "pending_work: companies": lambda c: is_company_waiting(c, now=NOON),
    "pending_work: scores": lambda c: is_scoring_due(c, Settings()),
    "pending_work: boards": lambda c: has_inactive_boards(c, now=NOON),
    "pending_work: listings": lambda c: is_listing_waiting(c, None, now=NOON),
    "pending_work: websites": lambda c: is_website_waiting(c, now=NOON),
    "new_sources: first polls": lambda c: poll_tasks.new_shards(c, now=NOON, shards=2),
    "new_sources: counts": poll_tasks.source_counts,
    "stale_runs": lambda c: lost_runs(c, now=NOON),
    "a run: claim": claim_tasks,
    "a run: its sources": lambda c: sources_by_id(c, ["series:1", "series:2"]),
    "a run: what to tell": lambda c: unreported(c, [Kind.SERIES], limit=100),
    "maintain: polls that waited long": lambda c: poll_tasks.age_polls(c, Settings(), NOON),
}


def sequential_scans(plan: str) -> list[str]:
    """Return the plan lines that scan a large table; an index-only scan is allowed."""
    names = "|".join(BIG)
    wholly = re.compile(rf"\bSCAN ({names})\b(?! USING COVERING INDEX)|Seq Scan on ({names})\b")
    return [line for line in plan.splitlines() if wholly.search(line)]


@pytest.mark.slow
def test_no_frequent_statement_scans_a_large_table(store: Store) -> None:
    plan_of = {name: generic_query_plans(store, ask) for name, ask in ASKED.items()}

    assert all(plan_of.values())
    result = {name: sequential_scans(plan) for name, plan in plan_of.items()}
    assert {name: lines for name, lines in result.items() if lines} == {}


@pytest.mark.slow
def test_a_sequential_scan_is_detected(store: Store) -> None:
    for table in BIG:
        everything = text(f"SELECT count(*) FROM {table} WHERE tracking_id = 'x'")

        assert sequential_scans(generic_query_plans(store, lambda c, requests=everything: c.execute(requests)))
