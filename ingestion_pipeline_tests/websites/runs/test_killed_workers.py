"""Worker processes that are killed, stopped or compete: each analysis ends once, each answer is stored once."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from ingestion_pipeline.demo.model_server import Fail, ModelRequest, Say, ScriptedModel
from ingestion_pipeline.demo.model_server import Reply as ModelReply
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import (
    dead_letters,
    metadata,
    sources,
    tasks,
    website_analyses,
    website_answers,
    website_rankings,
)
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import WorkerJob, add_sources, rows, wait_until
from ingestion_pipeline_tests.processes import Child, stop_outside_a_transaction
from ingestion_pipeline_tests.websites.website_runs import (
    a_website,
    only_analysis,
    phase_tasks,
    poll,
    process_until_done,
    provider_settings,
)

pytestmark = [pytest.mark.slow, pytest.mark.both_databases, pytest.mark.real_time]


def worker_job(url: str, folder: Path, web: FakeWeb, provider: str, **changes: str) -> WorkerJob:
    return WorkerJob(url=url, home=folder / "home", port=web.port, changes=provider_settings(one=provider) | changes)


def start_analyses(store: Store, web: FakeWeb, job: WorkerJob, *names: str, **changes: Any) -> None:
    """Add these websites and start their analyses."""
    add_sources(store, *(a_website(name, **changes) for name in names))
    with replace(job, changes={}).ctx() as ctx:  # with a lease of one second a slow poll may lose its claim
        poll(ctx, web)


def expire_leases(store: Store) -> None:
    """Make the tasks of a dead worker claimable now."""
    with store.begin() as connection:
        claimed_tasks = update(tasks).where(tasks.c.kind != "poll", tasks.c.status == "PROCESSING")
        connection.execute(claimed_tasks.values(lease_until=store.clock.now(connection)))


def all_rows(store: Store) -> dict[str, list[Any]]:
    stored_tables = (website_analyses, website_answers, website_rankings, tasks, sources, dead_letters)
    with store.read() as connection:
        return {table.name: list(connection.execute(select(metadata.tables[table.name]))) for table in stored_tables}


def test_an_answer_is_stored_before_its_sentiment_is_known_and_never_paid_twice(
    store: Store, web: FakeWeb, database_url: str, tmp_path: Path
) -> None:
    prompts = ["Who bakes?", "Who bakes best?", "Who bakes rye?"]
    is_asked, may_answer = threading.Event(), threading.Event()

    def sentiment(_: ModelRequest) -> ModelReply:
        is_asked.set()
        may_answer.wait(60)
        return Say(text='{"sentiment": "positive", "quote": "Acme is the best baker"}')

    with ScriptedModel(lambda _: Say(text="Acme is the best baker.")) as provider, ScriptedModel(sentiment) as model:
        job = worker_job(database_url, tmp_path, web, provider.base_url, openai_base_url=model.base_url)
        start_analyses(store, web, job, "acme", config={"business": {"name": "Acme"}, "prompts": prompts})
        worker = Child(process_until_done, job)
        try:
            assert is_asked.wait(120)
            wait_until(lambda: len(rows(store, website_answers)) == len(prompts))
        finally:
            worker.kill()
            may_answer.set()
        expire_leases(store)
        assert Child(process_until_done, job).result() == 1

    assert sorted(request.text for request in provider.requests) == sorted(prompts)
    assert only_analysis(store).analysis["sentiments"] == {"positive": len(prompts)}


def test_a_worker_that_resumes_past_its_lease_writes_nothing(
    store: Store, web: FakeWeb, database_url: str, tmp_path: Path
) -> None:
    prompts = ["Who bakes?", "Who bakes best?"]
    late_prompts: list[str] = []
    is_asked, may_answer = threading.Event(), threading.Event()

    def answer(request: ModelRequest) -> ModelReply:
        """Answer the stopped worker late; its successor gets no answer to the second prompt."""
        if len(late_prompts) < len(prompts):
            late_prompts.append(request.text)
            if len(late_prompts) == len(prompts):
                is_asked.set()
            may_answer.wait(60)
            return Say(text="Acme, too late.")
        return Say(text="Acme.") if request.text == prompts[0] else Fail(status=400)

    with ScriptedModel(answer) as model:
        job = worker_job(database_url, tmp_path, web, model.base_url, work__lease_seconds="30")
        start_analyses(store, web, job, "acme", config={"business": {"name": "Acme"}, "prompts": prompts})
        stopped_worker = Child(process_until_done, job, 1)  # claims nothing more after it resumes
        try:
            assert is_asked.wait(120)
            stop_outside_a_transaction(stopped_worker, store)
            expire_leases(store)
            assert Child(process_until_done, job).result() == 1
            before = all_rows(store)
            assert {row.status for row in before["website_answers"]} == {"answered", "failed"}
            may_answer.set()
            stopped_worker.resume()

            assert stopped_worker.result() == 2  # its first two phases, before it was stopped
        finally:
            stopped_worker.kill()
    assert all_rows(store) == before  # an answer would have replaced the failure
    assert only_analysis(store).status == "completed"
    assert [task.fence for task in phase_tasks(store, "website_analysis")] == [2]
