"""From a source's listing to the follower's message: traps 21 and 23, merges, languages, scale."""

import json
from collections import Counter
from random import Random

import pytest

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline_tests.notices.notice_harness import NoticeHarness, chapters_in_message
from ingestion_pipeline_tests.notices.test_expansion import add_many_followers
from ingestion_pipeline_tests.series.series_harness import SeriesHarness, releases


@pytest.fixture
def series_harness(store: Store, clock: FixedClock, settings: Settings) -> SeriesHarness:
    return SeriesHarness(store, clock, settings, Random(7))


def test_followers_are_notified_once_of_a_chapter_that_a_second_source_had_first(
    harness: NoticeHarness, series_harness: SeriesHarness, clock: FixedClock
) -> None:
    series_harness.add_source(listing=releases(*range(1, 11)))
    harness.add_follower("ann")
    clock.advance(days=1)
    series_harness.add_source("series:two")
    series_harness.sync(releases(*range(1, 12)), by="series:two")
    clock.advance(days=1)
    harness.add_follower("late")  # chapter 11 existed already
    clock.advance(days=1)

    for _ in range(2):
        series_harness.sync(releases(*range(1, 12)))
        harness.deliver_after(hours=2)

    assert (harness.delivered_chapters("ann"), harness.delivered_chapters("late")) == ([["11"]], [])


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), [("solo", "other"), ("other", "solo")])
@pytest.mark.parametrize("is_announced", [True, False], ids=["announced", "backlog"])
def test_a_merge_notifies_followers_of_chapters_that_only_the_other_series_had(
    harness: NoticeHarness, series_harness: SeriesHarness, clock: FixedClock, old: str, new: str, *, is_announced: bool
) -> None:
    series_harness.add_source(listing=releases(*range(1, 11)))
    harness.add_follower("ann")
    series_harness.add_source("series:two", series_id="other")
    series_harness.sync(releases(*range(1, 9 if is_announced else 13)), by="series:two")
    harness.add_follower("bob", "other")
    clock.advance(hours=1)
    series_harness.sync(releases(*range(1, 13)), by="series:two")
    harness.deliver_after(hours=1)
    harness.add_follower("late", "other")  # all twelve existed already
    harness.add_follower("both", "solo", "other")
    clock.advance(hours=1)
    before = (harness.delivered_chapters("bob"), harness.delivered_chapters("late"), harness.delivered_chapters("both"))

    series_harness.merge(old, new)
    for _ in range(2):
        harness.deliver_after(hours=3)
        series_harness.sync(releases(*range(1, 13)))

    assert harness.delivered_chapters("ann") == [["11", "12"]]
    assert (
        harness.delivered_chapters("bob"),
        harness.delivered_chapters("late"),
        harness.delivered_chapters("both"),
    ) == before


@pytest.mark.slow
def test_a_merge_notifies_only_earlier_followers_of_a_side_chapter(
    harness: NoticeHarness, series_harness: SeriesHarness, clock: FixedClock
) -> None:
    series_harness.add_source(listing=releases(*range(5, 11)))
    series_harness.add_source("series:two", series_id="other")
    series_harness.sync(releases(1, 2, 10), by="series:two")
    harness.add_follower("ann")
    clock.advance(hours=1)
    series_harness.sync(releases(1, 2, "9.5", 10), by="series:two")
    harness.deliver_after(hours=1)
    harness.add_follower("late")
    clock.advance(hours=1)

    series_harness.merge("other", "solo")
    harness.deliver_after(hours=1)

    assert (harness.delivered_chapters("ann"), harness.delivered_chapters("late")) == ([["9.5"]], [])


@pytest.mark.slow
def test_a_merge_leaves_the_other_backlog_to_the_source_that_lists_it_later(
    harness: NoticeHarness, series_harness: SeriesHarness, clock: FixedClock
) -> None:
    series_harness.add_source(listing=releases(*range(1, 11)))
    harness.add_follower("ann")
    clock.advance(hours=1)
    series_harness.add_source("series:two", series_id="other")
    series_harness.sync(releases(1, "5.5", 10), by="series:two")
    clock.advance(hours=1)
    harness.add_follower("bob", "other")  # 5.5 existed already
    series_harness.merge("other", "solo")
    harness.deliver_after(hours=1)
    assert harness.delivered_chapters("ann") == []

    for _ in range(2):
        series_harness.sync(releases(*range(1, 11), "5.5"))
        harness.deliver_after(hours=2)

    assert (harness.delivered_chapters("ann"), harness.delivered_chapters("bob")) == ([["5.5"]], [])


@pytest.mark.slow
def test_followers_of_a_language_are_notified_once_of_what_a_second_source_had_first(
    harness: NoticeHarness, series_harness: SeriesHarness, clock: FixedClock
) -> None:
    german = releases(1, 2, language="de")
    series_harness.add_source(listing=[*releases(1, 2, language="en"), *german])
    harness.add_follower("ann", language="de")
    clock.advance(hours=1)
    series_harness.sync([*releases(1, 2, 3, language="en"), *german])
    harness.deliver_after(hours=1)
    series_harness.add_source("series:two")
    series_harness.sync(releases(1, 2, 3, language="de"), by="series:two")
    clock.advance(hours=1)
    harness.add_follower("late", language="de")  # the third existed in German already
    series_harness.sync(releases(1, 2, 3, language="de", title="Renamed"), by="series:two")
    harness.deliver_after(hours=1)
    assert harness.delivered_chapters("ann") == []

    for _ in range(2):
        series_harness.sync([*releases(1, 2, 3, language="en"), *german, *releases(3, language="de")])
        harness.deliver_after(hours=2)

    assert (harness.delivered_chapters("ann"), harness.delivered_chapters("late")) == ([["3"]], [])


@pytest.mark.slow
@pytest.mark.parametrize("followers", [60, pytest.param(500, marks=pytest.mark.soak)])
def test_fifty_chapters_in_an_hour_reach_every_follower_in_two_messages(harness: NoticeHarness, followers: int) -> None:
    add_many_followers(harness, followers)
    harness.web.routes["/all"] = 200
    harness.publish(1, 2, 3)
    harness.deliver_after(seconds=15)
    for number in range(4, 51):
        harness.clock.advance(seconds=70)
        harness.publish(number)
    harness.deliver_after(hours=1)

    messages = Counter(
        (json.loads(request.body)["recipient"], len(chapters_in_message(request))) for request in harness.web.requests
    )
    assert messages == Counter({(f"r{number:03}", count): 1 for number in range(followers) for count in (3, 47)})
    assert {row.status for row in harness.notices()} == {"sent"}
    digest = json.loads(harness.web.requests[-1].body)
    assert chapters_in_message(harness.web.requests[-1]) == [str(number) for number in range(4, 51)]
    assert digest["title"] == "Solo: 47 new chapters"
    assert digest["text"].splitlines()[-1] == "and 27 more"
    assert len({request.headers["idempotency-key"] for request in harness.web.requests}) == 2 * followers


@pytest.mark.slow
def test_notices_over_the_daily_cap_are_sent_in_one_message(harness: NoticeHarness) -> None:
    names = [f"s{number}" for number in range(8)]
    harness = harness.with_limits(per_day=3)
    harness.add_follower("ann", *names)
    for name in names[:2]:
        harness.publish(1, series_id=name)
    harness.deliver_after(seconds=15)
    for name in names[2:6]:
        harness.publish(1, series_id=name)
    harness.deliver_after(seconds=15)
    for name in names[6:]:
        harness.publish(1, series_id=name)
    harness.deliver_after(hours=23)
    assert harness.delivered_chapters() == [["1"], ["1"], [f"{name}/1" for name in names[2:6]]]

    harness.deliver_after(hours=1)

    assert harness.delivered_chapters()[3:] == [["1"], ["1"]]  # two slots were free again, and two series were ready
    assert set(harness.states()) == {"sent"}
