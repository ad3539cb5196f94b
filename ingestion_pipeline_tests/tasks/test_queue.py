"""New tasks: enqueued once, and spawned under the guard, one by one and many at a time."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from ingestion_pipeline.settings import Work
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import audit_log, tasks
from ingestion_pipeline.tasks import claims, queue
from ingestion_pipeline.tasks.claims import ClaimFilter, tasks_by_id
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline.tasks.queue import (
    QUEUE_LIMIT,
    Refusal,
    Relative,
    SpawnCounts,
    SpawnRequest,
    continue_all,
    enqueue,
    insert_tasks,
    refusal,
    spawn,
    spawn_all,
)
from ingestion_pipeline.tasks.task import NewTask, Task, TaskStatus, failed
from ingestion_pipeline_tests.builders import a_new_task
from ingestion_pipeline_tests.polling_runs import rows
from ingestion_pipeline_tests.statements import recorded_statements

pytestmark = pytest.mark.both_databases

URL = "https://a.test/jobs"
POLICY = Work()


def a_relative(**changes: Any) -> Relative:
    values = {"kind": "page", "url": URL, "status": TaskStatus.SUCCESS, "is_ancestor": False}
    return Relative(**(values | changes))


@pytest.mark.parametrize(
    ("depth", "lineage", "expected"),
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
def test_the_lineage_decides_whether_a_child_may_be_spawned(
    depth: int, lineage: list[Relative], expected: Refusal | None
) -> None:
    child = a_new_task(kind="page", url=URL)

    assert refusal(child, depth=depth, lineage=lineage, policy=POLICY) == expected


def a_page(url: str = URL, **changes: Any) -> NewTask:
    return replace(a_new_task(kind="page", url=url, dedupe_key=url), **changes)


def claimed_root(store: Store, now: datetime, **changes: Any) -> Task:
    """Return a claimed task that may spawn others."""
    with store.begin() as connection:
        insert_tasks(connection, [a_new_task(**changes)], now=now)
    return claim_one(store, now, "poll")


def claim_one(store: Store, now: datetime, kind: str) -> Task:
    with store.begin() as connection:
        [task] = claims.claim(
            connection, ClaimFilter(kind=kind), owner="worker", now=now, lease=timedelta(hours=1), limit=1
        )
    return task


def try_spawn(store: Store, parent: Task, child: NewTask, policy: Work = POLICY) -> int | Refusal:
    with store.begin() as connection:
        return spawn(connection, parent, child, now=parent.created_at, policy=policy)


def test_a_child_inherits_its_lineage(store: Store, now: datetime) -> None:
    parent = claimed_root(store, now)

    child_id = try_spawn(store, parent, a_page())
    child = claim_one(store, now, "page")
    try_spawn(store, child, a_page(URL + "/2"))
    grandchild = claim_one(store, now, "page")

    assert child_id == child.id
    assert grandchild.tracking_id == child.tracking_id == parent.tracking_id
    assert (child.parent_id, child.ancestry, child.spawn_depth) == (parent.id, (parent.id,), 1)
    assert grandchild.ancestry == (parent.id, child.id)
    assert grandchild.spawn_depth == 2


def test_two_roots_have_two_tracking_ids(store: Store, now: datetime) -> None:
    first, second = claimed_root(store, now, dedupe_key="a"), claimed_root(store, now, dedupe_key="b")

    assert first.tracking_id != second.tracking_id


def test_a_child_without_a_url_is_a_programming_error(store: Store, now: datetime) -> None:
    parent = claimed_root(store, now)

    with pytest.raises(ValueError, match="needs a URL"):
        try_spawn(store, parent, a_new_task(kind="page", url=None))


def test_a_loop_through_other_kinds_is_refused_at_its_start(store: Store, now: datetime) -> None:
    """JOB -> COMPANY -> SOURCE -> JOB with one URL; the company's page as a source is allowed."""
    job = claimed_root(store, now, url=URL)
    results: list[int | Refusal] = []
    parent = job
    for kind in ("company", "source"):
        results.append(try_spawn(store, parent, a_page(kind=kind)))
        parent = claim_one(store, now, kind)

    repeated = try_spawn(store, parent, a_page(kind="poll"))

    assert all(isinstance(result, int) for result in results)
    assert repeated is Refusal.IN_ANCESTRY


def test_a_child_that_is_too_deep_is_refused(store: Store, now: datetime) -> None:
    parent = claimed_root(store, now)
    try_spawn(store, parent, a_page(), Work(spawn_depth=1))
    child = claim_one(store, now, "page")

    outcome = try_spawn(store, child, a_page(URL + "/2"), Work(spawn_depth=1))

    assert outcome is Refusal.TOO_DEEP


def test_a_lineage_does_not_repeat_a_finished_task(store: Store, now: datetime) -> None:
    parent = claimed_root(store, now)
    first = try_spawn(store, parent, a_page())
    waiting = try_spawn(store, parent, a_page())
    with store.begin() as connection:
        connection.execute(update(tasks).where(tasks.c.id == first).values(status="SUCCESS"))

    repeated = try_spawn(store, parent, a_page())

    assert (waiting, repeated) == (Refusal.ACTIVE_DUPLICATE, Refusal.TERMINAL_IN_LINEAGE)


def test_an_active_duplicate_in_another_lineage_is_refused(store: Store, now: datetime) -> None:
    first, second = claimed_root(store, now, dedupe_key="a"), claimed_root(store, now, dedupe_key="b")

    assert isinstance(try_spawn(store, first, a_page()), int)
    assert try_spawn(store, second, a_page()) is Refusal.ACTIVE_DUPLICATE


def test_a_refusal_is_one_warning_and_one_audit_row_however_often_it_is_repeated(
    store: Store, now: datetime, caplog: pytest.LogCaptureFixture
) -> None:
    parent = claimed_root(store, now, kind="poll", url=URL)

    assert [try_spawn(store, parent, a_page(kind="poll")) for _ in range(3)] == [Refusal.IN_ANCESTRY] * 3

    assert caplog.messages == [f"spawn refused kind=poll url={URL} reason=in_ancestry"]
    [row] = rows(store, audit_log)
    assert (row.actor, row.action) == ("system", "spawn.refused")
    assert row.subject == f"task:{parent.tracking_id}"
    assert row.detail == {"kind": "poll", "url": URL, "parent": parent.id, "reason": "in_ancestry"}


def test_a_refusal_repeats_no_secret_of_the_url(store: Store, now: datetime, caplog: pytest.LogCaptureFixture) -> None:
    parent = claimed_root(store, now, kind="poll", url=f"{URL}?token=canary")

    try_spawn(store, parent, a_page(f"{URL}?token=canary", kind="poll"))

    [detail] = [row.detail for row in rows(store, audit_log)]
    assert detail["url"] == f"{URL}?token=..."
    assert "token=..." in caplog.text
    assert "canary" not in caplog.text


def test_concurrent_spawns_of_the_same_child_create_one(store: Store, now: datetime) -> None:
    parents = [claimed_root(store, now, dedupe_key=f"{number}") for number in range(8)]
    barrier = threading.Barrier(len(parents))

    def spawn_together(parent: Task) -> int | Refusal:
        barrier.wait(30)
        return try_spawn(store, parent, a_page())

    with ThreadPoolExecutor(len(parents)) as pool:
        outcomes = list(pool.map(spawn_together, parents))

    assert sum(isinstance(outcome, int) for outcome in outcomes) == 1
    assert outcomes.count(Refusal.ACTIVE_DUPLICATE) == 7


def test_a_full_queue_refuses_and_audits_it_but_for_permanent_tasks(
    store: Store, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Polls never finish: if they were refused, every board after a thousand would be."""
    parent = claimed_root(store, now)
    monkeypatch.setattr(queue, "QUEUE_LIMIT", 2)
    urls = [f"{URL}/{number}" for number in range(3)]

    outcomes = [try_spawn(store, parent, a_page(url)) for url in urls]

    assert outcomes[2] is Refusal.QUEUE_FULL
    assert [row.detail["reason"] for row in rows(store, audit_log)] == ["queue_full"]
    assert len(rows(store, tasks)) == 3
    with store.begin() as connection:
        assert isinstance(spawn(connection, parent, a_page(urls[2]), now=now, policy=POLICY, is_permanent=True), int)


def test_only_active_tasks_of_the_same_kind_fill_a_queue(
    store: Store, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "QUEUE_LIMIT", 1)
    with store.begin() as connection:
        enqueue(connection, a_page(), now=now)
        connection.execute(update(tasks).values(status="SUCCESS"))
        enqueue(connection, a_new_task(), now=now)

        assert isinstance(enqueue(connection, a_page(), now=now), int)
        assert enqueue(connection, a_page("x"), now=now) is Refusal.QUEUE_FULL


def test_a_failed_task_can_be_enqueued_again_at_once(store: Store, now: datetime) -> None:
    task = claimed_root(store, now)
    with store.begin() as connection:
        assert enqueue(connection, a_new_task(), now=now) is Refusal.ACTIVE_DUPLICATE
        claims.apply(connection, [failed(task, Permanent("gone"))], now=now)

        new_id = enqueue(connection, a_new_task(), now=now)

    assert isinstance(new_id, int)
    assert new_id != task.id


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 5_000])
def test_any_number_of_tasks_is_inserted_without_duplicates(store: Store, now: datetime, count: int) -> None:
    new = [a_new_task(dedupe_key=f"{number}") for number in range(count)]

    with store.begin() as connection:
        first = insert_tasks(connection, [*new, *new[:7]], now=now)
        second = insert_tasks(connection, new, now=now)

    assert len(set(first)) == count
    assert second == []


def a_root(store: Store, now: datetime, url: str = "https://a.test/") -> Task:
    with store.begin() as connection:
        new = a_new_task(kind="fetch_page", dedupe_key=url, url=url)
        [id_] = insert_tasks(connection, [new], now=now)
        return tasks_by_id(connection, [id_])[id_]


def a_child(parent: Task, path: str, *, is_sibling: bool = False) -> SpawnRequest:
    url = f"https://a.test/{path}"
    child = a_new_task(kind="fetch_page", dedupe_key=url, url=url)
    return SpawnRequest(parent=parent, child=child, is_sibling=is_sibling)


def spawn_batch(store: Store, now: datetime, *requests: SpawnRequest, policy: Work = POLICY) -> SpawnCounts:
    with store.begin() as connection:
        return spawn_all(connection, requests, now=now, policy=policy)


def test_each_page_is_spawned_once_however_often_it_is_requested(store: Store, now: datetime) -> None:
    root = a_root(store, now)

    first = spawn_batch(store, now, a_child(root, "1"), a_child(root, "2"), a_child(root, "1"))
    second = spawn_batch(store, now, a_child(root, "2"), a_child(root, "3"), a_child(root, ""))

    assert first == SpawnCounts(made=2, existing=1)
    assert second == SpawnCounts(made=1, existing=2)
    assert len(rows(store, tasks)) == 4


def test_a_page_that_has_ended_is_not_spawned_again_in_its_lineage(store: Store, now: datetime) -> None:
    root = a_root(store, now)
    spawn_batch(store, now, a_child(root, "1"))
    with store.begin() as connection:
        connection.execute(tasks.update().values(status="SUCCESS"))

    assert spawn_batch(store, now, a_child(root, "1"), a_child(root, "")) == SpawnCounts(existing=2)


def test_another_lineage_may_have_the_same_page_once_the_first_is_done(store: Store, now: datetime) -> None:
    root = a_root(store, now)
    spawn_batch(store, now, a_child(root, "1"))
    with store.begin() as connection:
        connection.execute(tasks.update().values(status="SUCCESS"))
    other = a_root(store, now, "https://a.test/other")

    assert spawn_batch(store, now, a_child(other, "1")).made == 1


def test_children_are_one_generation_deeper_and_siblings_are_not(store: Store, now: datetime) -> None:
    root = a_root(store, now)
    spawn_batch(store, now, a_child(root, "1"))
    with store.read() as connection:
        [row] = connection.execute(select(tasks).where(tasks.c.url == "https://a.test/1"))
        child = tasks_by_id(connection, [row.id])[row.id]

    counts = spawn_batch(store, now, a_child(child, "2"), a_child(child, "3", is_sibling=True))

    with store.read() as connection:
        rows_by_path = {row.url[-1]: row for row in connection.execute(select(tasks))}
    assert counts.made == 2
    assert (rows_by_path["2"].spawn_depth, rows_by_path["2"].ancestry) == (2, [root.id, child.id])
    assert (rows_by_path["3"].spawn_depth, rows_by_path["3"].ancestry) == (1, [root.id])
    assert {row.tracking_id for row in rows_by_path.values()} == {root.tracking_id}


def test_children_that_are_too_deep_are_counted_and_not_spawned(store: Store, now: datetime) -> None:
    root = replace(a_root(store, now), spawn_depth=10)

    counts = spawn_batch(store, now, a_child(root, "1"), a_child(root, "2", is_sibling=True))

    assert counts == SpawnCounts(made=1, too_deep=1)


@pytest.mark.slow
def test_1500_children_are_one_statement_and_not_limited_by_the_queue(store: Store, now: datetime) -> None:
    root = a_root(store, now)
    with recorded_statements(store.engine) as statements:
        counts = spawn_batch(store, now, *(a_child(root, str(n)) for n in range(1_500)))

    assert counts.made == 1_500 > QUEUE_LIMIT
    assert len([statement for statement, _ in statements if "tasks" in statement]) == 1


def next_stage(parent: Task) -> SpawnRequest:
    child = a_new_task(kind="extract_page", dedupe_key="1", url=parent.url)
    return SpawnRequest(parent=parent, child=child)


def test_the_next_stage_of_a_page_is_created_once_and_again_after_it_ended(store: Store, now: datetime) -> None:
    root = a_root(store, now)

    created: list[int] = []
    for _ in range(2):
        with store.begin() as connection:
            created += [continue_all(connection, [next_stage(root)], now=now) for _ in range(2)]
            connection.execute(tasks.update().values(status="SUCCESS"))

    assert created == [1, 0, 1, 0]
    with store.read() as connection:
        stage = tasks_by_id(connection, [root.id + 1])[root.id + 1]
    assert (stage.parent_id, stage.tracking_id) == (root.id, root.tracking_id)
    assert stage.spawn_depth == root.spawn_depth


def test_continuing_no_stages_does_nothing(store: Store, now: datetime) -> None:
    with store.begin() as connection:
        assert continue_all(connection, [], now=now) == 0
