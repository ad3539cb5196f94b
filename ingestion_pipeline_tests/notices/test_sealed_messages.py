"""A sealed message: later changes of its chapters do not change it."""

from collections.abc import Callable

import pytest
from sqlalchemy import Connection, insert, select, update

from ingestion_pipeline.notices import subscriptions
from ingestion_pipeline.series.series_changes import merge, restore, withdraw
from ingestion_pipeline.store import FixedClock
from ingestion_pipeline.store.tables import chapters, notices, series
from ingestion_pipeline_tests.notices.notice_harness import NoticeHarness

pytestmark = pytest.mark.both_databases

Change = Callable[[Connection, FixedClock], object]


def merge_series(connection: Connection, clock: FixedClock) -> object:
    return merge(connection, "solo", "other", actor="test", now=clock.at)


def withdraw_chapter(connection: Connection, clock: FixedClock) -> object:
    return withdraw(connection, "solo", "2", actor="test", now=clock.at)


def rename_series(connection: Connection, clock: FixedClock) -> object:
    return connection.execute(update(series).values(title=f"At {clock.at}"))


def unfollow_series(connection: Connection, clock: FixedClock) -> object:
    return subscriptions.unfollow(connection, "ann", "solo", actor="test", now=clock.at)


@pytest.mark.slow
@pytest.mark.parametrize("change", [merge_series, withdraw_chapter, rename_series, unfollow_series])
def test_a_message_is_retried_byte_for_byte_whatever_happened_to_its_chapters(
    harness: NoticeHarness, clock: FixedClock, change: Change
) -> None:
    harness.add_follower("ann", "solo", "other")
    harness.web.routes["/ann"] = 503
    harness.publish(1, 2)
    harness.publish(1, series_id="other")  # the same chapter, once they are merged
    clock.advance(seconds=15)
    harness.deliver()
    assert len(harness.requests_to()) == 1

    with harness.store.begin() as connection:
        change(connection, clock)
    harness.web.routes["/ann"] = 200
    clock.advance(minutes=1)
    harness.deliver()

    first, second = harness.requests_to()[:2]
    assert second.body == first.body
    assert second.headers["webhook-id"] == first.headers["webhook-id"]
    assert set(harness.states()) == {"sent"}


def test_a_chapter_withdrawn_after_its_message_is_not_sent_again_when_restored(
    harness: NoticeHarness, clock: FixedClock
) -> None:
    harness.add_follower()
    harness.web.routes["/ann"] = 503
    harness.publish(1)
    clock.advance(seconds=15)
    harness.deliver()
    with harness.store.begin() as connection:
        assert withdraw(connection, "solo", "1", actor="test", now=clock.at).notices == 0
    harness.web.routes["/ann"] = 200
    clock.advance(minutes=1)
    harness.deliver()

    with harness.store.begin() as connection:
        assert restore(connection, "solo", "1", actor="test", now=clock.at).notices == 0
    clock.advance(hours=2)

    assert harness.deliver().messages == 0
    assert harness.states() == ["sent"]


def test_a_restored_chapter_notifies_current_followers_only(harness: NoticeHarness, clock: FixedClock) -> None:
    for name in ("ann", "bob", "cem"):
        harness.add_follower(name)
    harness.publish(1)
    harness.expand()
    with harness.store.begin() as connection:
        assert withdraw(connection, "solo", "1", actor="test", now=clock.at).notices == 3
        subscriptions.remove(connection, "bob", actor="test", now=clock.at)
        subscriptions.unfollow(connection, "cem", "solo", actor="test", now=clock.at)

    with harness.store.begin() as connection:
        assert restore(connection, "solo", "1", actor="test", now=clock.at).notices == 1
    clock.advance(seconds=15)
    harness.deliver()

    assert [harness.states(name) for name in ("ann", "bob", "cem")] == [["sent"], ["muted"], ["muted"]]


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite"])
def test_series_with_35000_notices_each_can_be_merged(harness: NoticeHarness, clock: FixedClock) -> None:
    harness.publish(*range(70))
    harness.publish(*range(70), series_id="other")
    with harness.store.begin() as connection:
        chapter_ids = connection.execute(select(chapters.c.id)).scalars().all()
        sent = {"subject_kind": "chapter", "status": "sent", "mode": "immediate", "payload": {}}
        names = [f"r{number}" for number in range(500)]
        notice = [
            {**sent, "recipient": name, "subject_id": str(chapter_id), "created_at": clock.at}
            for name in names
            for chapter_id in chapter_ids
        ]
        connection.execute(insert(notices), notice)

    with harness.store.begin() as connection:
        merged_counts = merge(connection, "solo", "other", actor="test", now=clock.at)

    assert (merged_counts.chapters_united, merged_counts.notices_dropped) == (70, 35_000)
