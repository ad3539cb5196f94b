"""Recipients and follows declared in files, and pending notices when a declaration changes."""

import pytest

from ingestion_pipeline.notices import subscriptions
from ingestion_pipeline.notices.subscriptions import DeclaredRecipients
from ingestion_pipeline.series.series_changes import merge
from ingestion_pipeline.sources.source import Follow, Mode, Recipient
from ingestion_pipeline.store import FixedClock
from ingestion_pipeline_tests.notices.notice_harness import HOOK, NoticeHarness


def declare(
    harness: NoticeHarness, *follows: Follow, mode: Mode = Mode.IMMEDIATE, hook: str = "ann"
) -> DeclaredRecipients:
    recipient = Recipient(id="ann", address=HOOK.format(hook), mode=mode, follows=follows, origin="who.yaml")
    with harness.store.begin() as connection:
        return subscriptions.declare(connection, [recipient], now=harness.clock.at)


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
def test_a_removed_or_muted_follow_mutes_its_pending_notices_only(
    harness: NoticeHarness, clock: FixedClock, follows: list[Follow], mode: Mode
) -> None:
    harness.web.routes["/ann"] = 200
    declare(harness, SOLO, OTHER)
    harness.publish(1)
    harness.publish(2, series_id="other")
    harness.deliver()

    assert declare(harness, *follows, mode=mode) == DeclaredRecipients(updated=1)
    clock.advance(seconds=15)
    harness.deliver()

    assert harness.delivered_chapters() == [["2"]]
    assert sorted(harness.states()) == ["muted", "sent"]


def test_a_recipient_file_with_a_merged_series_follows_the_new_one(harness: NoticeHarness, clock: FixedClock) -> None:
    harness.web.routes["/ann"] = 200
    harness.publish(1)
    harness.publish(2, series_id="other")
    clock.advance(hours=1)
    declare(harness, SOLO)
    clock.advance(hours=1)
    with harness.store.begin() as connection:
        merge(connection, "solo", "other", actor="test", now=clock.at)
    harness.publish(3, series_id="other")
    clock.advance(seconds=15)

    assert declare(harness, SOLO) == DeclaredRecipients(unchanged=1)
    harness.deliver()

    assert harness.delivered_chapters() == [["3"]]
    with harness.store.begin() as connection:
        followed = subscriptions.follow(connection, "ann", SOLO, actor="test", now=clock.at)
    assert not followed


@pytest.mark.slow
def test_a_new_address_does_not_wait_out_the_pause_of_the_old_one(harness: NoticeHarness, clock: FixedClock) -> None:
    harness.web.routes |= {"/ann": 410, "/new": 200}
    declare(harness, SOLO, OTHER)
    harness.publish(1)
    clock.advance(seconds=15)
    harness.publish(2, series_id="other")
    harness.deliver()
    clock.advance(seconds=15)
    harness.deliver()
    assert harness.states() == ["failed", "pending"]

    declare(harness, SOLO, OTHER, hook="new")
    harness.deliver()

    assert harness.states() == ["failed", "sent"]
    assert harness.delivered_chapters("new") == [["2"]]
