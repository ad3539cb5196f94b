"""Recipients and follows as files declare them, and what waits when a declaration changes."""

from __future__ import annotations

import pytest

from ingestion_pipeline.notices import registry
from ingestion_pipeline.notices.registry import DeclaredRecipients
from ingestion_pipeline.series.operator_changes import merge
from ingestion_pipeline.sources.recipients import Follow, Mode, Recipient
from ingestion_pipeline.store import FixedClock
from ingestion_pipeline_tests.notices.telling import HOOK, Telling


def declare(telling: Telling, *follows: Follow, mode: Mode = Mode.IMMEDIATE, hook: str = "ann") -> DeclaredRecipients:
    recipient = Recipient(id="ann", address=HOOK.format(hook), mode=mode, follows=follows, origin="who.yaml")
    with telling.store.begin() as connection:
        return registry.declare(connection, [recipient], now=telling.clock.at)


SOLO, OTHER = Follow(series="solo"), Follow(series="other")


@pytest.mark.parametrize(
    ("follows", "mode"),
    [
        ([OTHER], Mode.IMMEDIATE),
        ([Follow(series="solo", mode=Mode.MUTED), OTHER], Mode.IMMEDIATE),
        ([SOLO, Follow(series="other", mode=Mode.IMMEDIATE)], Mode.MUTED),
    ],
    ids=["no longer followed", "the follow is muted", "the recipient is muted"],
)
def test_what_a_file_takes_back_is_told_no_more_and_the_rest_is(
    telling: Telling, clock: FixedClock, follows: list[Follow], mode: Mode
) -> None:
    telling.web.routes["/ann"] = 200
    declare(telling, SOLO, OTHER)
    telling.publish(1)
    telling.publish(2, series_id="other")
    telling.deliver()

    assert declare(telling, *follows, mode=mode) == DeclaredRecipients(updated=1)
    clock.advance(seconds=15)
    telling.deliver()

    assert telling.told() == [["2"]]
    assert sorted(telling.states()) == ["muted", "sent"]


def test_a_file_that_names_a_merged_series_follows_the_one_it_became_all_the_while(
    telling: Telling, clock: FixedClock
) -> None:
    telling.web.routes["/ann"] = 200
    telling.publish(1)
    telling.publish(2, series_id="other")
    clock.advance(hours=1)
    declare(telling, SOLO)
    clock.advance(hours=1)
    with telling.store.begin() as connection:
        merge(connection, "solo", "other", actor="test", now=clock.at)
    telling.publish(3, series_id="other")
    clock.advance(seconds=15)

    assert declare(telling, SOLO) == DeclaredRecipients(unchanged=1)
    telling.deliver()

    assert telling.told() == [["3"]]
    with telling.store.begin() as connection:
        followed = registry.follow(connection, "ann", SOLO, actor="test", now=clock.at)
    assert not followed


def test_a_new_address_does_not_wait_out_the_pause_of_the_old_one(telling: Telling, clock: FixedClock) -> None:
    telling.web.routes |= {"/ann": 410, "/new": 200}
    declare(telling, SOLO, OTHER)
    telling.publish(1)
    clock.advance(seconds=15)
    telling.publish(2, series_id="other")
    telling.deliver()
    clock.advance(seconds=15)
    telling.deliver()
    assert telling.states() == ["failed", "pending"]

    declare(telling, SOLO, OTHER, hook="new")
    telling.deliver()

    assert telling.states() == ["failed", "sent"]
    assert telling.told("new") == [["2"]]
