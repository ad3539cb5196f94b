"""Claims, leases, fences and moves of tasks, on both databases."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import Connection, select, update
from sqlalchemy.exc import IntegrityError

from ingestion_pipeline.store import Store
from ingestion_pipeline.store.statements import audit
from ingestion_pipeline.store.tables import audit_log, tasks
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter, LostClaim
from ingestion_pipeline.tasks.errors import Resource, Transient
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import (
    NewTask,
    Suspicion,
    Task,
    TaskStatus,
    failed,
    finished,
    rearmed,
    released,
    retried,
)
from ingestion_pipeline_tests.builders import NOON, a_new_task
from ingestion_pipeline_tests.polling_runs import rows

pytestmark = pytest.mark.both_databases

LEASE = timedelta(seconds=120)
POLLS = ClaimFilter(kind="poll")


def add_tasks(store: Store, *new: NewTask, now: datetime) -> list[int]:
    with store.begin() as connection:
        return insert_tasks(connection, new, now=now)


def claim(
    store: Store, now: datetime, *, owner: str = "first", limit: int = 10, claim_filter: ClaimFilter = POLLS
) -> list[Task]:
    with store.begin() as connection:
        return claims.claim(connection, claim_filter, owner=owner, now=now, lease=LEASE, limit=limit)


def stored_task(store: Store, task_id: int) -> Task:
    with store.read() as connection:
        return claims.tasks_by_id(connection, [task_id])[task_id]


@pytest.mark.parametrize("kind", ["company", "source_discovery", "job", "poll"])
def test_tasks_are_claimed_in_the_order_in_which_they_were_created(store: Store, now: datetime, kind: str) -> None:
    claim_filter = ClaimFilter(kind=kind)
    for minutes in (3, 1, 4, 0, 2):  # ids are not in the order of creation
        new = a_new_task(kind=kind, dedupe_key=f"created {minutes}", not_before=now)
        add_tasks(store, new, now=now + timedelta(minutes=minutes))
    later = now + timedelta(hours=1)

    batches = [[task.dedupe_key for task in claim(store, later, limit=2, claim_filter=claim_filter)] for _ in range(3)]

    assert batches == [["created 0", "created 1"], ["created 2", "created 3"], ["created 4"]]


def test_exactly_one_of_two_schedulers_claims_a_task(store: Store, now: datetime) -> None:
    add_tasks(store, a_new_task(), now=now)

    first = claim(store, now, owner="first")
    second = claim(store, now, owner="second")

    assert [task.lease_owner for task in first] == ["first"]
    assert second == []


def test_a_claim_counts_the_attempt_and_raises_the_fence(store: Store, now: datetime) -> None:
    add_tasks(store, a_new_task(), now=now)

    [task] = claim(store, now)

    assert task == stored_task(store, task.id)
    assert (task.status, task.attempts, task.fence) == (TaskStatus.PROCESSING, 1, 1)
    assert task.lease_until == now + LEASE


@pytest.mark.parametrize("limit", [10, 1])  # one at a time, the database alone decides the order
def test_tasks_are_claimed_by_priority_then_due_time_then_age(store: Store, now: datetime, limit: int) -> None:
    def new(key: str, priority: int, minutes_due: int) -> NewTask:
        not_before = now - timedelta(minutes=minutes_due)
        return a_new_task(dedupe_key=key, priority=priority, not_before=not_before)

    add_tasks(store, new("younger", 2, 5), now=now)
    add_tasks(store, new("older", 2, 5), new("cold", 3, 60), now=now - timedelta(hours=1))
    add_tasks(store, new("hot", 1, 0), new("longer due", 2, 9), now=now)

    claimed = [task.dedupe_key for _ in range(5) for task in claim(store, now, limit=limit)]

    assert claimed == ["hot", "longer due", "older", "younger", "cold"]


def test_a_claim_takes_the_first_and_no_more_than_its_limit(store: Store, now: datetime) -> None:
    new_tasks = [a_new_task(dedupe_key=f"{number}", priority=number) for number in (4, 1, 3, 2)]
    add_tasks(store, *new_tasks, now=now)

    assert [task.dedupe_key for task in claim(store, now, limit=3)] == ["1", "2", "3"]
    assert [task.dedupe_key for task in claim(store, now, limit=3)] == ["4"]


def test_a_task_is_not_claimed_before_its_time(store: Store, now: datetime) -> None:
    add_tasks(store, a_new_task(not_before=now + timedelta(seconds=1)), now=now)

    assert claim(store, now) == []
    assert len(claim(store, now + timedelta(seconds=1))) == 1


def test_an_expired_lease_is_claimed_again_under_the_next_fence(store: Store, now: datetime) -> None:
    add_tasks(store, a_new_task(), now=now)
    claim(store, now, owner="dead")

    assert claim(store, now + LEASE, owner="second") == []
    [task] = claim(store, now + LEASE + timedelta(microseconds=1), owner="second")

    assert (task.lease_owner, task.fence, task.attempts, task.suspicion) == ("second", 2, 1, Suspicion.CROWD)


def test_only_a_task_that_was_executed_alone_loses_an_attempt_with_its_worker(store: Store, now: datetime) -> None:
    add_tasks(store, a_new_task(dedupe_key="alone"), a_new_task(dedupe_key="beside"), now=now)
    for task, suspicion in zip(claim(store, now, owner="dead"), (Suspicion.ALONE, Suspicion.GROUP), strict=True):
        with store.begin() as connection:
            claims.set_suspicion(connection, [(task.id, task.fence)], suspicion)

    for number in (2, 4):  # the second worker dies before it has recorded the loss
        claimed = claim(store, now + number * LEASE, owner=f"worker {number}")

        found = {task.dedupe_key: (task.attempts, task.suspicion) for task in claimed}
        assert found == {"alone": (2, Suspicion.COUNTED), "beside": (1, Suspicion.GROUP)}


def test_a_stage_that_is_reached_ends_the_execution_alone(store: Store, now: datetime) -> None:
    add_tasks(store, a_new_task(), now=now)
    [task] = claim(store, now, owner="dead")
    with store.begin() as connection:
        claims.set_suspicion(connection, [(task.id, task.fence)], Suspicion.ALONE)
        claims.set_stage(connection, [(task.id, task.fence)], "fetched")

    [again] = claim(store, now + 2 * LEASE, owner="second")

    assert (again.attempts, again.suspicion) == (1, Suspicion.GROUP)


def test_the_transaction_of_a_worker_that_lost_its_claim_is_rolled_back(store: Store, now: datetime) -> None:
    add_tasks(store, a_new_task(dedupe_key="a"), a_new_task(dedupe_key="b"), now=now)
    lost, renewed = claim(store, now, owner="stalled")
    with store.begin() as connection:
        expire_lease(connection, lost, now)
    [taken] = claim(store, now, owner="new")

    def finish_late() -> None:
        with store.begin() as connection:
            audit(connection, actor="stalled", action="effect", subject="x", now=now)
            claims.apply(connection, [finished(renewed), finished(lost)], now=now)

    with pytest.raises(LostClaim, match="1 of 2 claims were lost"):
        finish_late()

    assert stored_task(store, taken.id) == taken
    assert stored_task(store, renewed.id).status is TaskStatus.PROCESSING
    assert len(rows(store, audit_log)) == 0


def expire_lease(connection: Connection, task: Task, now: datetime) -> None:
    past = now - timedelta(seconds=1)
    connection.execute(update(tasks).where(tasks.c.id == task.id).values(lease_until=past))


def test_a_task_is_finished_only_once(store: Store, now: datetime) -> None:
    add_tasks(store, a_new_task(), now=now)
    [task] = claim(store, now)
    with store.begin() as connection:
        claims.apply(connection, [finished(task)], now=now)

    with pytest.raises(LostClaim), store.begin() as connection:
        claims.apply(connection, [finished(task, status=TaskStatus.SKIPPED)], now=now)

    assert stored_task(store, task.id).status is TaskStatus.SUCCESS


def test_applying_no_moves_changes_nothing(store: Store, now: datetime) -> None:
    add_tasks(store, a_new_task(), now=now)
    [task] = claim(store, now)

    with store.begin() as connection:
        claims.apply(connection, [], now=now)

    assert stored_task(store, task.id) == task


def test_a_heartbeat_renews_only_claims_that_are_still_held(store: Store, now: datetime) -> None:
    add_tasks(store, *(a_new_task(dedupe_key=key) for key in "abc"), now=now)
    held, lost = claim(store, now, owner="alive", limit=2)
    [other] = claim(store, now, owner="silent", limit=1)
    half = now + LEASE / 2
    with store.begin() as connection:
        expire_lease(connection, lost, now)
    claim(store, half, owner="quick")

    with store.begin() as connection:
        pairs = [(task.id, task.fence) for task in (lost, held)]
        renewed = claims.heartbeat(connection, pairs, now=half, lease=LEASE)
    [taken] = claim(store, now + LEASE + timedelta(seconds=1), owner="third")

    assert renewed == {held.id}
    assert stored_task(store, held.id).lease_until == half + LEASE
    assert taken.id == other.id


def test_the_claims_of_an_owner_are_found_with_their_fences(store: Store, now: datetime) -> None:
    add_tasks(store, *(a_new_task(dedupe_key=key) for key in "abc"), now=now)
    finished_task, held = claim(store, now, owner="alive", limit=2)
    claim(store, now, owner="other")
    with store.begin() as connection:
        claims.apply(connection, [finished(finished_task)], now=now)

    with store.read() as connection:
        assert claims.claimed_by(connection, "alive") == {held.id: held.fence}
        assert claims.claimed_by(connection, "nobody") == {}


BUSY = Resource("host busy", until=NOON)
UNAVAILABLE = Transient("503", code="http_503")


@pytest.mark.parametrize(
    ("move_name", "status", "attempts", "error_code"),
    [
        pytest.param("released", TaskStatus.PENDING, 0, "resource", id="a release costs no attempt"),
        pytest.param("retried", TaskStatus.PENDING, 1, "http_503", id="a retry counts"),
        pytest.param("rearmed", TaskStatus.PENDING, 0, None, id="rearming resets the attempts"),
        pytest.param("failed", TaskStatus.FAILED, 1, "http_503", id="failure ends"),
        pytest.param("finished", TaskStatus.SUCCESS, 1, None, id="success ends"),
    ],
)
def test_every_move_frees_the_lease_and_sets_its_fields(
    store: Store, now: datetime, move_name: str, status: TaskStatus, attempts: int, error_code: str | None
) -> None:
    add_tasks(store, a_new_task(), now=now)
    [task] = claim(store, now)
    later = now + timedelta(minutes=7)
    move = {
        "released": released(task, BUSY, not_before=later),
        "retried": retried(task, UNAVAILABLE, not_before=later),
        "rearmed": rearmed(task, not_before=later, priority=1),
        "failed": failed(task, UNAVAILABLE),
        "finished": finished(task),
    }[move_name]

    with store.begin() as connection:
        claims.apply(connection, [move], now=now)

    current = stored_task(store, task.id)
    assert (current.status, current.attempts, current.fence) == (status, attempts, 1)
    assert (current.lease_owner, current.lease_until) == (None, None)
    assert current.not_before == (later if status.is_active else now)
    assert current.priority == (1 if move_name == "rearmed" else 5)
    assert [row.error_code for row in rows(store, tasks)] == [error_code]


def test_the_state_of_a_task_without_one_stays_null(store: Store, now: datetime) -> None:
    add_tasks(store, a_new_task(), now=now)
    [task] = claim(store, now)
    with store.begin() as connection:
        claims.apply(connection, [rearmed(task, not_before=now, priority=1)], now=now)

    with store.read() as connection:
        null = connection.execute(select(tasks.c.id).where(tasks.c.state.is_(None)))
        assert null.scalars().all() == [task.id]


def test_only_claims_with_the_current_fence_are_held(store: Store, now: datetime) -> None:
    add_tasks(store, *(a_new_task(dedupe_key=key) for key in "abcd"), now=now)
    held, finished_task, taken, _ = claim(store, now)
    with store.begin() as connection:
        claims.apply(connection, [finished(finished_task)], now=now)
        expire_lease(connection, taken, now)
    claim(store, now, owner="second")

    with store.begin() as connection:
        pairs = [(task.id, task.fence) for task in (held, finished_task, taken)]
        assert claims.held(connection, pairs) == {held.id}
        assert claims.held(connection, []) == set()


def test_a_claim_by_source_id_ignores_the_due_time(store: Store, now: datetime) -> None:
    tomorrow = now + timedelta(days=1)
    new = a_new_task(not_before=tomorrow, source_id="series:solo")
    other = a_new_task(dedupe_key="other", source_id="series:other", not_before=tomorrow)
    add_tasks(store, new, other, now=now)
    by_source = ClaimFilter(kind="poll", source_ids=["series:solo"])

    [task] = claim(store, now, claim_filter=by_source)

    assert task.source_id == "series:solo"
    assert task.not_before == now
    assert stored_task(store, task.id).not_before == now


def test_a_claim_by_source_id_respects_a_live_lease(store: Store, now: datetime) -> None:
    add_tasks(store, a_new_task(), now=now)
    by_source = ClaimFilter(kind="poll", source_ids=["series:solo"])
    claim(store, now, owner="alive")

    assert claim(store, now + LEASE, owner="manual", claim_filter=by_source) == []
    assert len(claim(store, now + LEASE * 2, owner="manual", claim_filter=by_source)) == 1


def test_the_claims_of_a_lost_worker_are_free_at_once(store: Store, now: datetime) -> None:
    add_tasks(store, a_new_task(dedupe_key="a"), a_new_task(dedupe_key="b"), now=now)
    [dead] = claim(store, now, owner="dead", limit=1)
    claim(store, now, owner="alive", limit=1)

    with store.begin() as connection:
        freed = claims.expire(connection, owner="dead", now=now + timedelta(seconds=1))
    [task] = claim(store, now + timedelta(seconds=2), owner="second")

    assert freed == 1
    assert (task.id, task.fence) == (dead.id, 2)


def test_a_shard_sees_only_its_own_tasks(store: Store, now: datetime) -> None:
    add_tasks(store, *(a_new_task(dedupe_key=f"{n}", shard=n) for n in range(9)), now=now)

    claimed = [
        {task.shard for task in claim(store, now, claim_filter=ClaimFilter(kind="poll", shard=s, shards=3))}
        for s in range(3)
    ]

    assert claimed == [{0, 3, 6}, {1, 4, 7}, {2, 5, 8}]


def test_kind_and_priority_are_respected(store: Store, now: datetime) -> None:
    add_tasks(
        store,
        a_new_task(dedupe_key="hot", priority=1),
        a_new_task(dedupe_key="cold", priority=3),
        a_new_task(dedupe_key="page", kind="page", priority=1),
        now=now,
    )

    claimed = claim(store, now, claim_filter=ClaimFilter(kind="poll", priority=1))

    assert [task.dedupe_key for task in claimed] == ["hot"]


def test_the_stage_of_a_held_claim_is_stored_and_of_a_lost_one_is_not(store: Store, now: datetime) -> None:
    add_tasks(store, a_new_task(dedupe_key="a"), a_new_task(dedupe_key="b"), now=now)
    first, second = claim(store, now)

    with store.begin() as connection:
        pairs = [(first.id, first.fence), (second.id, second.fence - 1)]
        claims.set_stage(connection, pairs, "fetch")
        claims.set_stage(connection, [], "nothing")

    assert stored_task(store, first.id).stage == "fetch"
    assert stored_task(store, second.id).stage is None


def test_the_database_refuses_a_running_task_without_a_lease(store: Store, now: datetime) -> None:
    add_tasks(store, a_new_task(), now=now)

    with pytest.raises(IntegrityError), store.begin() as connection:
        connection.execute(update(tasks).values(status="PROCESSING", lease_until=None))


def test_of_several_sources_only_due_tasks_are_claimed(store: Store, now: datetime) -> None:
    later = now + timedelta(minutes=1)
    due, *_ = add_tasks(
        store,
        a_new_task(dedupe_key="a", source_id="series:a", not_before=now),
        a_new_task(dedupe_key="b", source_id="series:b", not_before=later),
        a_new_task(dedupe_key="c", source_id="series:c", not_before=now),
        now=now,
    )

    claimed = claim(store, now, claim_filter=ClaimFilter(kind="poll", due_of=["series:a", "series:b"]))

    assert [task.id for task in claimed] == [due]
