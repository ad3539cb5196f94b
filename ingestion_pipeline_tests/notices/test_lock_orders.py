"""Expansion, merges and changes of recipients lock tasks, recipients, follows, outbox, notices in this order."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from sqlalchemy import Connection, select

from ingestion_pipeline.notices import queries, subscriptions
from ingestion_pipeline.notices.expansion import expand
from ingestion_pipeline.notices.message import write_notice
from ingestion_pipeline.notices.queries import DELIVER
from ingestion_pipeline.series.series_changes import merge
from ingestion_pipeline.sources.source import Recipient
from ingestion_pipeline.store import FixedClock
from ingestion_pipeline.store.tables import follows, notices, tasks
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask, rearmed
from ingestion_pipeline_tests.lock_orders import ON_POSTGRES, move_to_end, rows_locked_while_waiting
from ingestion_pipeline_tests.notices.notice_harness import HOOK, NoticeHarness
from ingestion_pipeline_tests.postgres import wait_until_blocked

pytestmark = ON_POSTGRES
DELIVERY_KEYS = select(tasks.c.dedupe_key).where(tasks.c.kind == DELIVER)
NOTICES = select(notices.c.id)


def add_delivery_tasks(harness: NoticeHarness, *names: str) -> None:
    """Add a delivery task of tomorrow for each recipient; the first has the lowest id."""
    later = harness.clock.at + timedelta(days=1)
    with harness.store.begin() as connection:
        for name in names:
            new = NewTask(kind=DELIVER, dedupe_key=name, not_before=later)
            insert_tasks(connection, [new], now=harness.clock.at)


def test_outbox_rows_of_several_kinds_lock_delivery_tasks_in_one_order(harness: NoticeHarness) -> None:
    harness.add_follower("bob")
    ann = Recipient(id="ann", address=HOOK.format("ann"), kinds=("extraction",))
    now = harness.clock.at
    with harness.store.begin() as connection:
        subscriptions.add(connection, ann, actor="test", now=now)
        payload = {"source_id": "catalog:a", "title": "complete", "text": "3 pages"}
        write_notice(connection, "extraction", "7", payload, now=now)
    harness.publish(1)
    add_delivery_tasks(harness, "ann", "bob")

    def expand_outbox(connection: Connection) -> None:
        expand(connection, now=now, grouping=timedelta(0))

    held = DELIVERY_KEYS.where(tasks.c.dedupe_key == "bob")
    assert rows_locked_while_waiting(harness.store, expand_outbox, held=held, among=DELIVERY_KEYS) == ["ann"]


def test_recipients_of_files_are_locked_in_one_order_before_the_first_is_changed(harness: NoticeHarness) -> None:
    def declare(connection: Connection, path: str = "new/{}") -> None:
        both = [Recipient(id=name, address=HOOK.format(path.format(name)), origin="a.yaml") for name in ("ann", "bob")]
        subscriptions.declare(connection, both, now=harness.clock.at)

    with harness.store.begin() as connection:
        declare(connection, "old/{}")
    add_delivery_tasks(harness, "bob", "ann")

    held = DELIVERY_KEYS.where(tasks.c.dedupe_key == "ann")
    assert rows_locked_while_waiting(harness.store, declare, held=held, among=DELIVERY_KEYS) == ["bob"]


def test_sealing_a_message_locks_its_notices_by_id(harness: NoticeHarness) -> None:
    harness.add_follower()
    harness.publish(1, 2)
    harness.expand()
    first, second = (row.id for row in harness.notices())
    move_to_end(harness.store, notices, first)

    def seal(connection: Connection) -> None:
        queries.seal(connection, [first, second], "d-1")

    held = NOTICES.where(notices.c.id == second)
    assert rows_locked_while_waiting(harness.store, seal, held=held, among=NOTICES) == [first]


def test_a_merge_locks_follows_then_notices_each_in_one_order(harness: NoticeHarness, clock: FixedClock) -> None:
    harness.add_follower("ann", "solo", "other")
    for series_id in ("other", "solo"):  # the notice that remains has the lower id
        harness.publish(1, series_id=series_id)
        harness.expand()
    remaining_id, dropped_id = (row.id for row in harness.notices())

    def try_merge(connection: Connection) -> None:
        merge(connection, "solo", "other", actor="test", now=clock.at)
        connection.rollback()

    follow = select(follows.c.series_id).where(follows.c.series_id == "solo")
    assert rows_locked_while_waiting(harness.store, try_merge, held=follow, among=NOTICES) == []
    held = NOTICES.where(notices.c.id == dropped_id)
    assert rows_locked_while_waiting(harness.store, try_merge, held=held, among=NOTICES) == [remaining_id]


def test_removing_a_recipient_locks_in_the_order_of_unfollowing(harness: NoticeHarness, clock: FixedClock) -> None:
    harness.add_follower()
    harness.publish(1)
    harness.expand()

    def remove(connection: Connection) -> None:
        subscriptions.remove(connection, "ann", actor="test", now=clock.at)

    follow = select(follows.c.series_id)
    assert rows_locked_while_waiting(harness.store, remove, held=follow, among=NOTICES) == []


def test_a_notice_added_while_its_delivery_is_rescheduled_advances_it(harness: NoticeHarness) -> None:
    harness.add_follower()
    harness.publish(1)
    harness.deliver()
    harness.clock.advance(seconds=15)
    worker = Worker(harness.store, lease_seconds=120)
    [task] = worker.claim(ClaimFilter(kind=DELIVER), limit=1)
    harness.publish(2)

    with ThreadPoolExecutor(1) as pool:
        with harness.store.begin() as connection:
            assert claims.held(connection, [(task.id, task.fence)])
            expansion = pool.submit(harness.expand)
            wait_until_blocked(harness.store)
            later = rearmed(task, not_before=harness.clock.at + timedelta(days=1), priority=1)
            claims.apply(connection, [later], now=harness.clock.at)
        assert expansion.result(60).notices == 1

    assert harness.task().not_before == harness.clock.at + timedelta(seconds=15)


def test_a_merge_during_a_delivery_keeps_the_sealed_notice(harness: NoticeHarness) -> None:
    harness.add_follower("ann", "solo", "other")
    harness.publish(1)
    harness.publish(1, series_id="other")
    harness.expand()
    [sealed] = harness.notices(series_id="solo")

    def merge_now() -> None:
        harness.apply(merge, "solo", "other")

    with ThreadPoolExecutor(1) as pool:
        with harness.store.begin() as connection:
            queries.seal(connection, [sealed.id], "d-1")
            merging = pool.submit(merge_now)
            wait_until_blocked(harness.store)
        merging.result(60)

    assert [(row.id, row.delivery_id) for row in harness.notices()] == [(sealed.id, "d-1")]
