"""Companies, boards and jobs spawn each other without cycles (traps 15 and 16)."""

import logging
from typing import Any

import pytest

from ingestion_pipeline.companies.records import JOB, analysis_task
from ingestion_pipeline.companies.reports import company_report
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.settings import Work
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import audit_log, sources
from ingestion_pipeline.tasks import queue
from ingestion_pipeline.tasks.claims import tasks_by_id
from ingestion_pipeline.tasks.queue import REFUSED, Refusal, insert_tasks, spawn
from ingestion_pipeline.tasks.task import NewTask, Task
from ingestion_pipeline_tests.companies.company_sites import (
    ACME,
    API,
    BOARD,
    a_company,
    a_site,
    board_answer,
    poll_companies,
    process_companies,
    serve,
    tasks_of,
)
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import add_sources, rows

pytestmark = pytest.mark.both_databases

JOB_URL = "https://boards.greenhouse.io/acme/jobs/1"
POLICY = Work()


def job_task(ctx: RunContext, url: str = JOB_URL) -> NewTask:
    return NewTask(kind=JOB, dedupe_key=url, url=url, not_before=ctx.store.now())


def spawn_child(ctx: RunContext, parent: Task, child: NewTask) -> int | Refusal:
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        return spawn(connection, parent, child, now=now, policy=POLICY)


def load_task(store: Store, task_id: int) -> Task:
    with store.read() as connection:
        return tasks_by_id(connection, [task_id])[task_id]


@pytest.fixture
def poll(ctx: RunContext, web: FakeWeb) -> Task:
    """The poll of a discovered board; its lineage is company, discovery, poll."""
    serve(web, a_site())
    serve(web, {API: board_answer("Sorter")}, host="api.test")
    add_sources(ctx.store, a_company())
    poll_companies(ctx, web)
    process_companies(ctx, web.port)
    [poll_row] = [row for row in tasks_of(ctx.store, "poll") if row.source_id != ACME]
    return load_task(ctx.store, poll_row.id)


def refusals(store: Store) -> list[Any]:
    return [row for row in rows(store, audit_log) if row.action == REFUSED]


@pytest.mark.slow
def test_a_job_does_not_spawn_the_company_that_led_to_it(
    ctx: RunContext, poll: Task, caplog: pytest.LogCaptureFixture
) -> None:
    job = spawn_child(ctx, poll, job_task(ctx))
    assert isinstance(job, int)

    with caplog.at_level(logging.WARNING):
        results = [
            spawn_child(ctx, load_task(ctx.store, job), analysis_task("acme", "http://acme.test", now=ctx.store.now()))
            for _ in range(3)
        ]

    assert results == [Refusal.IN_ANCESTRY] * 3
    # one warning and one audit row for three attempts
    assert [record.getMessage() for record in caplog.records] == [
        "spawn refused kind=company url=http://acme.test/ reason=in_ancestry"
    ]
    with ctx.store.read() as connection:
        [refusal] = company_report(connection, "acme").refusals
    assert (refusal["kind"], refusal["reason"], refusal["parent"]) == ("company", "in_ancestry", job)


@pytest.mark.slow
def test_a_lineage_from_a_job_back_to_the_same_job_is_refused(ctx: RunContext, web: FakeWeb) -> None:
    """JOB -> COMPANY -> SOURCE_DISCOVERY -> poll -> JOB of the same URL: the last is refused."""
    serve(web, a_site())
    serve(web, {API: board_answer("Sorter")}, host="api.test")
    add_sources(ctx.store, a_company())
    with ctx.store.begin() as connection:
        [job_id] = insert_tasks(connection, [job_task(ctx)], now=ctx.store.now())
    job = load_task(ctx.store, job_id)
    company = analysis_task("acme", "http://acme.test", now=ctx.store.now())
    assert isinstance(spawn_child(ctx, job, company), int)
    process_companies(ctx, web.port)

    [poll] = [task for task in tasks_of(ctx.store, "poll") if task.url == BOARD]
    same = spawn_child(ctx, load_task(ctx.store, poll.id), job_task(ctx))
    other = spawn_child(ctx, load_task(ctx.store, poll.id), job_task(ctx, f"{JOB_URL}1"))

    assert same is Refusal.IN_ANCESTRY
    assert isinstance(other, int)
    assert len(poll.ancestry) == 3
    kinds = {"company", "source_discovery", "poll", JOB}
    lineage = [row for kind in kinds for row in tasks_of(ctx.store, kind)]
    spawned = [row for row in lineage if row.parent_id is not None]
    assert {row.tracking_id for row in spawned} == {job.tracking_id}


@pytest.mark.slow
def test_a_company_page_may_be_a_board(ctx: RunContext, poll: Task) -> None:
    """The same URL of another kind is not a cycle (ruling C-7)."""
    home = spawn_child(
        ctx,
        poll,
        NewTask(
            kind="source_discovery", dedupe_key="http://acme.test/", url="http://acme.test/", not_before=ctx.store.now()
        ),
    )

    assert isinstance(home, int)


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


def test_more_sources_than_a_queue_may_hold_do_not_refuse_a_poll(
    ctx: RunContext, web: FakeWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Polls never finish: if they counted as queued, every board after a thousand would be refused."""
    monkeypatch.setattr(queue, "QUEUE_LIMIT", 1)
    parent = insert_company_task(ctx)
    child = NewTask(kind="poll", dedupe_key="s", url="https://x.test/b", not_before=ctx.store.now())
    with ctx.store.begin() as connection:
        now, policy = ctx.store.clock.now(connection), Work()
        insert_tasks(connection, [NewTask(kind="poll", dedupe_key="o", not_before=now)], now=now)
        refusal = spawn(connection, parent, child, now=now, policy=policy)
        poll_id = spawn(connection, parent, child, now=now, policy=policy, is_permanent=True)

    assert refusal is Refusal.QUEUE_FULL
    assert isinstance(poll_id, int)


def insert_company_task(ctx: RunContext) -> Task:
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        [task_id] = insert_tasks(connection, [analysis_task("a", "http://a.test", now=now)], now=now)
        return tasks_by_id(connection, [task_id])[task_id]
