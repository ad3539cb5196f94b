"""Ends of extractions and the like: told to whoever wants the kind, once, beside chapters."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from ingestion_pipeline.notices import registry
from ingestion_pipeline.notices.message import EXTRACTION, JOB_MATCH, RECIPE, message_of, write_notice
from ingestion_pipeline.notices.tasks import is_work_waiting
from ingestion_pipeline.registry import replay
from ingestion_pipeline.sources.recipients import Recipient, recipient_of
from ingestion_pipeline.store.tables import dead_letters, notices, outbox
from ingestion_pipeline_tests.notices.telling import HOOK, SECRET, Telling

PAYLOAD = {"source_id": "catalog:shop", "title": "Shop is complete", "text": "3 pages", "items": 7}


def given_operator(telling: Telling, name: str, *kinds: str) -> None:
    telling.web.routes.setdefault(f"/{name}", 200)
    one = Recipient(id=name, address=HOOK.format(name), kinds=kinds)
    with telling.store.begin() as connection:
        registry.add(connection, one, actor="test", now=telling.clock.at, secret=SECRET)


def write(telling: Telling, subject_id: str = "7", kind: str = EXTRACTION) -> bool:
    with telling.store.begin() as connection:
        return write_notice(connection, kind, subject_id, PAYLOAD, now=telling.clock.at)


def test_whoever_wants_extractions_is_told_of_each_end_once_and_nobody_else(telling: Telling) -> None:
    given_operator(telling, "ops", "extraction")
    telling.given_follower("ann")

    assert (write(telling), write(telling)) == (True, False)
    with telling.store.read() as connection:
        assert is_work_waiting(connection, now=telling.clock.at)
    telling.clock.advance(minutes=1)
    telling.deliver()
    write(telling)
    telling.deliver()

    [asked] = telling.asked("ops")
    content = json.loads(asked.body)
    assert (content["type"], content["title"]) == ("events", "Shop is complete")
    assert (content["events"][0]["kind"], content["events"][0]["items"]) == ("extraction", 7)
    assert telling.asked("ann") == []


def test_whoever_comes_later_or_wants_another_kind_is_not_told(telling: Telling) -> None:
    given_operator(telling, "recipes", "recipe")
    write(telling)
    telling.clock.advance(minutes=1)
    given_operator(telling, "late", "extraction")

    assert telling.expand().notices == 0
    write(telling, kind=RECIPE)
    assert [row.recipient for row in telling.notices()] == []
    telling.expand()
    assert [row.recipient for row in telling.notices()] == ["recipes"]


def test_whoever_wants_matches_is_told_of_a_listing_once(telling: Telling) -> None:
    given_operator(telling, "me", "job_match")
    given_operator(telling, "ops", "extraction")

    assert (write(telling, "9", JOB_MATCH), write(telling, "9", JOB_MATCH)) == (True, False)
    telling.clock.advance(minutes=1)
    telling.deliver()

    [asked] = telling.asked("me")
    assert json.loads(asked.body)["events"][0]["kind"] == "job_match"
    assert telling.asked("ops") == []


def test_chapters_and_events_that_go_together_are_one_message() -> None:
    chapter = {
        **dict.fromkeys(["title", "language", "url", "published_at", "detected_at"]),
        "series_id": "solo",
        "series_title": "Solo",
        "chapter_id": 1,
        "number": "5",
    }

    message = message_of("d", "ann", [("chapter", chapter), (EXTRACTION, PAYLOAD)], text_chapters=9)

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
def test_a_notice_that_cannot_be_written_is_a_dead_letter_and_its_neighbours_are_sent(
    telling: Telling, broken: dict[str, object]
) -> None:
    given_operator(telling, "ops", "extraction", "recipe")
    write(telling)
    row = {"subject_kind": RECIPE, "subject_id": "75", "created_at": telling.clock.at}
    with telling.store.begin() as connection:
        connection.execute(insert(outbox).values(payload=broken, **row))
    write(telling, "8")
    telling.clock.advance(minutes=1)

    done = telling.deliver()

    assert (done.messages, done.sent, done.failed) == (1, 2, 1)
    [asked] = telling.asked("ops")
    assert [event["kind"] for event in json.loads(asked.body)["events"]] == [EXTRACTION] * 2
    assert telling.states("ops") == ["sent", "failed", "sent"]
    [dead_letter] = letters(telling)
    [bad] = telling.notices(status="failed")
    assert (dead_letter.task_kind, dead_letter.error_code) == ("deliver", "bad_notice")
    assert dead_letter.payload["notices"] == [bad.id]
    assert telling.task("ops").status == "SUCCESS"


@pytest.mark.parametrize("broken", [{}, {"chapter_id": "twelve"}], ids=["empty", "no number"])
def test_a_broken_announcement_of_a_chapter_stops_no_other(telling: Telling, broken: dict[str, object]) -> None:
    telling.given_follower("ann")
    telling.publish(1)
    with telling.store.begin() as connection:
        first = select(outbox.c.id).limit(1).scalar_subquery()
        connection.execute(update(outbox).where(outbox.c.id == first).values(payload=broken))
    telling.publish(2)
    telling.clock.advance(minutes=1)

    telling.deliver()

    assert telling.told("ann") == [["1", "2"]]


def test_a_broken_notice_alone_is_set_aside_and_told_under_a_key_of_its_own_once_it_is_mended(telling: Telling) -> None:
    given_operator(telling, "ops", "extraction", "recipe")
    write(telling)
    write(telling, "9", RECIPE)
    telling.expand()
    whole = telling.notices()[1].payload
    with telling.store.begin() as connection:
        is_bad = notices.c.subject_kind == RECIPE
        connection.execute(update(notices).where(is_bad).values(payload={}))
    telling.clock.advance(minutes=1)
    telling.deliver()

    with telling.store.begin() as connection:
        connection.execute(update(notices).where(is_bad).values(payload=whole))
        replay(connection, letters(telling)[0].id, actor="test", now=telling.clock.at)
    telling.deliver()

    first, second = telling.asked("ops")
    assert [event["kind"] for event in json.loads(second.body)["events"]] == [RECIPE]
    assert first.headers["webhook-id"] != second.headers["webhook-id"]
    assert telling.states("ops") == ["sent", "sent"]


def letters(telling: Telling) -> list[Any]:
    with telling.store.read() as connection:
        return list(connection.execute(select(dead_letters)))


def test_a_notice_without_words_for_people_is_a_mistake(telling: Telling) -> None:
    with telling.store.begin() as connection, pytest.raises(ValueError, match="title"):
        write_notice(connection, RECIPE, "1", {"source_id": "x", "text": "y"}, now=telling.clock.at)


def test_a_recipient_names_the_kinds_in_a_file_and_chapters_are_the_default() -> None:
    raw = {"id": "ops", "address": "notify:"}

    plain, _ = recipient_of(raw)
    asked, _ = recipient_of({**raw, "kinds": ["extraction", "recipe"]})
    _, bad = recipient_of({**raw, "kinds": ["weather"]})

    assert plain is not None
    assert plain.kinds == ("chapter",)
    assert asked is not None
    assert asked.kinds == ("extraction", "recipe")
    assert bad[0].message.startswith("must be a list of: chapter, extraction, recipe, job_match")
    assert "budget" in bad[0].message
