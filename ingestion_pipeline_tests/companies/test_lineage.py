"""Companies, boards and jobs spawn each other without running in circles (traps 15 and 16)."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from ingestion_pipeline.companies.records import analysis_task
from ingestion_pipeline.companies.reporting import company_report
from ingestion_pipeline.companies.states import JOB
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.settings import Work
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import audit_log, sources
from ingestion_pipeline.tasks.claims import tasks_by_id
from ingestion_pipeline.tasks.queue import REFUSED, Refusal, insert_tasks, spawn
from ingestion_pipeline.tasks.task import NewTask, Task
from ingestion_pipeline_tests.companies.sites import (
    ACME,
    API,
    BOARD,
    a_board,
    a_company,
    a_site,
    begin,
    serve,
    tasks_of,
    work,
)
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import given_sources, rows

JOB_URL = "https://boards.greenhouse.io/acme/jobs/1"
POLICY = Work()


def a_job(ctx: RunContext, url: str = JOB_URL) -> NewTask:
    return NewTask(kind=JOB, dedupe_key=url, url=url, not_before=ctx.store.now())


def spawned(ctx: RunContext, parent: Task, child: NewTask) -> int | Refusal:
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        return spawn(connection, parent, child, now=now, policy=POLICY)


def task(store: Store, task_id: int) -> Task:
    with store.read() as connection:
        return tasks_by_id(connection, [task_id])[task_id]


@pytest.fixture
def poll(ctx: RunContext, web: FakeWeb) -> Task:
    """The poll of a board that an analysis found: company, discovery, poll."""
    serve(web, a_site())
    serve(web, {API: a_board("Sorter")}, host="api.test")
    given_sources(ctx.store, a_company())
    begin(ctx, web)
    work(ctx, web.port)
    [found] = [one for one in tasks_of(ctx.store, "poll") if one.source_id != ACME]
    return task(ctx.store, found.id)


def refusals(store: Store) -> list[Any]:
    return [row for row in rows(store, audit_log) if row.action == REFUSED]


def test_a_job_does_not_begin_the_company_that_led_to_it(
    ctx: RunContext, poll: Task, caplog: pytest.LogCaptureFixture
) -> None:
    job = spawned(ctx, poll, a_job(ctx))
    assert isinstance(job, int)

    with caplog.at_level(logging.WARNING):
        again = [
            spawned(ctx, task(ctx.store, job), analysis_task("acme", "http://acme.test", now=ctx.store.now()))
            for _ in range(3)
        ]

    assert again == [Refusal.IN_ANCESTRY] * 3
    # one edge, one warning, one line that can be read afterwards
    assert [one.getMessage() for one in caplog.records] == ["spawn of company http://acme.test/ refused: in_ancestry"]
    with ctx.store.read() as connection:
        [told] = company_report(connection, "acme").refusals
    assert (told["kind"], told["reason"], told["parent"]) == ("company", "in_ancestry", job)


def test_a_job_a_company_a_board_and_the_same_job_end_there(ctx: RunContext, web: FakeWeb) -> None:
    """JOB -> COMPANY -> SOURCE_DISCOVERY -> poll -> JOB of the same URL: the last is refused."""
    serve(web, a_site())
    serve(web, {API: a_board("Sorter")}, host="api.test")
    given_sources(ctx.store, a_company())
    with ctx.store.begin() as connection:
        [job_id] = insert_tasks(connection, [a_job(ctx)], now=ctx.store.now())
    job = task(ctx.store, job_id)
    company = analysis_task("acme", "http://acme.test", now=ctx.store.now())
    assert isinstance(spawned(ctx, job, company), int)
    work(ctx, web.port)

    [poll] = [one for one in tasks_of(ctx.store, "poll") if one.url == BOARD]
    same = spawned(ctx, task(ctx.store, poll.id), a_job(ctx))
    other = spawned(ctx, task(ctx.store, poll.id), a_job(ctx, f"{JOB_URL}1"))

    assert same is Refusal.IN_ANCESTRY
    assert isinstance(other, int)
    assert len(poll.ancestry) == 3
    kinds = {"company", "source_discovery", "poll", JOB}
    lineage = [row for kind in kinds for row in tasks_of(ctx.store, kind)]
    spawned_ones = [row for row in lineage if row.parent_id is not None]
    assert {row.tracking_id for row in spawned_ones} == {job.tracking_id}


def test_a_company_page_may_be_a_board(ctx: RunContext, poll: Task) -> None:
    """The same URL of another kind is no loop (ruling C-7)."""
    home = spawned(
        ctx,
        poll,
        NewTask(
            kind="source_discovery", dedupe_key="http://acme.test/", url="http://acme.test/", not_before=ctx.store.now()
        ),
    )

    assert isinstance(home, int)


def test_a_lineage_that_is_too_deep_gets_no_source(ctx: RunContext, web: FakeWeb) -> None:
    serve(web, a_site())
    serve(web, {API: a_board("Sorter")}, host="api.test")
    given_sources(ctx.store, a_company())
    parent: int | Refusal = 0
    with ctx.store.begin() as connection:
        [parent] = insert_tasks(connection, [a_job(ctx, "https://x.test/0")], now=ctx.store.now())
    for depth in range(1, 9):
        parent = spawned(ctx, task(ctx.store, parent), a_job(ctx, f"https://x.test/{depth}"))
        assert isinstance(parent, int)
    company = analysis_task("acme", "http://acme.test", now=ctx.store.now())
    assert isinstance(spawned(ctx, task(ctx.store, parent), company), int)  # depth 9

    work(ctx, web.port)  # its discovery has depth 10, its poll would have 11

    assert [row.id for row in rows(ctx.store, sources)] == [ACME]
    [told] = refusals(ctx.store)
    assert (told.detail["kind"], told.detail["reason"]) == ("poll", "too_deep")


def test_more_sources_than_a_queue_may_hold_do_not_refuse_a_poll(ctx: RunContext, web: FakeWeb) -> None:
    """Polls never end: counted as waiting, they would refuse every board after a thousand."""
    parent = insert_company_task(ctx)
    child = NewTask(kind="poll", dedupe_key="s", url="https://x.test/b", not_before=ctx.store.now())
    with ctx.store.begin() as connection:
        now, policy = ctx.store.clock.now(connection), Work(queue_limit=1)
        insert_tasks(connection, [NewTask(kind="poll", dedupe_key="o", not_before=now)], now=now)
        full = spawn(connection, parent, child, now=now, policy=policy)
        made = spawn(connection, parent, child, now=now, policy=policy, is_permanent=True)

    assert full is Refusal.QUEUE_FULL
    assert isinstance(made, int)


def insert_company_task(ctx: RunContext) -> Task:
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        [made] = insert_tasks(connection, [analysis_task("a", "http://a.test", now=now)], now=now)
        return tasks_by_id(connection, [made])[made]
