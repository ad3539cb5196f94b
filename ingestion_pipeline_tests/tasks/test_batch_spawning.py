"""Batch spawning: the checks of `spawn` for many children in one statement."""

from dataclasses import replace
from datetime import datetime

import pytest
from sqlalchemy import event, func, select

from ingestion_pipeline.settings import Work
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import tasks
from ingestion_pipeline.tasks.claims import tasks_by_id
from ingestion_pipeline.tasks.queue import QUEUE_LIMIT, SpawnCounts, SpawnRequest, continue_all, insert_tasks, spawn_all
from ingestion_pipeline.tasks.task import Task
from ingestion_pipeline_tests.builders import a_new_task

pytestmark = pytest.mark.both_databases

POLICY = Work()


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


def task_count(store: Store) -> int:
    with store.read() as connection:
        return connection.execute(select(func.count()).select_from(tasks)).scalar_one()


def test_each_page_is_spawned_once_however_often_it_is_requested(store: Store, now: datetime) -> None:
    root = a_root(store, now)

    first = spawn_batch(store, now, a_child(root, "1"), a_child(root, "2"), a_child(root, "1"))
    second = spawn_batch(store, now, a_child(root, "2"), a_child(root, "3"), a_child(root, ""))

    assert first == SpawnCounts(made=2, existing=1)
    assert second == SpawnCounts(made=1, existing=2)
    assert task_count(store) == 4


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
    statements: list[str] = []
    event.listen(store.engine, "before_cursor_execute", lambda *call: statements.append(call[2]))

    counts = spawn_batch(store, now, *(a_child(root, str(n)) for n in range(1_500)))

    assert counts.made == 1_500 > QUEUE_LIMIT
    assert len([statement for statement in statements if "tasks" in statement]) == 1


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
