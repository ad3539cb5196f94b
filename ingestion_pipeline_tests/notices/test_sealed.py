"""A message that was begun: what happens to its chapters does not change it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Connection, insert, select, update

from ingestion_pipeline.notices import registry
from ingestion_pipeline.series.operator_changes import merge, restore, withdraw
from ingestion_pipeline.store import FixedClock
from ingestion_pipeline.store.tables import chapters, notices, series
from ingestion_pipeline_tests.notices.telling import Telling

Change = Callable[[Connection, FixedClock], object]


def merged(connection: Connection, clock: FixedClock) -> object:
    return merge(connection, "solo", "other", actor="test", now=clock.at)


def withdrawn(connection: Connection, clock: FixedClock) -> object:
    return withdraw(connection, "solo", "2", actor="test", now=clock.at)


def renamed(connection: Connection, clock: FixedClock) -> object:
    return connection.execute(update(series).values(title=f"At {clock.at}"))


def unfollowed(connection: Connection, clock: FixedClock) -> object:
    return registry.unfollow(connection, "ann", "solo", actor="test", now=clock.at)


@pytest.mark.parametrize("change", [merged, withdrawn, renamed, unfollowed])
def test_a_message_is_repeated_byte_for_byte_whatever_became_of_its_chapters(
    telling: Telling, clock: FixedClock, change: Change
) -> None:
    telling.given_follower("ann", "solo", "other")
    telling.web.routes["/ann"] = 503
    telling.publish(1, 2)
    telling.publish(1, series_id="other")  # one chapter with the other's, once they are merged
    clock.advance(seconds=15)
    telling.deliver()
    assert len(telling.asked()) == 1

    with telling.store.begin() as connection:
        change(connection, clock)
    telling.web.routes["/ann"] = 200
    clock.advance(minutes=1)
    telling.deliver()

    first, again = telling.asked()[:2]
    assert again.body == first.body
    assert again.headers["webhook-id"] == first.headers["webhook-id"]
    assert set(telling.states()) == {"sent"}


def test_what_was_withdrawn_too_late_is_not_told_again_when_it_is_restored(telling: Telling, clock: FixedClock) -> None:
    telling.given_follower()
    telling.web.routes["/ann"] = 503
    telling.publish(1)
    clock.advance(seconds=15)
    telling.deliver()
    with telling.store.begin() as connection:
        assert withdraw(connection, "solo", "1", actor="test", now=clock.at).notices == 0
    telling.web.routes["/ann"] = 200
    clock.advance(minutes=1)
    telling.deliver()

    with telling.store.begin() as connection:
        assert restore(connection, "solo", "1", actor="test", now=clock.at).notices == 0
    clock.advance(hours=2)

    assert telling.deliver().messages == 0
    assert telling.states() == ["sent"]


def test_what_is_restored_is_told_to_those_alone_who_still_follow(telling: Telling, clock: FixedClock) -> None:
    for name in ("ann", "bob", "cem"):
        telling.given_follower(name)
    telling.publish(1)
    telling.expand()
    with telling.store.begin() as connection:
        assert withdraw(connection, "solo", "1", actor="test", now=clock.at).notices == 3
        registry.remove(connection, "bob", actor="test", now=clock.at)
        registry.unfollow(connection, "cem", "solo", actor="test", now=clock.at)

    with telling.store.begin() as connection:
        assert restore(connection, "solo", "1", actor="test", now=clock.at).notices == 1
    clock.advance(seconds=15)
    telling.deliver()

    assert [telling.states(name) for name in ("ann", "bob", "cem")] == [["sent"], ["muted"], ["muted"]]


@pytest.mark.parametrize("database", ["sqlite"])
def test_series_that_many_were_told_of_can_be_merged(telling: Telling, clock: FixedClock) -> None:
    telling.publish(*range(70))
    telling.publish(*range(70), series_id="other")
    with telling.store.begin() as connection:
        known = connection.execute(select(chapters.c.id)).scalars().all()
        told = {"subject_kind": "chapter", "status": "sent", "mode": "immediate", "payload": {}}
        names = [f"r{number}" for number in range(500)]
        notice = [
            {**told, "recipient": name, "subject_id": str(one), "created_at": clock.at}
            for name in names
            for one in known
        ]
        connection.execute(insert(notices), notice)

    with telling.store.begin() as connection:
        came_to = merge(connection, "solo", "other", actor="test", now=clock.at)

    assert (came_to.chapters_united, came_to.notices_dropped) == (70, 35_000)
