from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update

from ingestion_pipeline.settings import Work
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import audit_log, tasks
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline.tasks.queue import Refusal, Relative, enqueue, insert_tasks, refusal, spawn
from ingestion_pipeline.tasks.task import NewTask, Task, TaskStatus, failed
from ingestion_pipeline_tests.builders import a_new_task

URL = "https://a.test/jobs"
POLICY = Work()


def a_relative(**changes: Any) -> Relative:
    values = {"kind": "page", "url": URL, "status": TaskStatus.SUCCESS, "is_ancestor": False}
    return Relative(**(values | changes))


@pytest.mark.parametrize(
    ("depth", "lineage", "why"),
    [
        pytest.param(1, [], None, id="an only child"),
        pytest.param(10, [], None, id="the last generation"),
        pytest.param(11, [], Refusal.TOO_DEEP, id="too deep"),
        pytest.param(2, [a_relative(is_ancestor=True)], Refusal.IN_ANCESTRY, id="in ancestry"),
        pytest.param(2, [a_relative(kind="company", is_ancestor=True)], None, id="another kind"),
        pytest.param(2, [a_relative(url=URL + "/2", is_ancestor=True)], None, id="another URL"),
        pytest.param(2, [a_relative(status=TaskStatus.PENDING)], Refusal.ACTIVE_DUPLICATE, id="a sibling waits"),
        pytest.param(2, [a_relative(status=TaskStatus.PROCESSING)], Refusal.ACTIVE_DUPLICATE, id="a sibling runs"),
        *(
            pytest.param(2, [a_relative(status=status)], Refusal.TERMINAL_IN_LINEAGE, id=f"{status} before")
            for status in TaskStatus
            if not status.is_active
        ),
    ],
)
def test_the_lineage_decides_whether_a_child_may_be(depth: int, lineage: list[Relative], why: Refusal | None) -> None:
    child = a_new_task(kind="page", url=URL)

    assert refusal(child, depth=depth, lineage=lineage, policy=POLICY) == why


def a_page(url: str = URL, **changes: Any) -> NewTask:
    return replace(a_new_task(kind="page", url=url, dedupe_key=url), **changes)


def root(store: Store, now: datetime, **changes: Any) -> Task:
    """A claimed task that may spawn others."""
    with store.begin() as connection:
        insert_tasks(connection, [a_new_task(**changes)], now=now)
    return claim_one(store, now, "poll")


def claim_one(store: Store, now: datetime, kind: str) -> Task:
    with store.begin() as connection:
        [task] = claims.claim(
            connection, ClaimFilter(kind=kind), owner="one", now=now, lease=timedelta(hours=1), limit=1
        )
    return task


def try_spawn(store: Store, parent: Task, child: NewTask, policy: Work = POLICY) -> int | Refusal:
    with store.begin() as connection:
        return spawn(connection, parent, child, now=parent.created_at, policy=policy)


def test_a_child_inherits_its_lineage(store: Store, now: datetime) -> None:
    parent = root(store, now)

    made = try_spawn(store, parent, a_page())
    child = claim_one(store, now, "page")
    try_spawn(store, child, a_page(URL + "/2"))
    grandchild = claim_one(store, now, "page")

    assert made == child.id
    assert grandchild.tracking_id == child.tracking_id == parent.tracking_id
    assert (child.parent_id, child.ancestry, child.spawn_depth) == (parent.id, (parent.id,), 1)
    assert grandchild.ancestry == (parent.id, child.id)
    assert grandchild.spawn_depth == 2


def test_two_roots_have_two_tracking_ids(store: Store, now: datetime) -> None:
    first, second = root(store, now, dedupe_key="a"), root(store, now, dedupe_key="b")

    assert first.tracking_id != second.tracking_id


def test_a_child_without_a_url_is_a_mistake_of_the_program(store: Store, now: datetime) -> None:
    parent = root(store, now)

    with pytest.raises(ValueError, match="needs a URL"):
        try_spawn(store, parent, a_new_task(kind="page", url=None))


def test_a_loop_through_other_kinds_ends_where_it_began(store: Store, now: datetime) -> None:
    """JOB -> COMPANY -> SOURCE -> JOB with one URL; the company's page as a source is fine."""
    job = root(store, now, url=URL)
    results: list[int | Refusal] = []
    parent = job
    for kind in ("company", "source"):
        results.append(try_spawn(store, parent, a_page(kind=kind)))
        parent = claim_one(store, now, kind)

    again = try_spawn(store, parent, a_page(kind="poll"))

    assert all(isinstance(result, int) for result in results)
    assert again is Refusal.IN_ANCESTRY


def test_too_deep_a_child_is_refused(store: Store, now: datetime) -> None:
    parent = root(store, now)
    try_spawn(store, parent, a_page(), Work(spawn_depth=1))
    child = claim_one(store, now, "page")

    made = try_spawn(store, child, a_page(URL + "/2"), Work(spawn_depth=1))

    assert made is Refusal.TOO_DEEP


def test_what_the_lineage_has_done_it_does_not_do_again(store: Store, now: datetime) -> None:
    parent = root(store, now)
    first = try_spawn(store, parent, a_page())
    waiting = try_spawn(store, parent, a_page())
    with store.begin() as connection:
        connection.execute(update(tasks).where(tasks.c.id == first).values(status="SUCCESS"))

    done = try_spawn(store, parent, a_page())

    assert (waiting, done) == (Refusal.ACTIVE_DUPLICATE, Refusal.TERMINAL_IN_LINEAGE)


def test_another_lineages_active_twin_is_enough(store: Store, now: datetime) -> None:
    first, second = root(store, now, dedupe_key="a"), root(store, now, dedupe_key="b")

    assert isinstance(try_spawn(store, first, a_page()), int)
    assert try_spawn(store, second, a_page()) is Refusal.ACTIVE_DUPLICATE


def test_a_refusal_can_be_read_in_the_audit_log(store: Store, now: datetime) -> None:
    parent = root(store, now, kind="poll", url=URL)

    try_spawn(store, parent, a_page(kind="poll"))

    with store.read() as connection:
        row = connection.execute(select(audit_log)).one()
    assert (row.actor, row.action) == ("system", "spawn.refused")
    assert row.subject == f"task:{parent.tracking_id}"
    assert row.detail == {"kind": "poll", "url": URL, "parent": parent.id, "reason": "in_ancestry"}


def test_a_refusal_repeats_no_secret_of_the_address(
    store: Store, now: datetime, caplog: pytest.LogCaptureFixture
) -> None:
    parent = root(store, now, kind="poll", url=f"{URL}?token=canary")

    try_spawn(store, parent, a_page(f"{URL}?token=canary", kind="poll"))

    with store.read() as connection:
        detail = connection.execute(select(audit_log.c.detail)).scalar_one()
    assert detail["url"] == f"{URL}?token=..."
    assert "token=..." in caplog.text
    assert "canary" not in caplog.text


def test_two_parents_that_spawn_the_same_child_at_once_make_one(store: Store, now: datetime) -> None:
    parents = [root(store, now, dedupe_key=f"{number}") for number in range(8)]
    barrier = threading.Barrier(len(parents))

    def spawn_together(parent: Task) -> int | Refusal:
        barrier.wait(30)
        return try_spawn(store, parent, a_page())

    with ThreadPoolExecutor(len(parents)) as pool:
        made = list(pool.map(spawn_together, parents))

    assert sum(isinstance(result, int) for result in made) == 1
    assert made.count(Refusal.ACTIVE_DUPLICATE) == 7


def test_a_full_queue_refuses_and_says_so(store: Store, now: datetime) -> None:
    parent = root(store, now)
    policy = Work(queue_limit=2)
    urls = [f"{URL}/{number}" for number in range(3)]

    made = [try_spawn(store, parent, a_page(url), policy) for url in urls]

    assert made[2] is Refusal.QUEUE_FULL
    with store.read() as connection:
        assert connection.execute(select(audit_log.c.detail)).scalar_one()["reason"] == "queue_full"
        assert connection.execute(select(func.count()).select_from(tasks)).scalar_one() == 3


def test_only_active_tasks_of_the_same_kind_fill_a_queue(store: Store, now: datetime) -> None:
    policy = Work(queue_limit=1)
    with store.begin() as connection:
        enqueue(connection, a_page(), now=now, policy=policy)
        connection.execute(update(tasks).values(status="SUCCESS"))
        enqueue(connection, a_new_task(), now=now, policy=policy)

        assert isinstance(enqueue(connection, a_page(), now=now, policy=policy), int)
        assert enqueue(connection, a_page("x"), now=now, policy=policy) is Refusal.QUEUE_FULL


def test_failed_work_can_be_enqueued_again_at_once(store: Store, now: datetime) -> None:
    task = root(store, now)
    with store.begin() as connection:
        assert enqueue(connection, a_new_task(), now=now, policy=POLICY) is Refusal.ACTIVE_DUPLICATE
        claims.apply(connection, [failed(task, Permanent("gone"))], now=now)

        again = enqueue(connection, a_new_task(), now=now, policy=POLICY)

    assert isinstance(again, int)
    assert again != task.id


@pytest.mark.parametrize("count", [0, 1, 5_000])
def test_any_number_of_tasks_is_inserted_but_duplicates_are_not(store: Store, now: datetime, count: int) -> None:
    new = [a_new_task(dedupe_key=f"{number}") for number in range(count)]

    with store.begin() as connection:
        first = insert_tasks(connection, [*new, *new[:7]], now=now)
        second = insert_tasks(connection, new, now=now)

    assert len(set(first)) == count
    assert second == []
