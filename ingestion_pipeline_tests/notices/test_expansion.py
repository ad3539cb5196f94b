"""From the outbox to notices: who is told of what, once for ever."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from ingestion_pipeline.notices import registry
from ingestion_pipeline.notices.expansion import Expanded, matches_language
from ingestion_pipeline.notices.tasks import is_work_waiting
from ingestion_pipeline.sources.recipients import Follow, Mode
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import chapter_sources, chapters, follows, notices, outbox, recipients, series
from ingestion_pipeline_tests.notices.telling import Telling


def unhandled(telling: Telling) -> int:
    with telling.store.read() as connection:
        query = select(outbox.c.id).where(outbox.c.handled_at.is_(None))
        return len(connection.execute(query).all())


def told(telling: Telling) -> set[tuple[str, str]]:
    """Recipient and chapter of every notice."""
    return {(row.recipient, row.payload["number"]) for row in telling.notices()}


def test_each_follower_of_the_series_has_one_notice_that_says_all(telling: Telling) -> None:
    telling.given_follower("ann")
    telling.given_follower("bob", "other")
    telling.publish(7)

    assert telling.expand() == Expanded(handled=1, notices=1)

    [row] = telling.notices()
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
        "detected_at": telling.clock.at.isoformat(),
    }
    assert unhandled(telling) == 0


def test_what_is_expanded_twice_is_told_once(telling: Telling) -> None:
    telling.given_follower()
    telling.publish(7)
    telling.expand()
    with telling.store.begin() as connection:
        connection.execute(update(outbox).values(handled_at=None))

    assert telling.expand() == Expanded(handled=1, notices=0)
    assert telling.expand() == Expanded()


def test_who_follows_later_is_not_told_of_what_was_there(telling: Telling, clock: FixedClock) -> None:
    telling.given_follower("ann")
    telling.publish(7)
    clock.advance(seconds=1)
    telling.given_follower("bob")
    telling.expand()
    telling.publish(8)
    telling.expand()

    assert told(telling) == {("ann", "7"), ("ann", "8"), ("bob", "8")}


def test_a_muted_follower_has_a_notice_that_is_never_sent(telling: Telling) -> None:
    telling.given_follower("ann", mode=Mode.MUTED)
    telling.publish(7)

    assert telling.deliver().messages == 0
    assert telling.states() == ["muted"]
    assert telling.task() is None


def test_a_follows_mode_beats_the_recipients(telling: Telling) -> None:
    telling.given_follower("ann", "other", mode=Mode.MUTED)
    telling.publish(7)
    with telling.store.begin() as connection:
        wanted = Follow(series="solo", mode=Mode.DIGEST)
        registry.follow(connection, "ann", wanted, actor="t", now=telling.clock.at)
    telling.publish(8)

    assert telling.expand() == Expanded(handled=2, notices=2)
    assert {row.mode for row in telling.notices()} == {"digest"}


def test_a_language_is_told_when_it_is_there_and_once(telling: Telling) -> None:
    telling.given_follower("any")
    telling.given_follower("de", language="de")
    telling.given_follower("en", language="en")
    telling.publish(7, languages=["en", "fr"])
    telling.expand()
    assert told(telling) == {("any", "7"), ("en", "7")}

    with telling.store.begin() as connection:
        releases = [{"language": "fr", "url": "https://a.test/7/fr"}, {"language": "de", "url": "https://a.test/7/de"}]
        connection.execute(update(chapter_sources).values(releases=releases))
        chapter_id = connection.execute(select(chapters.c.id)).scalar_one()
        telling.announce(connection, chapter_id, "solo", kind="chapter_language", suffix=":de")

    assert telling.expand() == Expanded(handled=1, notices=1)
    [row] = telling.notices(recipient="de")
    assert (row.subject_kind, row.subject_id) == ("chapter", str(chapter_id))
    assert (row.payload["language"], row.payload["url"]) == ("de", "https://a.test/7/de")


@pytest.mark.parametrize(
    ("stated", "wanted", "is_so"),
    [
        ("en", "en", True),
        ("EN", "en", True),
        ("pt-br", "pt", True),
        ("pt", "pt-br", False),
        ("est", "es", False),
        (None, "en", False),
    ],
)
def test_a_language_takes_its_variants(stated: str | None, wanted: str, is_so: bool) -> None:
    assert matches_language(stated, wanted) is is_so


def test_a_release_without_language_may_be_any(telling: Telling) -> None:
    telling.given_follower("de", language="de")
    telling.publish(7, languages=["en", None])

    telling.expand()

    [row] = telling.notices()
    assert (row.payload["language"], row.payload["url"]) == (None, "https://a.test/7/None")


@pytest.mark.parametrize("how", ["rejected", "gone"])
def test_a_chapter_that_no_longer_stands_is_not_told(telling: Telling, how: str) -> None:
    telling.given_follower()
    telling.publish(7)
    with telling.store.begin() as connection:
        if how == "rejected":
            connection.execute(update(chapters).values(rejected_at=telling.clock.at))
        else:
            gone = {"subject_id": "4711", "payload": {"chapter_id": 4711}}
            connection.execute(update(outbox).values(gone))

    assert telling.expand() == Expanded(handled=1, notices=0)


def test_whoever_follows_a_merged_series_follows_the_one_it_became(telling: Telling) -> None:
    telling.given_follower("old", "first")
    telling.given_follower("both", "first", "solo")
    telling.given_follower("new", "solo")
    with telling.store.begin() as connection:
        for name in ("first", "second"):  # a merge of one into the other leaves both at one step
            telling._ensure_series(connection, name)
            where = series.c.id == name
            connection.execute(update(series).where(where).values(merged_into="solo"))
    telling.publish(7)  # of the one that is left
    telling.publish(8, series_id="first")  # of one that was merged meanwhile

    assert telling.expand() == Expanded(handled=2, notices=6)
    assert told(telling) == {(who, n) for who in ("old", "both", "new") for n in "78"}
    assert {row.series_id for row in telling.notices()} == {"solo"}


def test_a_kind_nobody_knows_is_left_for_whoever_does(telling: Telling) -> None:
    telling.given_follower()
    with telling.store.begin() as connection:
        telling.announce(connection, 1, "solo", kind="weather", suffix="")

    assert telling.expand() == Expanded()
    assert unhandled(telling) == 1
    with telling.store.read() as connection:  # else a deliverer were started every few seconds
        assert not is_work_waiting(connection, now=telling.clock.at)


def many_followers(telling: Telling, count: int) -> None:
    now = telling.clock.at
    recipient = {
        "address_url": "http://hooks.test/all",
        "secret": None,
        "kinds": ["chapter"],
        "mode": "immediate",
        "origin": "row",
        "created_at": now,
        "updated_at": now,
    }
    with telling.store.begin() as connection:
        names = [f"r{number:03}" for number in range(count)]
        connection.execute(insert(recipients), [{"id": name, **recipient} for name in names])
        follow: dict[str, Any] = {"series_id": "solo", "origin": "row", "created_at": now}
        connection.execute(insert(follows), [{"recipient_id": name, **follow} for name in names])


def test_fifty_chapters_for_five_hundred_followers_are_one_statement_and_quick(telling: Telling, store: Store) -> None:
    many_followers(telling, 500)
    telling.publish(*range(1, 51))

    started = time.perf_counter()
    expanded = telling.expand()
    took = time.perf_counter() - started

    assert expanded == Expanded(handled=50, notices=25_000)
    assert took < 10, f"{took:.1f} s"
    with store.read() as connection:
        pairs = connection.execute(select(notices.c.recipient, notices.c.subject_id)).all()
    assert len(set(pairs)) == 25_000
