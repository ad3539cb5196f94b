from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from sqlalchemy import select, update

from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import audit_log, tasks
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.dead_letters import (
    Chosen,
    DeadLetterEntry,
    add_dead_letters,
    dead_letter_groups,
    discard,
    find_dead_letter,
    list_dead_letters,
    replay,
)
from ingestion_pipeline.tasks.errors import Permanent, Transient, WorkError
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask, Task, TaskStatus, failed
from ingestion_pipeline_tests.builders import a_new_task

GONE = Permanent("'https://a.test/feed' answered 410 Gone", code="http_410")


def buried(
    store: Store,
    now: datetime,
    new: NewTask | None = None,
    error: WorkError = GONE,
    stack: str = "Traceback: ...",
) -> Task:
    """A task that failed and has its dead letter."""
    with store.begin() as connection:
        insert_tasks(connection, [new or a_new_task(payload={"page": 2})], now=now)
        [task] = claims.claim(
            connection,
            ClaimFilter(kind="poll"),
            owner="one",
            now=now,
            lease=timedelta(minutes=2),
            limit=1,
        )
        claims.set_stage(connection, [(task.id, task.fence)], "fetch")
        task = claims.tasks_by_id(connection, [task.id])[task.id]
        add_dead_letters(
            connection, [DeadLetterEntry(task=task, error=error, stack=stack)], now=now
        )
        claims.apply(connection, [failed(task, error)], now=now)
    return task


def only_letter(store: Store) -> int:
    with store.read() as connection:
        [found] = list_dead_letters(connection, decided=True)
    return found["id"]


def try_replay(store: Store, letter_id: int, now: datetime) -> str:
    with store.begin() as connection:
        return replay(connection, letter_id, actor="cli", now=now)


def set_status(store: Store, status: TaskStatus, now: datetime) -> None:
    with store.begin() as connection:
        connection.execute(update(tasks).values(status=status.value, lease_until=now))


def test_a_dead_letter_tells_all_that_was_known(store: Store, now: datetime) -> None:
    task = buried(store, now)

    with store.read() as connection:
        found = find_dead_letter(connection, only_letter(store))

    assert found is not None
    assert found["payload"] == {"url": "https://a.test/feed", "page": 2}
    assert found["stack"] == "Traceback: ..."
    assert (found["error_class"], found["error_code"]) == ("permanent", "http_410")
    assert found["error"] == "'https://a.test/feed' answered 410 Gone"
    assert (found["task_id"], found["tracking_id"]) == (task.id, task.tracking_id)
    assert (found["attempts"], found["stage"], found["failed_at"]) == (1, "fetch", now)
    assert found["replayed_at"] is None


def test_an_error_that_no_database_takes_as_it_is_can_be_buried(
    store: Store, now: datetime
) -> None:
    error = Permanent("the body began with \0\ud800", code="x" * 99)
    buried(store, now, error=error, stack=f"Permanent: {error}")

    with store.read() as connection:
        [found] = list_dead_letters(connection)
    assert found["error"] == "the body began with \N{REPLACEMENT CHARACTER}?"
    assert found["stack"] == f"Permanent: {found['error']}"
    assert found["error_code"] == "x" * 40


def test_burying_nobody_is_fine(store: Store, now: datetime) -> None:
    with store.begin() as connection:
        add_dead_letters(connection, [], now=now)
        assert list_dead_letters(connection) == []


def test_letters_are_listed_newest_first_and_by_class_and_source(
    store: Store, now: datetime
) -> None:
    later = now + timedelta(hours=1)
    buried(store, now, a_new_task(source_id="series:a", dedupe_key="a"))
    buried(store, later, a_new_task(source_id="series:b", dedupe_key="b"), Transient("503"))

    def listed(**filters: str) -> list[str]:
        with store.read() as connection:
            return [row["source_id"] for row in list_dead_letters(connection, Chosen(**filters))]

    assert listed() == ["series:b", "series:a"]
    assert listed(error_class="permanent") == ["series:a"]
    assert listed(source_id="series:b") == ["series:b"]
    assert listed(source_id="series:b", error_class="permanent") == []


def test_a_replayed_task_is_due_with_all_its_attempts(store: Store, now: datetime) -> None:
    task = buried(store, now)
    later = now + timedelta(hours=1)

    outcome = try_replay(store, only_letter(store), later)

    assert outcome == "queued"
    with store.read() as connection:
        again = claims.tasks_by_id(connection, [task.id])[task.id]
        assert list_dead_letters(connection) == []
        assert list_dead_letters(connection, decided=True)[0]["replayed_at"] == later
    assert (again.status, again.attempts, again.not_before) == (TaskStatus.PENDING, 0, later)
    assert again.fence == task.fence


def test_a_replay_is_audited(store: Store, now: datetime) -> None:
    task = buried(store, now)
    letter_id = only_letter(store)

    try_replay(store, letter_id, now)

    with store.read() as connection:
        row = connection.execute(select(audit_log)).one()
    assert (row.actor, row.action) == ("cli", "dead_letter.replay")
    assert row.subject == f"dead_letter:{letter_id}"
    assert row.detail == {"task": task.id, "source": "series:solo", "outcome": "queued"}


def test_a_poll_that_waits_for_its_next_time_becomes_due(store: Store, now: datetime) -> None:
    task = buried(store, now)
    set_status(store, TaskStatus.PENDING, now)

    assert try_replay(store, only_letter(store), now - timedelta(hours=1)) == "queued"
    with store.read() as connection:
        again = claims.tasks_by_id(connection, [task.id])[task.id]
    assert again.not_before == now - timedelta(hours=1)


def test_what_runs_already_is_left_alone(store: Store, now: datetime) -> None:
    task = buried(store, now)
    set_status(store, TaskStatus.PROCESSING, now)

    assert try_replay(store, only_letter(store), now) == "already running"
    with store.read() as connection:
        assert claims.tasks_by_id(connection, [task.id])[task.id].attempts == 1


def test_what_was_enqueued_anew_is_not_queued_twice(store: Store, now: datetime) -> None:
    buried(store, now)
    with store.begin() as connection:
        insert_tasks(connection, [a_new_task()], now=now)

    assert try_replay(store, only_letter(store), now) == "already queued"


@pytest.mark.parametrize("status", [TaskStatus.SKIPPED, TaskStatus.CANCELLED])
def test_a_disabled_sources_letter_stays_and_says_why(
    store: Store, now: datetime, status: TaskStatus
) -> None:
    buried(store, now)
    set_status(store, status, now)

    assert try_replay(store, only_letter(store), now) == "its source is disabled"
    with store.read() as connection:
        assert connection.execute(select(tasks.c.status)).scalar_one() == status
        assert len(list_dead_letters(connection)) == 1


def test_an_unknown_letter_is_named(store: Store, now: datetime) -> None:
    with pytest.raises(LookupError, match="no dead letter 7"):
        try_replay(store, 7, now)


def test_letters_are_grouped_by_class_source_and_error_with_the_most_numerous_first(
    store: Store, now: datetime
) -> None:
    slow = Transient("timed out", code="timeout")
    for name in ("a", "b"):
        buried(store, now, a_new_task(dedupe_key=name, source_id="series:a"), slow)
    buried(store, now, a_new_task(dedupe_key="c", source_id="series:b"))

    with store.read() as connection:
        groups = dead_letter_groups(connection)
        of_b = dead_letter_groups(connection, Chosen(source_id="series:b"))

    shown = [(one["error_class"], one["source_id"], one["letters"]) for one in groups]
    assert shown == [("transient", "series:a", 2), ("permanent", "series:b", 1)]
    assert [one["error_code"] for one in of_b] == ["http_410"]


def test_a_discarded_letter_is_open_no_more_and_keeps_its_reason(
    store: Store, now: datetime
) -> None:
    buried(store, now)
    letter_id = only_letter(store)
    with store.begin() as connection:
        closed = discard(connection, [letter_id], reason="gone for good", actor="ann", now=now)
        again = discard(connection, [letter_id], reason="twice", actor="bob", now=now)

    assert (closed, again) == ([letter_id], [])
    with store.read() as connection:
        assert list_dead_letters(connection) == []
        found = find_dead_letter(connection, letter_id)
        said = connection.execute(select(audit_log.c.actor, audit_log.c.detail)).all()
    assert found is not None
    assert (found["discard_reason"], found["discarded_at"]) == ("gone for good", now)
    assert said == [("ann", {"reason": "gone for good"})]


def test_what_fails_again_after_a_letter_was_discarded_writes_another(
    store: Store, now: datetime
) -> None:
    task = buried(store, now)
    first = only_letter(store)
    with store.begin() as connection:
        discard(connection, [first], reason="known", actor="ann", now=now)
        add_dead_letters(connection, [DeadLetterEntry(task=task, error=GONE)], now=now)

    with store.read() as connection:
        [second] = list_dead_letters(connection)
    assert (second["id"] != first, second["occurrences"]) == (True, 1)


def test_nothing_is_discarded_without_a_reason_or_with_an_unknown_id(
    store: Store, now: datetime
) -> None:
    buried(store, now)
    letter_id = only_letter(store)

    with store.begin() as connection:
        with pytest.raises(ValueError, match="a reason"):
            discard(connection, [letter_id], reason="  ", actor="ann", now=now)
        with pytest.raises(LookupError, match="no dead letter 99"):
            discard(connection, [letter_id, 99], reason="gone", actor="ann", now=now)

    with store.read() as connection:
        assert len(list_dead_letters(connection)) == 1


def test_a_discarded_letter_can_be_replayed_by_whoever_thinks_better_of_it(
    store: Store, now: datetime
) -> None:
    buried(store, now)
    letter_id = only_letter(store)
    with store.begin() as connection:
        discard(connection, [letter_id], reason="gone", actor="ann", now=now)

    assert try_replay(store, letter_id, now) == "queued"
    with store.read() as connection:
        found = find_dead_letter(connection, letter_id)
    assert found is not None
    assert (found["replayed_at"], found["discarded_at"]) == (now, None)
