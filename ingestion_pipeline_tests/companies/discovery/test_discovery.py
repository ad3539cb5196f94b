"""Boards that become sources: by pattern and probe, by approval, and never twice."""

from __future__ import annotations

import asyncio
import json
from asyncio import StreamWriter
from datetime import timedelta

import pytest
from sqlalchemy import update

from ingestion_pipeline.companies.board_discovery import find_board_source
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.registry import enable
from ingestion_pipeline.sources.scheduling.tiers import is_stale
from ingestion_pipeline.sources.source import Definition, Kind
from ingestion_pipeline.sources.status import reason
from ingestion_pipeline.store.tables import dead_letters, sources
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask
from ingestion_pipeline_tests.companies.sites import (
    API,
    BOARD,
    a_board,
    a_company,
    a_page,
    a_site,
    begin,
    company_row,
    serve,
    tasks_of,
    work,
)
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.pollers import given_sources, rows, source_row

BOARD_ID = "job_board:greenhouse-acme"
POSTING = {"@type": "JobPosting", "title": "Sorter", "url": "http://acme.test/jobs/1"}


def discover(ctx: RunContext, web: FakeWeb, answer: object, **site: object) -> None:
    serve(web, a_site() | site)
    serve(web, {API: answer}, host="api.test")
    given_sources(ctx.store, a_company())
    begin(ctx, web)
    work(ctx, web.port)


def test_a_board_without_jobs_is_a_board(ctx: RunContext, web: FakeWeb) -> None:
    discover(ctx, web, a_board())

    assert source_row(ctx.store, BOARD_ID).status == "active"


@pytest.mark.parametrize("answer", [404, "<html>moved</html>", '{"error": 1}'])
def test_a_board_that_does_not_answer_as_its_pattern_says_waits_for_approval(
    ctx: RunContext, web: FakeWeb, answer: object
) -> None:
    discover(ctx, web, answer)

    board = source_row(ctx.store, BOARD_ID)
    assert board.status == "pending_validation"
    assert "ingest sources enable" in board.status_reason
    [poll] = [one for one in tasks_of(ctx.store, "poll") if one.source_id == BOARD_ID]
    assert poll.status == "SKIPPED"
    [kept] = company_row(ctx.store).boards
    assert (kept["confidence"], kept["source_id"]) == ("medium", BOARD_ID)


def test_what_waits_says_so_and_is_not_called_late(ctx: RunContext, web: FakeWeb) -> None:
    discover(ctx, web, 404)
    with ctx.store.read() as connection:
        board = sources_by_id(connection, [BOARD_ID])[BOARD_ID]
    later = ctx.store.now() + timedelta(days=300)

    said = reason(board, None, now=later, max_attempts=3)
    assert said.startswith("waits for approval, confidence medium")
    assert not is_stale(board, now=later, settings=ctx.settings)


def test_what_is_approved_is_polled_in_the_lineage_that_found_it(ctx: RunContext, web: FakeWeb) -> None:
    discover(ctx, web, 404)
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        enable(connection, BOARD_ID, actor="someone", now=now)

    [poll] = [one for one in tasks_of(ctx.store, "poll") if one.source_id == BOARD_ID]
    [discovery] = tasks_of(ctx.store, "source_discovery")
    assert source_row(ctx.store, BOARD_ID).status == "active"
    assert (poll.status, poll.parent_id) == ("PENDING", discovery.id)
    assert poll.tracking_id == discovery.tracking_id


def test_a_probe_that_may_pass_is_tried_again(ctx: RunContext, web: FakeWeb) -> None:
    discover(ctx, web, [500, a_board("Sorter")])

    assert source_row(ctx.store, BOARD_ID).status == "active"


def test_a_probe_that_never_passes_is_a_dead_letter_and_no_source(ctx: RunContext, web: FakeWeb) -> None:
    discover(ctx, web, 500)

    assert [row.id for row in rows(ctx.store, sources)] == ["company:acme"]
    assert [one.task_kind for one in rows(ctx.store, dead_letters)] == ["source_discovery"]
    assert "http_500" in company_row(ctx.store).boards[0]["note"]
    assert source_row(ctx.store, "company:acme").failure_count == 0


def test_a_page_of_its_own_that_states_jobs_waits_as_jsonld(ctx: RunContext, web: FakeWeb) -> None:
    data = f'<script type="application/ld+json">{json.dumps(POSTING)}</script>'
    page = a_page("<h1>Careers</h1><p>Sorter</p>", head=data)

    discover(ctx, web, 404, **{"/team/careers": page})

    board = source_row(ctx.store, "job_board:acme")
    assert (board.platform, board.status) == ("jsonld", "pending_validation")
    assert company_row(ctx.store).boards[0]["confidence"] == "low"


def test_a_page_of_its_own_whose_layout_shows_jobs_waits_with_what_was_seen(ctx: RunContext, web: FakeWeb) -> None:
    listed = "".join(
        f"<li><a href='/jobs/{n}'>{title}</a></li>" for n, title in enumerate(["Sorting Engineer", "Parcel Driver"])
    )
    page = a_page(f"<h1>Careers</h1><ul>{listed}</ul>")

    discover(ctx, web, 404, **{"/team/careers": page})

    board = source_row(ctx.store, "job_board:acme")
    assert (board.platform, board.config, board.status) == ("html", {"recognise": True}, "pending_validation")
    assert "2 jobs recognised by layout: 'Sorting Engineer'" in board.status_reason


def test_a_page_of_its_own_without_data_says_what_it_needs(ctx: RunContext, web: FakeWeb) -> None:
    serve(web, a_site(board=None))
    given_sources(ctx.store, a_company())
    begin(ctx, web)

    work(ctx, web.port)

    board = source_row(ctx.store, "job_board:acme")
    assert (board.platform, board.url) == ("html", "http://acme.test/team/careers")
    assert "`items` and `fields`" in board.status_reason


def test_a_board_that_has_a_source_gets_no_discovery_and_no_second_one(ctx: RunContext, web: FakeWeb) -> None:
    mine = Definition(
        id="job_board:mine",
        kind=Kind.JOB_BOARD,
        url="https://job-boards.greenhouse.io/acme/jobs/77",
        platform="greenhouse",
        enabled=False,
    )
    given_sources(ctx.store, mine)

    discover(ctx, web, a_board("Sorter"))

    assert tasks_of(ctx.store, "source_discovery") == []
    assert {row.id for row in rows(ctx.store, sources)} == {"company:acme", "job_board:mine"}
    assert company_row(ctx.store).boards[0]["source_id"] == "job_board:mine"


def test_a_page_of_its_own_that_has_a_source_gets_no_second_one(ctx: RunContext, web: FakeWeb) -> None:
    """A careers page has no token: it is known by its address."""
    mine = Definition(
        id="job_board:mine", kind=Kind.JOB_BOARD, url="http://acme.test/team/careers/", platform="html", enabled=False
    )
    serve(web, a_site(board=None))
    given_sources(ctx.store, mine, a_company())
    begin(ctx, web)

    work(ctx, web.port)

    assert tasks_of(ctx.store, "source_discovery") == []
    assert {row.id for row in rows(ctx.store, sources)} == {"company:acme", "job_board:mine"}
    assert company_row(ctx.store).boards[0]["source_id"] == "job_board:mine"


def given_own_source(ctx: RunContext) -> None:
    """An operator declares the board that a discovery is about."""
    mine = Definition(
        id="job_board:mine",
        kind=Kind.JOB_BOARD,
        url="https://job-boards.greenhouse.io/acme",
        platform="greenhouse",
        enabled=False,
    )
    given_sources(ctx.store, mine)


def test_a_board_that_got_a_source_while_its_discovery_waited_is_not_asked(ctx: RunContext, web: FakeWeb) -> None:
    serve(web, {API: a_board("Sorter")}, host="api.test")
    given_sources(ctx.store, a_company())
    discovery = NewTask(
        kind="source_discovery",
        dedupe_key=BOARD,
        not_before=ctx.store.now(),
        source_id="company:acme",
        url=BOARD,
        payload={"company_id": "acme", "platform": "greenhouse", "token": "acme"},
    )
    with ctx.store.begin() as connection:
        insert_tasks(connection, [discovery], now=ctx.store.clock.now(connection))
    given_own_source(ctx)

    work(ctx, web.port)

    [task] = tasks_of(ctx.store, "source_discovery")
    assert (task.status, task.error) == ("SKIPPED", "job_board:mine is its source")
    assert API not in web.paths
    assert BOARD_ID not in {row.id for row in rows(ctx.store, sources)}


def test_a_board_that_got_a_source_while_it_was_asked_gets_no_second_one(ctx: RunContext, web: FakeWeb) -> None:
    async def declare_and_answer(writer: StreamWriter) -> None:
        await asyncio.to_thread(given_own_source, ctx)
        body = a_board("Sorter").encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        writer.write(f"{head}\r\nConnection: close\r\n\r\n".encode() + body)
        await writer.drain()

    discover(ctx, web, declare_and_answer)

    assert {row.id for row in rows(ctx.store, sources)} == {"company:acme", "job_board:mine"}
    assert company_row(ctx.store).boards[0]["source_id"] == "job_board:mine"
    assert [one.source_id for one in tasks_of(ctx.store, "poll")] == ["company:acme"]


def test_a_strangers_token_that_holds_ours_is_another_board(ctx: RunContext) -> None:
    """The origin looked for the token inside addresses, and matched strangers."""
    strange = Definition(
        id="job_board:other",
        kind=Kind.JOB_BOARD,
        url="https://boards.greenhouse.io/acmecorp",
        platform="greenhouse",
        enabled=False,
    )
    given_sources(ctx.store, strange)
    with ctx.store.read() as connection:
        found = find_board_source(
            connection, platform="greenhouse", url="https://boards.greenhouse.io/acme", token="acme"
        )

    assert found is None


def test_a_board_forbidden_by_robots_is_not_asked_and_waits(ctx: RunContext, web: FakeWeb) -> None:
    web.routes["acme.test/robots.txt"] = Reply(b"User-agent: *\nDisallow: /feeds")
    feed = '<p><a href="/feeds/jobs.rss">Jobs feed</a></p>'

    discover(ctx, web, 404, **{"/team/careers": a_page(f"<h1>Careers</h1>{feed}")})

    board = next(row for row in rows(ctx.store, sources) if row.kind == "job_board")
    assert (board.platform, board.status) == ("rss", "pending_validation")
    assert "blocked_by_robots" in board.status_reason
    assert "/feeds/jobs.rss" not in web.paths


def test_a_file_that_declares_it_disabled_does_not_undo_an_approval(ctx: RunContext, web: FakeWeb) -> None:
    discover(ctx, web, 404)
    with ctx.store.begin() as connection:
        connection.execute(update(sources).where(sources.c.id == BOARD_ID).values(next_check_at=None))
        enable(connection, BOARD_ID, actor="someone", now=ctx.store.clock.now(connection))

    assert source_row(ctx.store, BOARD_ID).status_reason is None
