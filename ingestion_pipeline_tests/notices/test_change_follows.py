"""Notices of any change of published rows: by table, field, source and cause, each change once."""

import json
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from ingestion_pipeline.notices.change_follows import ChangeFollow, follow_changes, unfollow_changes
from ingestion_pipeline.notices.queries import is_work_waiting, list_recipients
from ingestion_pipeline.notices.subscriptions import remove
from ingestion_pipeline.store.changes import Cause, Origin, set_origins
from ingestion_pipeline.store.tables import change_follows, changes, chapters
from ingestion_pipeline_tests.notices.notice_harness import NoticeHarness
from ingestion_pipeline_tests.notices.test_subscriptions import add_operator

pytestmark = pytest.mark.both_databases

TITLES = ChangeFollow(table_name="chapters", field="title")


@pytest.fixture(autouse=True)
def a_chapter(harness: NoticeHarness) -> None:
    """A recipient without chapters, and a chapter that was there before."""
    add_operator(harness, "ops", "extraction")
    publish(harness, 1)


def publish(harness: NoticeHarness, number: int) -> None:
    harness.publish(number)
    with harness.store.begin() as connection:  # recorded by the database's own clock
        connection.execute(update(changes).values(occurred_at=harness.clock.at))
    harness.clock.advance(minutes=1)


def change(harness: NoticeHarness, cause: Cause = Cause.SOURCE_CHANGED, **values: Any) -> None:
    """Change all chapters, a minute later."""
    harness.clock.advance(minutes=1)
    with harness.store.begin() as connection:
        set_origins(connection, {}, now=harness.clock.at, default=Origin(cause=cause, source_id="series:solo"))
        connection.execute(update(chapters).values(values))


def follow(harness: NoticeHarness, requested: ChangeFollow) -> bool:
    return harness.apply(follow_changes, "ops", requested)


def subjects(harness: NoticeHarness) -> list[tuple[str, str]]:
    harness.expand()
    return [(row.payload["change"]["op"], row.payload["text"]) for row in harness.notices(subject_kind="change")]


def test_updates_of_the_followed_field_are_notified_once(harness: NoticeHarness) -> None:
    assert follow(harness, TITLES)
    assert not follow(harness, TITLES)
    change(harness, title="First")
    change(harness, published_at=harness.clock.at)

    assert subjects(harness) == [("update", "title: Part 1 -> First")]
    assert subjects(harness) == [("update", "title: Part 1 -> First")]


def test_a_cause_and_a_source_can_be_followed(harness: NoticeHarness) -> None:
    for cause, source_id in ((Cause.OPERATOR, None), (None, "series:solo"), (None, "series:other")):
        follow(harness, ChangeFollow(table_name="chapters", source_id=source_id, cause=cause and cause.value))
    change(harness, title="By the source")

    assert subjects(harness) == [("update", "title: Part 1 -> By the source")]


def test_first_syncs_and_what_was_before_are_not_notified(harness: NoticeHarness) -> None:
    change(harness, title="Before")
    follow(harness, ChangeFollow(table_name="chapters"))
    change(harness, Cause.FIRST_SYNC, title="With the first sync")

    assert subjects(harness) == []


def test_changes_of_a_moment_are_one_signed_message(harness: NoticeHarness) -> None:
    publish(harness, 2)
    follow(harness, ChangeFollow(table_name="chapters"))
    change(harness, title="Again")
    with harness.store.begin() as connection:
        assert is_work_waiting(connection, now=harness.clock.at)
    harness.deliver()
    harness.deliver_after(minutes=2)
    harness.deliver_after(minutes=2)

    [request] = harness.requests_to("ops")
    content = json.loads(request.body)
    assert [event["change"]["after"] for event in content["events"]] == [{"title": "Again"}] * 2
    assert {event["change"]["cause"] for event in content["events"]} == {"source_changed"}
    assert "webhook-signature" in {name.lower() for name in request.headers}
    with harness.store.begin() as connection:
        assert not is_work_waiting(connection, now=harness.clock.at)


def test_a_change_that_was_committed_late_is_notified_all_the_same(harness: NoticeHarness) -> None:
    """A transaction may state a time a little before that of a reader who could not see it yet."""
    follow(harness, ChangeFollow(table_name="chapters"))
    harness.clock.advance(minutes=1)
    harness.expand()
    harness.clock.at -= timedelta(seconds=61)
    change(harness, title="Late")
    harness.clock.advance(minutes=1)

    assert subjects(harness) == [("update", "title: Part 1 -> Late")]


def test_what_is_unfollowed_or_removed_is_notified_no_more(harness: NoticeHarness) -> None:
    follow(harness, TITLES)
    with harness.store.read() as connection:
        assert list_recipients(connection)[0]["changes"] == ["chapters.title"]
    assert harness.apply(unfollow_changes, "ops", TITLES)
    change(harness, title="Unheard")
    assert subjects(harness) == []

    follow(harness, TITLES)
    harness.apply(remove, "ops")
    with harness.store.begin() as connection:
        assert connection.execute(select(change_follows)).all() == []
