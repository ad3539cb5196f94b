from datetime import datetime, timedelta

import pytest
from sqlalchemy import select, update

from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import audit_log, tasks
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.ended_tasks import (
    DeadLetterEntry,
    DeadLetterFilter,
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

pytestmark = pytest.mark.both_databases

GONE = Permanent("'https://a.test/feed' answered 410 Gone", code="http_410")


def dead_lettered_task(
    store: Store, now: datetime, new: NewTask | None = None, error: WorkError = GONE, stack: str = "Traceback: ..."
) -> Task:
    """Return a task that failed and has its dead letter."""
    with store.begin() as connection:
        insert_tasks(connection, [new or a_new_task(payload={"page": 2})], now=now)
        [task] = claims.claim(
            connection, ClaimFilter(kind="poll"), owner="worker", now=now, lease=timedelta(minutes=2), limit=1
        )
        claims.set_stage(connection, [(task.id, task.fence)], "fetch")
        task = claims.tasks_by_id(connection, [task.id])[task.id]
        add_dead_letters(connection, [DeadLetterEntry(task=task, error=error, stack=stack)], now=now)
        claims.apply(connection, [failed(task, error)], now=now)
    return task


def only_dead_letter(store: Store) -> int:
    with store.read() as connection:
        [dead_letter] = list_dead_letters(connection, decided=True)
    return dead_letter["id"]


def try_replay(store: Store, dead_letter_id: int, now: datetime) -> str:
    with store.begin() as connection:
        return replay(connection, dead_letter_id, actor="cli", now=now)


def set_status(store: Store, status: TaskStatus, now: datetime) -> None:
    with store.begin() as connection:
        connection.execute(update(tasks).values(status=status.value, lease_until=now))


def test_a_dead_letter_has_every_fact_of_the_failure(store: Store, now: datetime) -> None:
    task = dead_lettered_task(store, now)

    with store.read() as connection:
        dead_letter = find_dead_letter(connection, only_dead_letter(store))

    assert dead_letter is not None
    assert dead_letter["payload"] == {"url": "https://a.test/feed", "page": 2}
    assert dead_letter["stack"] == "Traceback: ..."
    assert (dead_letter["error_class"], dead_letter["error_code"]) == ("permanent", "http_410")
    assert dead_letter["error"] == "'https://a.test/feed' answered 410 Gone"
    assert (dead_letter["task_id"], dead_letter["tracking_id"]) == (task.id, task.tracking_id)
    assert (dead_letter["attempts"], dead_letter["stage"], dead_letter["failed_at"]) == (1, "fetch", now)
    assert dead_letter["replayed_at"] is None


def test_a_dead_letter_cleans_an_error_that_no_database_accepts(store: Store, now: datetime) -> None:
    error = Permanent("the body began with \0\ud800", code="x" * 99)
    dead_lettered_task(store, now, error=error, stack=f"Permanent: {error}")

    with store.read() as connection:
        [dead_letter] = list_dead_letters(connection)
    assert dead_letter["error"] == "the body began with \N{REPLACEMENT CHARACTER}?"
    assert dead_letter["stack"] == f"Permanent: {dead_letter['error']}"
    assert dead_letter["error_code"] == "x" * 40


def test_adding_no_dead_letters_does_nothing(store: Store, now: datetime) -> None:
    with store.begin() as connection:
        add_dead_letters(connection, [], now=now)
        assert list_dead_letters(connection) == []


def test_dead_letters_are_listed_newest_first_and_filtered_by_class_and_source(store: Store, now: datetime) -> None:
    later = now + timedelta(hours=1)
    dead_lettered_task(store, now, a_new_task(source_id="series:a", dedupe_key="a"))
    dead_lettered_task(store, later, a_new_task(source_id="series:b", dedupe_key="b"), Transient("503"))

    def listed_sources(**filters: str) -> list[str]:
        with store.read() as connection:
            return [row["source_id"] for row in list_dead_letters(connection, DeadLetterFilter(**filters))]

    assert listed_sources() == ["series:b", "series:a"]
    assert listed_sources(error_class="permanent") == ["series:a"]
    assert listed_sources(source_id="series:b") == ["series:b"]
    assert listed_sources(source_id="series:b", error_class="permanent") == []


def test_a_replayed_task_is_due_with_all_its_attempts(store: Store, now: datetime) -> None:
    task = dead_lettered_task(store, now)
    later = now + timedelta(hours=1)

    outcome = try_replay(store, only_dead_letter(store), later)

    assert outcome == "queued"
    with store.read() as connection:
        replayed = claims.tasks_by_id(connection, [task.id])[task.id]
        assert list_dead_letters(connection) == []
        assert list_dead_letters(connection, decided=True)[0]["replayed_at"] == later
    assert (replayed.status, replayed.attempts, replayed.not_before) == (TaskStatus.PENDING, 0, later)
    assert replayed.fence == task.fence


def test_a_replay_is_audited(store: Store, now: datetime) -> None:
    task = dead_lettered_task(store, now)
    dead_letter_id = only_dead_letter(store)

    try_replay(store, dead_letter_id, now)

    with store.read() as connection:
        row = connection.execute(select(audit_log)).one()
    assert (row.actor, row.action) == ("cli", "dead_letter.replay")
    assert row.subject == f"dead_letter:{dead_letter_id}"
    assert row.detail == {"task": task.id, "source": "series:solo", "outcome": "queued"}


def test_replaying_makes_a_waiting_poll_due(store: Store, now: datetime) -> None:
    task = dead_lettered_task(store, now)
    set_status(store, TaskStatus.PENDING, now)

    assert try_replay(store, only_dead_letter(store), now - timedelta(hours=1)) == "queued"
    with store.read() as connection:
        replayed = claims.tasks_by_id(connection, [task.id])[task.id]
    assert replayed.not_before == now - timedelta(hours=1)


def test_replaying_leaves_a_running_task_alone(store: Store, now: datetime) -> None:
    task = dead_lettered_task(store, now)
    set_status(store, TaskStatus.PROCESSING, now)

    assert try_replay(store, only_dead_letter(store), now) == "already running"
    with store.read() as connection:
        assert claims.tasks_by_id(connection, [task.id])[task.id].attempts == 1


def test_replaying_does_not_queue_a_task_twice(store: Store, now: datetime) -> None:
    dead_lettered_task(store, now)
    with store.begin() as connection:
        insert_tasks(connection, [a_new_task()], now=now)

    assert try_replay(store, only_dead_letter(store), now) == "already queued"


@pytest.mark.parametrize("status", [TaskStatus.SKIPPED, TaskStatus.CANCELLED])
def test_a_dead_letter_of_a_disabled_source_stays_and_says_why(store: Store, now: datetime, status: TaskStatus) -> None:
    dead_lettered_task(store, now)
    set_status(store, status, now)

    assert try_replay(store, only_dead_letter(store), now) == "its source is disabled"
    with store.read() as connection:
        assert connection.execute(select(tasks.c.status)).scalar_one() == status
        assert len(list_dead_letters(connection)) == 1


def test_an_unknown_dead_letter_is_refused(store: Store, now: datetime) -> None:
    with pytest.raises(LookupError, match="no dead letter 7"):
        try_replay(store, 7, now)


def test_dead_letters_are_grouped_by_class_source_and_error_largest_first(store: Store, now: datetime) -> None:
    slow = Transient("timed out", code="timeout")
    for name in ("a", "b"):
        dead_lettered_task(store, now, a_new_task(dedupe_key=name, source_id="series:a"), slow)
    dead_lettered_task(store, now, a_new_task(dedupe_key="c", source_id="series:b"))

    with store.read() as connection:
        groups = dead_letter_groups(connection)
        of_b = dead_letter_groups(connection, DeadLetterFilter(source_id="series:b"))

    summaries = [(group["error_class"], group["source_id"], group["letters"]) for group in groups]
    assert summaries == [("transient", "series:a", 2), ("permanent", "series:b", 1)]
    assert [group["error_code"] for group in of_b] == ["http_410"]


def test_a_discarded_dead_letter_is_closed_and_keeps_its_reason(store: Store, now: datetime) -> None:
    dead_lettered_task(store, now)
    dead_letter_id = only_dead_letter(store)
    with store.begin() as connection:
        closed = discard(connection, [dead_letter_id], reason="gone for good", actor="ann", now=now)
        closed_again = discard(connection, [dead_letter_id], reason="twice", actor="bob", now=now)

    assert (closed, closed_again) == ([dead_letter_id], [])
    with store.read() as connection:
        assert list_dead_letters(connection) == []
        dead_letter = find_dead_letter(connection, dead_letter_id)
        audit_rows = connection.execute(select(audit_log.c.actor, audit_log.c.detail)).all()
    assert dead_letter is not None
    assert (dead_letter["discard_reason"], dead_letter["discarded_at"]) == ("gone for good", now)
    assert audit_rows == [("ann", {"reason": "gone for good"})]


def test_a_failure_after_a_discarded_dead_letter_adds_another(store: Store, now: datetime) -> None:
    task = dead_lettered_task(store, now)
    first = only_dead_letter(store)
    with store.begin() as connection:
        discard(connection, [first], reason="known", actor="ann", now=now)
        add_dead_letters(connection, [DeadLetterEntry(task=task, error=GONE)], now=now)

    with store.read() as connection:
        [second] = list_dead_letters(connection)
    assert (second["id"] != first, second["occurrences"]) == (True, 1)


def test_nothing_is_discarded_without_a_reason_or_with_an_unknown_id(store: Store, now: datetime) -> None:
    dead_lettered_task(store, now)
    dead_letter_id = only_dead_letter(store)

    with store.begin() as connection:
        with pytest.raises(ValueError, match="a reason"):
            discard(connection, [dead_letter_id], reason="  ", actor="ann", now=now)
        with pytest.raises(LookupError, match="no dead letter 99"):
            discard(connection, [dead_letter_id, 99], reason="gone", actor="ann", now=now)

    with store.read() as connection:
        assert len(list_dead_letters(connection)) == 1


def test_a_discarded_dead_letter_can_be_replayed(store: Store, now: datetime) -> None:
    dead_lettered_task(store, now)
    dead_letter_id = only_dead_letter(store)
    with store.begin() as connection:
        discard(connection, [dead_letter_id], reason="gone", actor="ann", now=now)

    assert try_replay(store, dead_letter_id, now) == "queued"
    with store.read() as connection:
        dead_letter = find_dead_letter(connection, dead_letter_id)
    assert dead_letter is not None
    assert (dead_letter["replayed_at"], dead_letter["discarded_at"]) == (now, None)
