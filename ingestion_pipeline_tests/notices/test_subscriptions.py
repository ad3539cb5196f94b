"""Who gets which notices: by kind, and by the follows declared in files."""

import json
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from ingestion_pipeline.notices import subscriptions
from ingestion_pipeline.notices.message import message_of, write_notice
from ingestion_pipeline.notices.queries import is_work_waiting
from ingestion_pipeline.notices.subscriptions import DeclaredRecipients
from ingestion_pipeline.registry import replay, systems
from ingestion_pipeline.series.series_changes import merge
from ingestion_pipeline.sources.declarations import recipient_of
from ingestion_pipeline.sources.source import Follow, Mode, Recipient
from ingestion_pipeline.store import FixedClock
from ingestion_pipeline.store.tables import dead_letters, notices, outbox
from ingestion_pipeline_tests.notices.notice_harness import HOOK, SECRET, NoticeHarness
from ingestion_pipeline_tests.polling_runs import rows

PAYLOAD = {"source_id": "catalog:shop", "title": "Shop is complete", "text": "3 pages", "items": 7}


def add_operator(harness: NoticeHarness, name: str, *kinds: str) -> None:
    harness.web.routes.setdefault(f"/{name}", 200)
    recipient = Recipient(id=name, address=HOOK.format(name), kinds=kinds)
    with harness.store.begin() as connection:
        subscriptions.add(connection, recipient, actor="test", now=harness.clock.at, secret=SECRET)


def write(harness: NoticeHarness, subject_id: str = "7", kind: str = "extraction") -> bool:
    with harness.store.begin() as connection:
        return write_notice(connection, kind, subject_id, PAYLOAD, now=harness.clock.at)


def test_each_finished_extraction_notifies_its_subscribers_once_and_nobody_else(harness: NoticeHarness) -> None:
    add_operator(harness, "ops", "extraction")
    harness.add_follower("ann")

    assert (write(harness), write(harness)) == (True, False)
    with harness.store.read() as connection:
        assert is_work_waiting(connection, now=harness.clock.at)
    harness.deliver_after(minutes=1)
    write(harness)
    harness.deliver()

    [request] = harness.requests_to("ops")
    content = json.loads(request.body)
    assert (content["type"], content["title"]) == ("events", "Shop is complete")
    assert (content["events"][0]["kind"], content["events"][0]["items"]) == ("extraction", 7)
    assert harness.requests_to("ann") == []


def test_later_subscribers_and_those_of_other_kinds_get_no_notice(harness: NoticeHarness) -> None:
    add_operator(harness, "recipes", "recipe")
    write(harness)
    harness.clock.advance(minutes=1)
    add_operator(harness, "late", "extraction")

    assert harness.expand().notices == 0
    write(harness, kind="recipe")
    assert [row.recipient for row in harness.notices()] == []
    harness.expand()
    assert [row.recipient for row in harness.notices()] == ["recipes"]


def test_a_job_match_notifies_its_subscribers_once(harness: NoticeHarness) -> None:
    add_operator(harness, "me", "job_match")
    add_operator(harness, "ops", "extraction")

    assert (write(harness, "9", "job_match"), write(harness, "9", "job_match")) == (True, False)
    harness.deliver_after(minutes=1)

    [request] = harness.requests_to("me")
    assert json.loads(request.body)["events"][0]["kind"] == "job_match"
    assert harness.requests_to("ops") == []


def test_chapters_and_events_share_one_message() -> None:
    chapter = {
        **dict.fromkeys(["title", "language", "url", "published_at", "detected_at"]),
        "series_id": "solo",
        "series_title": "Solo",
        "chapter_id": 1,
        "number": "5",
    }

    message = message_of("d", "ann", [("chapter", chapter), ("extraction", PAYLOAD)], text_chapters=9)

    assert message.title == "Shop is complete, and 1 more"
    assert message.text == "Shop is complete\n3 pages\n\nSolo\n- Chapter 5"
    assert json.loads(message.body)["series"][0]["id"] == "solo"


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param({"source_id": "catalog:shop"}, id="no title"),
        pytest.param({**PAYLOAD, "text": None}, id="no text"),
        pytest.param({**PAYLOAD, "detected_at": "yesterday"}, id="no time"),
        pytest.param({**PAYLOAD, "detected_at": "2026-03-01T12:00:00"}, id="no zone"),
    ],
)
def test_a_broken_notice_is_dead_lettered_and_the_others_are_sent(
    harness: NoticeHarness, broken: dict[str, object]
) -> None:
    add_operator(harness, "ops", "extraction", "recipe")
    write(harness)
    row = {"subject_kind": "recipe", "subject_id": "75", "created_at": harness.clock.at}
    with harness.store.begin() as connection:
        connection.execute(insert(outbox).values(payload=broken, **row))
    write(harness, "8")

    delivered = harness.deliver_after(minutes=1)

    assert (delivered.messages, delivered.sent, delivered.failed) == (1, 2, 1)
    [request] = harness.requests_to("ops")
    assert [event["kind"] for event in json.loads(request.body)["events"]] == ["extraction"] * 2
    assert harness.states("ops") == ["sent", "failed", "sent"]
    [dead_letter] = dead_letter_rows(harness)
    [bad] = harness.notices(status="failed")
    assert (dead_letter.task_kind, dead_letter.error_code) == ("deliver", "bad_notice")
    assert dead_letter.payload["notices"] == [bad.id]
    assert harness.task("ops").status == "SUCCESS"


@pytest.mark.parametrize("broken", [{}, {"chapter_id": "twelve"}], ids=["empty", "no number"])
def test_a_broken_outbox_row_of_a_chapter_does_not_affect_the_others(
    harness: NoticeHarness, broken: dict[str, object]
) -> None:
    harness.add_follower("ann")
    harness.publish(1)
    with harness.store.begin() as connection:
        first = select(outbox.c.id).limit(1).scalar_subquery()
        connection.execute(update(outbox).where(outbox.c.id == first).values(payload=broken))
    harness.publish(2)

    harness.deliver_after(minutes=1)

    assert harness.delivered_chapters("ann") == [["1", "2"]]


def test_a_repaired_notice_is_replayed_under_its_own_key(harness: NoticeHarness) -> None:
    add_operator(harness, "ops", "extraction", "recipe")
    write(harness)
    write(harness, "9", "recipe")
    harness.expand()
    intact = harness.notices()[1].payload
    with harness.store.begin() as connection:
        is_bad = notices.c.subject_kind == "recipe"
        connection.execute(update(notices).where(is_bad).values(payload={}))
    harness.deliver_after(minutes=1)

    with harness.store.begin() as connection:
        connection.execute(update(notices).where(is_bad).values(payload=intact))
        replay(connection, dead_letter_rows(harness)[0].id, actor="test", now=harness.clock.at)
    harness.deliver()

    first, second = harness.requests_to("ops")
    assert [event["kind"] for event in json.loads(second.body)["events"]] == ["recipe"]
    assert first.headers["webhook-id"] != second.headers["webhook-id"]
    assert harness.states("ops") == ["sent", "sent"]


def dead_letter_rows(harness: NoticeHarness) -> list[Any]:
    return rows(harness.store, dead_letters)


def test_a_notice_without_a_title_is_refused(harness: NoticeHarness) -> None:
    with harness.store.begin() as connection, pytest.raises(ValueError, match="title"):
        write_notice(connection, "recipe", "1", {"source_id": "x", "text": "y"}, now=harness.clock.at)


def test_a_recipient_file_lists_kinds_and_defaults_to_chapters() -> None:
    raw = {"id": "ops", "address": "notify:"}
    systems()  # whose kinds of notices are accepted

    plain, _ = recipient_of(raw)
    subscribed, _ = recipient_of({**raw, "kinds": ["extraction", "recipe"]})
    _, bad = recipient_of({**raw, "kinds": ["weather"]})

    assert plain is not None
    assert plain.kinds == ("chapter",)
    assert subscribed is not None
    assert subscribed.kinds == ("extraction", "recipe")
    assert bad[0].message.startswith("must be a list of: chapter, extraction, recipe, job_match")
    assert "budget" in bad[0].message


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
    harness: NoticeHarness, follows: list[Follow], mode: Mode
) -> None:
    harness.web.routes["/ann"] = 200
    declare(harness, SOLO, OTHER)
    harness.publish(1)
    harness.publish(2, series_id="other")
    harness.deliver()

    assert declare(harness, *follows, mode=mode) == DeclaredRecipients(updated=1)
    harness.deliver_after(seconds=15)

    assert harness.delivered_chapters() == [["2"]]
    assert sorted(harness.states()) == ["muted", "sent"]


def test_a_recipient_file_with_a_merged_series_follows_the_new_one(harness: NoticeHarness, clock: FixedClock) -> None:
    harness.web.routes["/ann"] = 200
    harness.publish(1)
    harness.publish(2, series_id="other")
    clock.advance(hours=1)
    declare(harness, SOLO)
    clock.advance(hours=1)
    harness.apply(merge, "solo", "other")
    harness.publish(3, series_id="other")
    clock.advance(seconds=15)

    assert declare(harness, SOLO) == DeclaredRecipients(unchanged=1)
    harness.deliver()

    assert harness.delivered_chapters() == [["3"]]
    followed = harness.apply(subscriptions.follow, "ann", SOLO)
    assert not followed


@pytest.mark.slow
def test_a_new_address_does_not_wait_out_the_pause_of_the_old_one(harness: NoticeHarness, clock: FixedClock) -> None:
    harness.web.routes |= {"/ann": 410, "/new": 200}
    declare(harness, SOLO, OTHER)
    harness.publish(1)
    clock.advance(seconds=15)
    harness.publish(2, series_id="other")
    harness.deliver()
    harness.deliver_after(seconds=15)
    assert harness.states() == ["failed", "pending"]

    declare(harness, SOLO, OTHER, hook="new")
    harness.deliver()

    assert harness.states() == ["failed", "sent"]
    assert harness.delivered_chapters("new") == [["2"]]
