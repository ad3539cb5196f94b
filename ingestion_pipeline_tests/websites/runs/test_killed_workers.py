"""Worker processes that are killed, stopped or compete: each analysis ends once, each answer is stored once."""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from ingestion_pipeline.demo.model_server import Fail, ModelRequest, Say, ScriptedModel
from ingestion_pipeline.demo.model_server import Reply as ModelReply
from ingestion_pipeline.registry import replay
from ingestion_pipeline.store import Store, open_store
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
from ingestion_pipeline_tests.polling_runs import WorkerJob, add_sources, rows, slow_answer, wait_until
from ingestion_pipeline_tests.processes import Child, stop_outside_a_transaction
from ingestion_pipeline_tests.websites.website_runs import (
    SMALL_PAGE,
    a_website,
    answer_pairs,
    only_analysis,
    phase_tasks,
    poll,
    process_until_done,
    provider_settings,
    statuses,
)

pytestmark = [pytest.mark.slow, pytest.mark.both_databases]


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """A store with the real clock, which the worker processes use."""
    with closing(open_store(database_url)) as store:
        yield store


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


def kill_repeatedly(job: WorkerJob, *, workers: int, every: float, seconds: float) -> int:
    """Kill and replace a random worker repeatedly, then wait for all; return the number of kills."""
    choose, killed = random.Random(11), 0
    children = [Child(process_until_done, job) for _ in range(workers)]
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(every)
        index = choose.randrange(workers)
        children[index].kill()
        killed += 1
        children[index] = Child(process_until_done, job)
    for child in children:
        child.result()
    return killed


class CountingProvider:
    """A slow provider that counts calls, and records prompts whose answer was already stored."""

    def __init__(self, store: Store, seconds: float) -> None:
        self.calls: Counter[str] = Counter()
        self.paid_again: list[str] = []
        self._store = store
        self._seconds = seconds
        self._lock = threading.Lock()

    def __call__(self, request: ModelRequest) -> ModelReply:
        with self._lock:
            self.calls[request.text] += 1
        is_stored = (website_answers.c.prompt == request.text) & (website_answers.c.status == "answered")
        with self._store.read() as connection:
            if connection.execute(select(website_answers.c.id).where(is_stored)).first():
                self.paid_again.append(request.text)
        time.sleep(self._seconds)  # so that kills hit running requests
        return Say(text="Acme Tools.")


def dead_lettered(store: Store) -> dict[str, str]:
    """Return the error code of each open dead letter by its source."""
    open_rows = [row for row in rows(store, dead_letters) if row.replayed_at is None]
    return {row.source_id: row.error_code for row in open_rows}


def replay_all(store: Store) -> None:
    with store.begin() as connection:
        now = store.clock.now(connection)
        for row in connection.execute(select(dead_letters)).all():
            assert replay(connection, row.id, actor="test", now=now) == "queued"


def assert_a_kill_loop_loses_nothing(
    store: Store, web: FakeWeb, job: WorkerJob, provider: CountingProvider, **loop: Any
) -> None:
    """Assert that each analysis ends once; one that lost all its workers ends when its dead letter is replayed.

    Counted at the provider: no prompt is sent once its answer is stored.
    """
    count = loop.pop("count")
    prompts = {f"w{number}": [f"Who bakes {kind} w{number}?" for kind in ("rye", "rolls")] for number in range(count)}
    definitions = [a_website(name, config={"prompts": own}) for name, own in prompts.items()]
    add_sources(store, *definitions)
    with replace(job, changes={}).ctx() as ctx:  # with a lease of one second a slow poll may lose its claim
        poll(ctx, web)

    killed = kill_repeatedly(job, **loop)

    assert killed >= loop["seconds"] / loop["every"] / 3
    failed = {row.source_id for row in rows(store, website_analyses) if row.status == "failed"}
    assert dead_lettered(store) == dict.fromkeys(failed, "worker_lost")
    assert all(row.attempts >= 3 for row in rows(store, dead_letters))
    replay_all(store)
    Child(process_until_done, job).result()
    assert statuses(store) == {"completed": count}
    assert set(provider.calls) == {text for own in prompts.values() for text in own}
    assert provider.paid_again == []
    assert set(answer_pairs(store).values()) == {1}
    assert {row.status for row in rows(store, website_answers)} == {"answered"}
    assert len(rows(store, website_answers)) == 2 * count
    assert len(phase_tasks(store)) == 3 * count
    assert {task.status for task in phase_tasks(store)} == {"SUCCESS"}


KILL_LOOP = {
    "work__lease_seconds": "1",
    "hosts__lease_seconds": "1",
    # A new worker imports its client first, on two busy cores.
    "website__answer_seconds": "60",
}


def test_repeated_worker_kills_neither_lose_nor_duplicate_answers(
    store: Store, web: FakeWeb, database_url: str, tmp_path: Path
) -> None:
    web.routes["/"] = slow_answer(SMALL_PAGE.encode(), 0.1)
    provider = CountingProvider(store, 0.2)
    with ScriptedModel(provider) as model:
        job = worker_job(database_url, tmp_path, web, model.base_url, **KILL_LOOP)
        # 15 s for both databases
        assert_a_kill_loop_loses_nothing(store, web, job, provider, count=24, workers=3, every=0.4, seconds=7.5)


@pytest.mark.soak
def test_a_minute_of_worker_kills_neither_loses_nor_duplicates_answers(
    store: Store, web: FakeWeb, database_url: str, tmp_path: Path
) -> None:
    web.routes["/"] = slow_answer(SMALL_PAGE.encode(), 0.1)
    provider = CountingProvider(store, 0.2)
    with ScriptedModel(provider) as model:
        job = worker_job(database_url, tmp_path, web, model.base_url, **KILL_LOOP)
        assert_a_kill_loop_loses_nothing(store, web, job, provider, count=500, workers=6, every=0.3, seconds=60)


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


def test_a_worker_that_resumes_past_its_lease_writes_nothing_while_another_holds_its_task(
    store: Store, web: FakeWeb, database_url: str, tmp_path: Path
) -> None:
    prompts = ["Who bakes?", "Who bakes best?"]
    calls: list[str] = []
    first_may_answer, second_may_answer = threading.Event(), threading.Event()

    def answer(request: ModelRequest) -> ModelReply:
        calls.append(request.text)
        if len(calls) <= len(prompts):
            first_may_answer.wait(60)
            return Say(text="Acme, too late.")
        second_may_answer.wait(60)
        return Say(text="Acme.")

    with ScriptedModel(answer) as model:
        changes = {"work__lease_seconds": "30", "website__answer_seconds": "60"}
        job = worker_job(database_url, tmp_path, web, model.base_url, **changes)
        start_analyses(store, web, job, "acme", config={"business": {"name": "Acme"}, "prompts": prompts})
        stopped_worker = Child(process_until_done, job, 1)  # claims nothing more after it resumes
        other = None
        try:
            wait_until(lambda: len(calls) == len(prompts), 120)
            stop_outside_a_transaction(stopped_worker, store)
            expire_leases(store)
            other = Child(process_until_done, job)
            wait_until(lambda: len(calls) == 2 * len(prompts), 120)
            first_may_answer.set()
            stopped_worker.resume()

            assert stopped_worker.result() == 2  # its first two phases, before it was stopped
            assert rows(store, website_answers) == []
            second_may_answer.set()
            assert other.result() == 1
        finally:
            first_may_answer.set()
            second_may_answer.set()
            stopped_worker.kill()
            if other is not None:
                other.kill()
    assert {row.answer for row in rows(store, website_answers)} == {"Acme."}
    assert [task.fence for task in phase_tasks(store, "website_analysis")] == [2]


def test_a_site_that_kills_its_worker_alone_three_times_is_a_dead_letter(
    store: Store, web: FakeWeb, database_url: str, tmp_path: Path, provider: ScriptedModel
) -> None:
    workers: list[Child] = []

    async def kill(_: Any) -> None:
        os.kill(workers[-1]._pid, signal.SIGKILL)

    web.routes["poison.test/"] = kill
    job = worker_job(database_url, tmp_path, web, provider.base_url)
    start_analyses(store, web, job, "poison", "one", "two")
    for _ in range(4):  # beside the others, and three times alone
        workers.append(Child(process_until_done, job))
        assert workers[-1].wait() == -signal.SIGKILL
        expire_leases(store)
        with store.begin() as connection:  # and its hosts
            connection.execute(metadata.tables["hosts"].update().values(lease_owner=None))
    Child(process_until_done, job).result()

    assert web.paths.count("/") >= 5
    assert [web_request.host for web_request in web.requests].count("poison.test") == 4
    status_by_source = {row.source_id: row.status for row in rows(store, website_analyses)}
    assert status_by_source == {"website:poison": "failed", "website:one": "completed", "website:two": "completed"}
    [dead_letter] = rows(store, dead_letters)
    assert (dead_letter.source_id, dead_letter.error_code) == ("website:poison", "worker_lost")
    assert "worker lost 3 times" in dead_letter.error
    wait_until(lambda: all(task.status != "PROCESSING" for task in phase_tasks(store)))
