"""From the outbox to notices, one per recipient and chapter for ever, and to sealed messages that nothing changes."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, insert, select, update

from ingestion_pipeline.notices import queries, subscriptions
from ingestion_pipeline.notices.expansion import Expanded, expand, matches_language
from ingestion_pipeline.notices.queries import is_work_waiting
from ingestion_pipeline.series.series_changes import merge, restore, withdraw
from ingestion_pipeline.sources.source import Follow, Mode
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import chapter_sources, chapters, follows, notices, outbox, recipients, series
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.notices.notice_harness import NoticeHarness
from ingestion_pipeline_tests.statements import query_plans

pytestmark = pytest.mark.both_databases


def unhandled(harness: NoticeHarness) -> int:
    with harness.store.read() as connection:
        query = select(outbox.c.id).where(outbox.c.handled_at.is_(None))
        return len(connection.execute(query).all())


def notified(harness: NoticeHarness) -> set[tuple[str, str]]:
    """Return recipient and chapter of every notice."""
    return {(row.recipient, row.payload["number"]) for row in harness.notices()}


def test_each_follower_of_the_series_gets_one_notice_with_every_field(harness: NoticeHarness) -> None:
    harness.add_follower("ann")
    harness.add_follower("bob", "other")
    harness.publish(7)

    assert harness.expand() == Expanded(handled=1, notices=1)

    [row] = harness.notices()
    assert (row.recipient, row.subject_kind, row.status, row.mode) == (*("ann", "chapter", "pending", "immediate"),)
    assert row.subject_id == str(row.payload["chapter_id"])
    assert row.payload == {
        "series_id": "solo",
        "series_title": "Solo",
        "chapter_id": int(row.subject_id),
        "number": "7",
        "title": "Part 7",
        "language": "en",
        "url": "https://a.test/7/en",
        "published_at": None,
        "detected_at": harness.clock.at.isoformat(),
    }
    assert unhandled(harness) == 0


def test_an_outbox_row_that_is_expanded_twice_makes_one_notice(harness: NoticeHarness) -> None:
    harness.add_follower()
    harness.publish(7)
    harness.expand()
    with harness.store.begin() as connection:
        connection.execute(update(outbox).values(handled_at=None))

    assert harness.expand() == Expanded(handled=1, notices=0)
    assert harness.expand() == Expanded()


def test_a_later_follower_gets_no_notice_of_earlier_chapters(harness: NoticeHarness, clock: FixedClock) -> None:
    harness.add_follower("ann")
    harness.publish(7)
    clock.advance(seconds=1)
    harness.add_follower("bob")
    harness.expand()
    harness.publish(8)
    harness.expand()

    assert notified(harness) == {("ann", "7"), ("ann", "8"), ("bob", "8")}


def test_a_muted_follower_has_a_notice_that_is_never_sent(harness: NoticeHarness) -> None:
    harness.add_follower("ann", mode=Mode.MUTED)
    harness.publish(7)

    assert harness.deliver().messages == 0
    assert harness.states() == ["muted"]
    assert harness.task() is None


def test_the_mode_of_a_follow_overrides_the_recipients(harness: NoticeHarness) -> None:
    harness.add_follower("ann", "other", mode=Mode.MUTED)
    harness.publish(7)
    with harness.store.begin() as connection:
        digest = Follow(series="solo", mode=Mode.DIGEST)
        subscriptions.follow(connection, "ann", digest, actor="t", now=harness.clock.at)
    harness.publish(8)

    assert harness.expand() == Expanded(handled=2, notices=2)
    assert {row.mode for row in harness.notices()} == {"digest"}


def test_a_follower_of_a_language_is_notified_once_when_it_appears(harness: NoticeHarness) -> None:
    harness.add_follower("any")
    harness.add_follower("de", language="de")
    harness.add_follower("en", language="en")
    harness.publish(7, languages=["en", "fr"])
    harness.expand()
    assert notified(harness) == {("any", "7"), ("en", "7")}

    with harness.store.begin() as connection:
        releases = [{"language": "fr", "url": "https://a.test/7/fr"}, {"language": "de", "url": "https://a.test/7/de"}]
        connection.execute(update(chapter_sources).values(releases=releases))
        chapter_id = connection.execute(select(chapters.c.id)).scalar_one()
        harness.announce(connection, chapter_id, "solo", kind="chapter_language", suffix=":de")

    assert harness.expand() == Expanded(handled=1, notices=1)
    [row] = harness.notices(recipient="de")
    assert (row.subject_kind, row.subject_id) == ("chapter", str(chapter_id))
    assert (row.payload["language"], row.payload["url"]) == ("de", "https://a.test/7/de")


@pytest.mark.parametrize(
    ("language", "requested", "matches"),
    [
        ("en", "en", True),
        ("EN", "en", True),
        ("pt-br", "pt", True),
        ("pt", "pt-br", False),
        ("est", "es", False),
        (None, "en", False),
    ],
)
def test_a_language_matches_its_variants(language: str | None, requested: str, matches: bool) -> None:
    assert matches_language(language, requested) is matches


def test_a_release_without_language_matches_any(harness: NoticeHarness) -> None:
    harness.add_follower("de", language="de")
    harness.publish(7, languages=["en", None])

    harness.expand()

    [row] = harness.notices()
    assert (row.payload["language"], row.payload["url"]) == (None, "https://a.test/7/None")


@pytest.mark.parametrize("change", ["rejected", "deleted"])
def test_a_rejected_or_deleted_chapter_makes_no_notice(harness: NoticeHarness, change: str) -> None:
    harness.add_follower()
    harness.publish(7)
    with harness.store.begin() as connection:
        if change == "rejected":
            connection.execute(update(chapters).values(rejected_at=harness.clock.at))
        else:
            deleted = {"subject_id": "4711", "payload": {"chapter_id": 4711}}
            connection.execute(update(outbox).values(deleted))

    assert harness.expand() == Expanded(handled=1, notices=0)


def test_a_follower_of_a_merged_series_follows_the_new_one(harness: NoticeHarness) -> None:
    harness.add_follower("old", "first")
    harness.add_follower("both", "first", "solo")
    harness.add_follower("new", "solo")
    with harness.store.begin() as connection:
        for name in ("first", "second"):  # a chain of merges leaves both one step from the last
            harness._ensure_series(connection, name)
            where = series.c.id == name
            connection.execute(update(series).where(where).values(merged_into="solo"))
    harness.publish(7)  # of the remaining series
    harness.publish(8, series_id="first")  # of a series that was merged meanwhile

    assert harness.expand() == Expanded(handled=2, notices=6)
    assert notified(harness) == {(recipient, n) for recipient in ("old", "both", "new") for n in "78"}
    assert {row.series_id for row in harness.notices()} == {"solo"}


def test_a_kind_that_nobody_subscribed_to_is_handled_and_reaches_nobody(harness: NoticeHarness) -> None:
    harness.add_follower()
    with harness.store.begin() as connection:
        harness.announce(connection, 1, "solo", kind="weather", suffix="")

    assert harness.expand() == Expanded(handled=1)
    assert unhandled(harness) == 0
    with harness.store.read() as connection:  # otherwise a deliverer would be started every few seconds
        assert not is_work_waiting(connection, now=harness.clock.at)


def add_many_followers(harness: NoticeHarness, count: int) -> None:
    now = harness.clock.at
    recipient = {
        "address_url": "http://hooks.test/all",
        "secret": None,
        "kinds": ["chapter"],
        "mode": "immediate",
        "origin": "row",
        "created_at": now,
        "updated_at": now,
    }
    with harness.store.begin() as connection:
        names = [f"r{number:03}" for number in range(count)]
        connection.execute(insert(recipients), [{"id": name, **recipient} for name in names])
        follow: dict[str, Any] = {"series_id": "solo", "origin": "row", "created_at": now}
        connection.execute(insert(follows), [{"recipient_id": name, **follow} for name in names])


@pytest.mark.slow
def test_fifty_chapters_for_five_hundred_followers_are_one_statement_and_quick(harness: NoticeHarness) -> None:
    add_many_followers(harness, 500)
    harness.publish(*range(1, 51))

    started = time.perf_counter()
    expanded = harness.expand()
    took = time.perf_counter() - started

    assert expanded == Expanded(handled=50, notices=25_000)
    assert took < 10, f"{took:.1f} s"
    with harness.store.read() as connection:
        pairs = connection.execute(select(notices.c.recipient, notices.c.subject_id)).all()
    assert len(set(pairs)) == 25_000


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
    harness.deliver_after(seconds=15)
    assert len(harness.requests_to()) == 1

    with harness.store.begin() as connection:
        change(connection, clock)
    harness.web.routes["/ann"] = 200
    harness.deliver_after(minutes=1)

    first, second = harness.requests_to()[:2]
    assert second.body == first.body
    assert second.headers["webhook-id"] == first.headers["webhook-id"]
    assert set(harness.states()) == {"sent"}


def test_a_chapter_withdrawn_after_its_message_is_not_sent_again_when_restored(harness: NoticeHarness) -> None:
    harness.add_follower()
    harness.web.routes["/ann"] = 503
    harness.publish(1)
    harness.deliver_after(seconds=15)
    assert harness.apply(withdraw, "solo", "1").notices == 0
    harness.web.routes["/ann"] = 200
    harness.deliver_after(minutes=1)

    assert harness.apply(restore, "solo", "1").notices == 0

    assert harness.deliver_after(hours=2).messages == 0
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

    assert harness.apply(restore, "solo", "1").notices == 1
    harness.deliver_after(seconds=15)

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

    merged_counts = harness.apply(merge, "solo", "other")

    assert (merged_counts.chapters_united, merged_counts.notices_dropped) == (70, 35_000)


GROUPING = NOON - NOON
ANN = queries.Addressee(id="ann", address="notify:", secret=None, failures=0)


@pytest.mark.parametrize("database", ["sqlite"])
@pytest.mark.parametrize(
    ("query", "index"),
    [
        (lambda c: queries.unfinished_delivery(c, "ann"), "ix_notices_pending"),
        (lambda c: queries.pending_notices(c, "ann"), "ix_notices_pending"),
        (lambda c: queries.sealed_message(c, ANN, "d"), "ix_notices_pending"),
        (lambda c: queries.mark_sent(c, "ann", "d", now=NOON), "ix_notices_pending"),
        (lambda c: queries.reopen(c, "ann"), "ix_notices_failed"),
        (lambda c: queries.sent_messages(c, "ann", since=NOON), "ix_notices_recipient_sent_at"),
        (lambda c: expand(c, now=NOON, grouping=GROUPING), "ix_outbox_unhandled"),
        (lambda c: queries.is_work_waiting(c, now=NOON), "ix_outbox_unhandled"),
        (lambda c: queries.is_work_waiting(c, now=NOON), "ix_notices_pending"),
        (lambda c: queries.ensure_tasks(c, now=NOON, grouping=GROUPING), "ix_notices_pending"),
    ],
)
def test_a_statement_uses_its_own_index_only(store: Store, query: Callable[[Connection], object], index: str) -> None:
    with store.begin() as connection:
        plan = query_plans(connection, query).splitlines()

    table = index.split("_")[1]
    table_lines = [line for line in plan if f" {table} " in f"{line} "]
    assert table_lines
    assert all(index in line for line in table_lines)
