"""What followers were promised, from a source's listing to the message: traps 21 and 23, scale."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

import pytest

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline_tests.notices.telling import Telling, numbers
from ingestion_pipeline_tests.notices.test_expansion import many_followers
from ingestion_pipeline_tests.series.identity import merge_now
from ingestion_pipeline_tests.series.syncing import Syncing, releases


@pytest.fixture
def syncing(store: Store, clock: FixedClock, settings: Settings) -> Syncing:
    return Syncing(store, clock, settings, Random(7))


def test_a_first_sync_of_three_hundred_chapters_tells_nobody_and_one_more_tells_each_once(
    telling: Telling, syncing: Syncing, clock: FixedClock
) -> None:
    syncing.given_source()
    telling.given_follower("ann")
    telling.given_follower("bob")
    syncing.sync(releases(*range(1, 301)))
    clock.advance(minutes=1)
    telling.deliver()
    assert (telling.notices(), telling.web.requests) == ([], [])

    syncing.sync(releases(*range(1, 302)))
    clock.advance(minutes=1)
    telling.deliver()
    syncing.sync(releases(*range(1, 302)))  # the poll repeated
    clock.advance(hours=2)
    telling.deliver()

    assert (telling.told("ann"), telling.told("bob")) == ([["301"]], [["301"]])
    assert [row.status for row in telling.notices()] == ["sent", "sent"]


def test_a_chapter_from_two_sources_at_the_same_moment_is_one_notice_per_follower(
    telling: Telling, syncing: Syncing, clock: FixedClock
) -> None:
    for name in ("series:one", "series:two"):
        syncing.given_source(name)
        syncing.sync(releases(1), by=name)
    telling.given_follower("ann")
    telling.given_follower("bob")

    syncing.sync_together({"series:one": releases(1, 2), "series:two": releases(1, 2)})
    clock.advance(minutes=1)
    telling.deliver()
    syncing.sync_together({"series:one": releases(1, 2), "series:two": releases(1, 2)})
    clock.advance(hours=2)
    telling.deliver()

    assert (telling.told("ann"), telling.told("bob")) == ([["2"]], [["2"]])
    assert len(telling.notices()) == 2


def test_who_follows_is_told_once_of_what_a_second_source_had_first(
    telling: Telling, syncing: Syncing, clock: FixedClock
) -> None:
    syncing.given_source()
    syncing.sync(releases(*range(1, 11)))
    telling.given_follower("ann")
    clock.advance(days=1)
    syncing.given_source("series:two")
    syncing.sync(releases(*range(1, 12)), by="series:two")
    clock.advance(days=1)
    telling.given_follower("late")  # chapter 11 was there
    clock.advance(days=1)

    for _ in range(2):
        syncing.sync(releases(*range(1, 12)))
        clock.advance(hours=2)
        telling.deliver()

    assert (telling.told("ann"), telling.told("late")) == ([["11"]], [])


@pytest.mark.parametrize(("old", "new"), [("solo", "other"), ("other", "solo")])
@pytest.mark.parametrize("is_announced", [True, False], ids=["announced", "backlog"])
def test_a_merge_tells_followers_of_each_series_what_only_the_other_had(
    telling: Telling, syncing: Syncing, clock: FixedClock, old: str, new: str, *, is_announced: bool
) -> None:
    syncing.given_source()
    syncing.sync(releases(*range(1, 11)))
    telling.given_follower("ann")
    syncing.given_source("series:two", series_id="other")
    syncing.sync(releases(*range(1, 9 if is_announced else 13)), by="series:two")
    telling.given_follower("bob", "other")
    clock.advance(hours=1)
    syncing.sync(releases(*range(1, 13)), by="series:two")
    clock.advance(hours=1)
    telling.deliver()
    telling.given_follower("late", "other")  # all twelve were there
    telling.given_follower("both", "solo", "other")
    clock.advance(hours=1)
    before = (telling.told("bob"), telling.told("late"), telling.told("both"))

    merge_now(syncing, old, new)
    for _ in range(2):
        clock.advance(hours=3)
        telling.deliver()
        syncing.sync(releases(*range(1, 13)))

    assert telling.told("ann") == [["11", "12"]]
    assert (telling.told("bob"), telling.told("late"), telling.told("both")) == before


def test_a_merge_tells_of_a_side_chapter_only_those_who_followed_when_it_came(
    telling: Telling, syncing: Syncing, clock: FixedClock
) -> None:
    syncing.given_source()
    syncing.sync(releases(*range(5, 11)))
    syncing.given_source("series:two", series_id="other")
    syncing.sync(releases(1, 2, 10), by="series:two")
    telling.given_follower("ann")
    clock.advance(hours=1)
    syncing.sync(releases(1, 2, "9.5", 10), by="series:two")
    clock.advance(hours=1)
    telling.deliver()
    telling.given_follower("late")
    clock.advance(hours=1)

    merge_now(syncing, "other", "solo")
    clock.advance(hours=1)
    telling.deliver()

    assert (telling.told("ann"), telling.told("late")) == ([["9.5"]], [])


def test_a_merge_keeps_the_others_backlog_for_the_source_that_lists_it_later(
    telling: Telling, syncing: Syncing, clock: FixedClock
) -> None:
    syncing.given_source()
    syncing.sync(releases(*range(1, 11)))
    telling.given_follower("ann")
    clock.advance(hours=1)
    syncing.given_source("series:two", series_id="other")
    syncing.sync(releases(1, "5.5", 10), by="series:two")
    clock.advance(hours=1)
    telling.given_follower("bob", "other")  # 5.5 was there
    merge_now(syncing, "other", "solo")
    clock.advance(hours=1)
    telling.deliver()
    assert telling.told("ann") == []

    for _ in range(2):
        syncing.sync(releases(*range(1, 11), "5.5"))
        clock.advance(hours=2)
        telling.deliver()

    assert (telling.told("ann"), telling.told("bob")) == ([["5.5"]], [])


def test_who_wants_a_language_is_told_once_of_what_a_second_source_had_first_in_it(
    telling: Telling, syncing: Syncing, clock: FixedClock
) -> None:
    german = releases(1, 2, language="de")
    syncing.given_source()
    syncing.sync([*releases(1, 2, language="en"), *german])
    telling.given_follower("ann", language="de")
    clock.advance(hours=1)
    syncing.sync([*releases(1, 2, 3, language="en"), *german])
    clock.advance(hours=1)
    telling.deliver()
    syncing.given_source("series:two")
    syncing.sync(releases(1, 2, 3, language="de"), by="series:two")
    clock.advance(hours=1)
    telling.given_follower("late", language="de")  # the third was there in German
    syncing.sync(releases(1, 2, 3, language="de", title="Renamed"), by="series:two")
    clock.advance(hours=1)
    telling.deliver()
    assert telling.told("ann") == []

    for _ in range(2):
        syncing.sync([*releases(1, 2, 3, language="en"), *german, *releases(3, language="de")])
        clock.advance(hours=2)
        telling.deliver()

    assert (telling.told("ann"), telling.told("late")) == ([["3"]], [])


@pytest.mark.slow
@pytest.mark.parametrize("followers", [60, pytest.param(500, marks=pytest.mark.soak)])
def test_fifty_chapters_in_an_hour_reach_every_follower_in_two_messages(
    telling: Telling, clock: FixedClock, followers: int
) -> None:
    many_followers(telling, followers)
    telling.web.routes["/all"] = 200
    telling.publish(1, 2, 3)
    clock.advance(seconds=15)
    telling.deliver()
    for number in range(4, 51):
        clock.advance(seconds=70)
        telling.publish(number)
    clock.advance(hours=1)
    telling.deliver()

    messages = Counter((json.loads(one.body)["recipient"], len(numbers(one))) for one in telling.web.requests)
    assert messages == Counter({(f"r{number:03}", count): 1 for number in range(followers) for count in (3, 47)})
    assert {row.status for row in telling.notices()} == {"sent"}
    digest = json.loads(telling.web.requests[-1].body)
    assert numbers(telling.web.requests[-1]) == [str(number) for number in range(4, 51)]
    assert digest["title"] == "Solo: 47 new chapters"
    assert digest["text"].splitlines()[-1] == "and 27 more"
    assert len({one.headers["idempotency-key"] for one in telling.web.requests}) == 2 * followers


def test_what_a_days_cap_holds_back_goes_out_as_one_message_that_names_it_all(
    telling: Telling, clock: FixedClock
) -> None:
    names = [f"s{number}" for number in range(8)]
    telling = telling.under(per_day=3)
    telling.given_follower("ann", *names)
    for name in names[:2]:
        telling.publish(1, series_id=name)
    clock.advance(seconds=15)
    telling.deliver()
    for name in names[2:6]:
        telling.publish(1, series_id=name)
    clock.advance(seconds=15)
    telling.deliver()
    for name in names[6:]:
        telling.publish(1, series_id=name)
    clock.advance(hours=23)
    telling.deliver()
    assert telling.told() == [["1"], ["1"], [f"{name}/1" for name in names[2:6]]]

    clock.advance(hours=1)
    telling.deliver()

    assert telling.told()[3:] == [["1"], ["1"]]  # two had become free, and two were ready
    assert set(telling.states()) == {"sent"}
