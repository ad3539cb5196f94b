"""Tasks, recipients, follows, outbox, notices: whoever tells, merges or changes who is told."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Connection, select

from ingestion_pipeline.notices import registry, rows
from ingestion_pipeline.notices.expansion import expand
from ingestion_pipeline.notices.message import EXTRACTION, write_notice
from ingestion_pipeline.notices.tasks import DELIVER
from ingestion_pipeline.series.operator_changes import merge
from ingestion_pipeline.sources.recipients import Recipient
from ingestion_pipeline.store import FixedClock
from ingestion_pipeline.store.tables import follows, notices, tasks
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask
from ingestion_pipeline_tests.lock_orders import ON_POSTGRES, locked_meanwhile, moved_behind
from ingestion_pipeline_tests.notices.telling import HOOK, Telling

pytestmark = ON_POSTGRES
SERVED = select(tasks.c.dedupe_key).where(tasks.c.kind == DELIVER)
NOTICES = select(notices.c.id)


def given_tasks(telling: Telling, *names: str) -> None:
    """Each is looked at tomorrow, by a task of their own; the first has the lowest id."""
    later = telling.clock.at + timedelta(days=1)
    with telling.store.begin() as connection:
        for name in names:
            new = NewTask(kind=DELIVER, dedupe_key=name, not_before=later)
            insert_tasks(connection, [new], now=telling.clock.at)


def test_news_of_several_kinds_wake_their_recipients_in_one_order(telling: Telling) -> None:
    telling.given_follower("bob")
    ann = Recipient(id="ann", address=HOOK.format("ann"), kinds=(EXTRACTION,))
    now = telling.clock.at
    with telling.store.begin() as connection:
        registry.add(connection, ann, actor="test", now=now)
        said = {"source_id": "catalog:a", "title": "complete", "text": "3 pages"}
        write_notice(connection, EXTRACTION, "7", said, now=now)
    telling.publish(1)
    given_tasks(telling, "ann", "bob")

    def tell(connection: Connection) -> None:
        expand(connection, now=now, grouping=timedelta(0))

    held = SERVED.where(tasks.c.dedupe_key == "bob")
    assert locked_meanwhile(telling.store, tell, held=held, among=SERVED) == ["ann"]


def test_recipients_of_files_are_locked_in_one_order_before_the_first_is_changed(telling: Telling) -> None:
    def declare(connection: Connection, path: str = "new/{}") -> None:
        both = [Recipient(id=name, address=HOOK.format(path.format(name)), origin="a.yaml") for name in ("ann", "bob")]
        registry.declare(connection, both, now=telling.clock.at)

    with telling.store.begin() as connection:
        declare(connection, "old/{}")
    given_tasks(telling, "bob", "ann")

    held = SERVED.where(tasks.c.dedupe_key == "ann")
    assert locked_meanwhile(telling.store, declare, held=held, among=SERVED) == ["bob"]


def test_a_message_is_sealed_of_notices_that_are_locked_by_id(telling: Telling) -> None:
    telling.given_follower()
    telling.publish(1, 2)
    telling.expand()
    first, second = (row.id for row in telling.notices())
    moved_behind(telling.store, notices, first)

    def seal(connection: Connection) -> None:
        rows.seal(connection, [first, second], "d-1")

    held = NOTICES.where(notices.c.id == second)
    assert locked_meanwhile(telling.store, seal, held=held, among=NOTICES) == [first]


def test_a_merge_locks_follows_then_notices_each_in_one_order(telling: Telling, clock: FixedClock) -> None:
    telling.given_follower("ann", "solo", "other")
    for one in ("other", "solo"):  # the notice that stays has the lower id
        telling.publish(1, series_id=one)
        telling.expand()
    stays, goes = (row.id for row in telling.notices())

    def try_merge(connection: Connection) -> None:
        merge(connection, "solo", "other", actor="test", now=clock.at)
        connection.rollback()

    follow = select(follows.c.series_id).where(follows.c.series_id == "solo")
    assert locked_meanwhile(telling.store, try_merge, held=follow, among=NOTICES) == []
    held = NOTICES.where(notices.c.id == goes)
    assert locked_meanwhile(telling.store, try_merge, held=held, among=NOTICES) == [stays]


def test_who_is_removed_is_locked_as_who_unfollows(telling: Telling, clock: FixedClock) -> None:
    telling.given_follower()
    telling.publish(1)
    telling.expand()

    def remove(connection: Connection) -> None:
        registry.remove(connection, "ann", actor="test", now=clock.at)

    follow = select(follows.c.series_id)
    assert locked_meanwhile(telling.store, remove, held=follow, among=NOTICES) == []
