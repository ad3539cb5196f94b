"""Discovered boards become sources only once; companies, boards and jobs spawn each other without cycles."""

import asyncio
import json
from asyncio import StreamWriter
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from ingestion_pipeline.companies.board_discovery import find_board_source
from ingestion_pipeline.companies.records import JOB, analysis_task
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.settings import Work
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.registry import enable
from ingestion_pipeline.sources.scheduling.tiers import is_stale
from ingestion_pipeline.sources.source import Definition, Kind
from ingestion_pipeline.sources.status import reason
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import audit_log, dead_letters, sources
from ingestion_pipeline.tasks.claims import tasks_by_id
from ingestion_pipeline.tasks.queue import REFUSED, Refusal, insert_tasks, spawn
from ingestion_pipeline.tasks.task import NewTask, Task
from ingestion_pipeline_tests.companies.company_sites import (
    ACME,
    API,
    BOARD,
    a_company,
    a_page,
    a_site,
    board_answer,
    company_row,
    poll_companies,
    process_companies,
    serve,
    tasks_of,
    transaction,
)
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.polling_runs import add_sources, rows, source_row

pytestmark = pytest.mark.both_databases

BOARD_ID = "job_board:greenhouse-acme"
POSTING = {"@type": "JobPosting", "title": "Sorter", "url": "http://acme.test/jobs/1"}


def discover(ctx: RunContext, web: FakeWeb, answer: object, **site: object) -> None:
    serve(web, a_site() | site)
    serve(web, {API: answer}, host="api.test")
    add_sources(ctx.store, a_company())
    poll_companies(ctx, web)
    process_companies(ctx, web.port)


def own_board(url: str, platform: str = "greenhouse") -> Definition:
    """Return a board that an operator has declared."""
    return Definition(id="job_board:mine", kind=Kind.JOB_BOARD, url=url, platform=platform, enabled=False)


def assert_only_own_board(ctx: RunContext) -> None:
    assert {row.id for row in rows(ctx.store, sources)} == {"company:acme", "job_board:mine"}
    assert company_row(ctx.store).boards[0]["source_id"] == "job_board:mine"


def test_a_board_without_jobs_is_a_board(ctx: RunContext, web: FakeWeb) -> None:
    discover(ctx, web, board_answer())

    assert source_row(ctx.store, BOARD_ID).status == "active"


@pytest.mark.parametrize("answer", [404, "<html>moved</html>", '{"error": 1}'])
def test_a_board_whose_probe_fails_waits_for_approval(ctx: RunContext, web: FakeWeb, answer: object) -> None:
    discover(ctx, web, answer)

    board = source_row(ctx.store, BOARD_ID)
    assert board.status == "pending_validation"
    assert "ingest sources enable" in board.status_reason
    [poll] = [row for row in tasks_of(ctx.store, "poll") if row.source_id == BOARD_ID]
    assert poll.status == "SKIPPED"
    [board_record] = company_row(ctx.store).boards
    assert (board_record["confidence"], board_record["source_id"]) == ("medium", BOARD_ID)


def test_a_board_that_waits_for_approval_is_reported_as_waiting_and_not_stale(ctx: RunContext, web: FakeWeb) -> None:
    discover(ctx, web, 404)
    with ctx.store.read() as connection:
        board = sources_by_id(connection, [BOARD_ID])[BOARD_ID]
    later = ctx.store.now() + timedelta(days=300)

    message = reason(board, None, now=later, max_attempts=3)
    assert message.startswith("waits for approval, confidence medium")
    assert not is_stale(board, now=later, settings=ctx.settings)


@pytest.mark.slow
def test_an_approved_board_is_polled_in_the_lineage_that_discovered_it(ctx: RunContext, web: FakeWeb) -> None:
    discover(ctx, web, 404)
    with transaction(ctx) as (connection, now):
        enable(connection, BOARD_ID, actor="someone", now=now)

    [poll] = [row for row in tasks_of(ctx.store, "poll") if row.source_id == BOARD_ID]
    [discovery] = tasks_of(ctx.store, "source_discovery")
    assert source_row(ctx.store, BOARD_ID).status == "active"
    assert (poll.status, poll.parent_id) == ("PENDING", discovery.id)
    assert poll.tracking_id == discovery.tracking_id


@pytest.mark.slow
def test_a_probe_that_always_fails_is_a_dead_letter_without_a_source(ctx: RunContext, web: FakeWeb) -> None:
    discover(ctx, web, 500)

    assert [row.id for row in rows(ctx.store, sources)] == ["company:acme"]
    assert [row.task_kind for row in rows(ctx.store, dead_letters)] == ["source_discovery"]
    assert "http_500" in company_row(ctx.store).boards[0]["note"]
    assert source_row(ctx.store, "company:acme").failure_count == 0


@pytest.mark.slow
def test_a_careers_page_with_json_ld_jobs_waits_as_jsonld(ctx: RunContext, web: FakeWeb) -> None:
    data = f'<script type="application/ld+json">{json.dumps(POSTING)}</script>'
    page = a_page("<h1>Careers</h1><p>Sorter</p>", head=data)

    discover(ctx, web, 404, **{"/team/careers": page})

    board = source_row(ctx.store, "job_board:acme")
    assert (board.platform, board.status) == ("jsonld", "pending_validation")
    assert company_row(ctx.store).boards[0]["confidence"] == "low"


def test_a_careers_page_with_recognised_jobs_waits_with_their_number(ctx: RunContext, web: FakeWeb) -> None:
    items = "".join(
        f"<li><a href='/jobs/{n}'>{title}</a></li>" for n, title in enumerate(["Sorting Engineer", "Parcel Driver"])
    )
    page = a_page(f"<h1>Careers</h1><ul>{items}</ul>")

    discover(ctx, web, 404, **{"/team/careers": page})

    board = source_row(ctx.store, "job_board:acme")
    assert (board.platform, board.config, board.status) == ("html", {"recognise": True}, "pending_validation")
    assert "2 jobs recognised by layout: 'Sorting Engineer'" in board.status_reason


def test_a_careers_page_without_data_names_the_config_it_needs(ctx: RunContext, web: FakeWeb) -> None:
    serve(web, a_site(board=None))
    add_sources(ctx.store, a_company())
    poll_companies(ctx, web)

    process_companies(ctx, web.port)

    board = source_row(ctx.store, "job_board:acme")
    assert (board.platform, board.url) == ("html", "http://acme.test/team/careers")
    assert "`items` and `fields`" in board.status_reason


def test_a_board_that_has_a_source_gets_neither_a_discovery_nor_a_second_source(ctx: RunContext, web: FakeWeb) -> None:
    add_sources(ctx.store, own_board("https://job-boards.greenhouse.io/acme/jobs/77"))

    discover(ctx, web, board_answer("Sorter"))

    assert tasks_of(ctx.store, "source_discovery") == []
    assert_only_own_board(ctx)


def test_a_careers_page_that_has_a_source_gets_no_second_source(ctx: RunContext, web: FakeWeb) -> None:
    """A careers page has no token: it is identified by its URL."""
    serve(web, a_site(board=None))
    add_sources(ctx.store, own_board("http://acme.test/team/careers/", platform="html"), a_company())
    poll_companies(ctx, web)

    process_companies(ctx, web.port)

    assert tasks_of(ctx.store, "source_discovery") == []
    assert_only_own_board(ctx)


def test_a_board_that_got_a_source_while_its_discovery_waited_is_not_probed(ctx: RunContext, web: FakeWeb) -> None:
    serve(web, {API: board_answer("Sorter")}, host="api.test")
    add_sources(ctx.store, a_company())
    discovery = NewTask(
        kind="source_discovery",
        dedupe_key=BOARD,
        not_before=ctx.store.now(),
        source_id="company:acme",
        url=BOARD,
        payload={"company_id": "acme", "platform": "greenhouse", "token": "acme"},
    )
    with transaction(ctx) as (connection, now):
        insert_tasks(connection, [discovery], now=now)
    add_sources(ctx.store, own_board("https://job-boards.greenhouse.io/acme"))

    process_companies(ctx, web.port)

    [task] = tasks_of(ctx.store, "source_discovery")
    assert (task.status, task.error) == ("SKIPPED", "job_board:mine is its source")
    assert API not in web.paths
    assert BOARD_ID not in {row.id for row in rows(ctx.store, sources)}


def test_a_board_that_got_a_source_during_its_probe_gets_no_second_source(ctx: RunContext, web: FakeWeb) -> None:
    async def declare_and_answer(writer: StreamWriter) -> None:
        await asyncio.to_thread(add_sources, ctx.store, own_board("https://job-boards.greenhouse.io/acme"))
        body = board_answer("Sorter").encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        writer.write(f"{head}\r\nConnection: close\r\n\r\n".encode() + body)
        await writer.drain()

    discover(ctx, web, declare_and_answer)

    assert_only_own_board(ctx)
    assert [row.source_id for row in tasks_of(ctx.store, "poll")] == ["company:acme"]


def test_a_token_that_contains_ours_is_another_board(ctx: RunContext) -> None:
    """A search for the token inside URLs matched other companies."""
    add_sources(ctx.store, own_board("https://boards.greenhouse.io/acmecorp"))
    with ctx.store.read() as connection:
        source = find_board_source(connection, platform="greenhouse", url=BOARD)

    assert source is None


def test_a_board_blocked_by_robots_txt_is_not_probed_and_waits(ctx: RunContext, web: FakeWeb) -> None:
    web.routes["acme.test/robots.txt"] = Reply(b"User-agent: *\nDisallow: /feeds")
    feed = '<p><a href="/feeds/jobs.rss">Jobs feed</a></p>'

    discover(ctx, web, 404, **{"/team/careers": a_page(f"<h1>Careers</h1>{feed}")})

    board = next(row for row in rows(ctx.store, sources) if row.kind == "job_board")
    assert (board.platform, board.status) == ("rss", "pending_validation")
    assert "blocked_by_robots" in board.status_reason
    assert "/feeds/jobs.rss" not in web.paths


def test_an_approval_clears_the_status_reason(ctx: RunContext, web: FakeWeb) -> None:
    discover(ctx, web, 404)
    with ctx.store.begin() as connection:
        connection.execute(update(sources).where(sources.c.id == BOARD_ID).values(next_check_at=None))
        enable(connection, BOARD_ID, actor="someone", now=ctx.store.clock.now(connection))

    assert source_row(ctx.store, BOARD_ID).status_reason is None


JOB_URL = "https://boards.greenhouse.io/acme/jobs/1"
POLICY = Work()


def job_task(ctx: RunContext, url: str = JOB_URL) -> NewTask:
    return NewTask(kind=JOB, dedupe_key=url, url=url, not_before=ctx.store.now())


def spawn_child(ctx: RunContext, parent: Task, child: NewTask) -> int | Refusal:
    with transaction(ctx) as (connection, now):
        return spawn(connection, parent, child, now=now, policy=POLICY)


def load_task(store: Store, task_id: int) -> Task:
    with store.read() as connection:
        return tasks_by_id(connection, [task_id])[task_id]


def refusals(store: Store) -> list[Any]:
    return [row for row in rows(store, audit_log) if row.action == REFUSED]


@pytest.mark.slow
def test_a_lineage_that_is_too_deep_gets_no_source(ctx: RunContext, web: FakeWeb) -> None:
    serve(web, a_site())
    serve(web, {API: board_answer("Sorter")}, host="api.test")
    add_sources(ctx.store, a_company())
    parent: int | Refusal = 0
    with ctx.store.begin() as connection:
        [parent] = insert_tasks(connection, [job_task(ctx, "https://x.test/0")], now=ctx.store.now())
    for depth in range(1, 9):
        parent = spawn_child(ctx, load_task(ctx.store, parent), job_task(ctx, f"https://x.test/{depth}"))
        assert isinstance(parent, int)
    company = analysis_task("acme", "http://acme.test", now=ctx.store.now())
    assert isinstance(spawn_child(ctx, load_task(ctx.store, parent), company), int)  # depth 9

    process_companies(ctx, web.port)  # its discovery has depth 10, its poll would have 11

    assert [row.id for row in rows(ctx.store, sources)] == [ACME]
    [refusal] = refusals(ctx.store)
    assert (refusal.detail["kind"], refusal.detail["reason"]) == ("poll", "too_deep")
