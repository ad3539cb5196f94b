"""Deliveries: what goes out, what comes back, and what becomes of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta

import pytest
from sqlalchemy import select, update
from standardwebhooks.webhooks import Webhook

from ingestion_pipeline.notices.status import Undelivered, undelivered
from ingestion_pipeline.registry import replay
from ingestion_pipeline.sources.recipients import Mode
from ingestion_pipeline.store import FixedClock
from ingestion_pipeline.store.tables import dead_letters, recipients
from ingestion_pipeline_tests.fakes import Crowd, FakeResolver, FakeWeb, Reply, closed_port, drop, redirect
from ingestion_pipeline_tests.notices.telling import SECRET, Telling
from ingestion_pipeline_tests.pollers import names_of

HOUR = 3_600


def open_dead_letters(telling: Telling) -> list[tuple[str, str, int]]:
    with telling.store.read() as connection:
        query = select(dead_letters).where(dead_letters.c.replayed_at.is_(None))
        return [(row.payload["recipient"], row.error_code, row.attempts) for row in connection.execute(query)]


def dead_letter_ids(telling: Telling) -> list[int]:
    with telling.store.read() as connection:
        return list(connection.execute(select(dead_letters.c.id)).scalars())


def standing(telling: Telling, recipient: str = "ann") -> tuple[int, float | None, str | None]:
    """Failures in a row, seconds until they are served again, and the last error."""
    with telling.store.read() as connection:
        row = connection.execute(select(recipients).where(recipients.c.id == recipient)).one()
    pause = None if row.not_before is None else row.not_before - telling.clock.at
    return row.failures, pause and pause.total_seconds(), row.last_error


def late(telling: Telling) -> Sequence[Undelivered]:
    with telling.store.read() as connection:
        return undelivered(connection, now=telling.clock.at, overdue_seconds=900)


def test_ten_recipients_are_served_at_a_time_and_no_more(telling: Telling, clock: FixedClock) -> None:
    crowd = Crowd(most=10)
    telling.web.routes["/hook"] = crowd
    telling.resolve = names_of(telling.web.port)
    for number in range(13):
        telling.given_follower(f"r{number}", address=f"http://r{number}.test/hook")
    telling.publish(7)
    clock.advance(seconds=15)

    done = telling.deliver()

    assert (done.sent, crowd.peak) == (13, 10)


def test_a_chapter_reaches_its_follower_signed_and_once(telling: Telling, clock: FixedClock) -> None:
    telling.given_follower()
    telling.publish(7)
    clock.advance(seconds=15)

    done = telling.deliver()
    again = telling.deliver()

    assert (done.messages, done.sent, done.delay_seconds) == (1, 1, 15.0)
    assert (again.messages, again.sent) == (0, 0)
    [asked] = telling.asked()
    [row] = telling.notices()
    assert (row.status, row.sent_at, row.delivery_id) == ("sent", clock.at, asked.headers["webhook-id"])
    assert (asked.method, asked.headers["idempotency-key"]) == ("POST", row.delivery_id)
    assert json.loads(asked.body) == {
        "type": "chapters.new",
        "id": row.delivery_id,
        "recipient": "ann",
        "title": "Solo: Chapter 7: Part 7",
        "text": "Solo\n- Chapter 7: Part 7 https://a.test/7/en",
        "count": 1,
        "series": [
            {
                "id": "solo",
                "title": "Solo",
                "chapters": [
                    {
                        "chapter_id": row.payload["chapter_id"],
                        "number": "7",
                        "title": "Part 7",
                        "language": "en",
                        "url": "https://a.test/7/en",
                        "published_at": None,
                        "detected_at": (clock.at - timedelta(seconds=15)).isoformat(),
                    }
                ],
            }
        ],
    }
    assert telling.task().status == "SUCCESS"


def test_the_signature_is_what_others_verify(
    telling: Telling, clock: FixedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    telling.given_follower()
    telling.publish(7)
    clock.advance(seconds=15)
    telling.deliver()

    [asked] = telling.asked()
    receiver = Webhook(SECRET)
    monkeypatch.setattr(receiver, "_Webhook__verify_timestamp", lambda _: clock.at)
    receiver.verify(asked.body, dict(asked.headers))
    with pytest.raises(Exception, match="No matching signature"):
        receiver.verify(asked.body + b" ", dict(asked.headers))


def test_chapters_of_one_window_go_in_one_message_and_the_next_after_an_hour(
    telling: Telling, clock: FixedClock
) -> None:
    telling.given_follower()
    telling.publish(1)
    assert telling.deliver().messages == 0
    clock.advance(seconds=10)
    telling.publish(2)
    clock.advance(seconds=5)
    assert telling.deliver().messages == 1
    telling.publish(3)
    clock.advance(minutes=30)
    telling.publish(4)
    assert telling.deliver().messages == 0

    clock.advance(minutes=30)
    telling.deliver()

    assert telling.told() == [["1", "2"], ["3", "4"]]


def test_a_digest_comes_once_a_day_and_names_everything(telling: Telling, clock: FixedClock) -> None:
    telling.given_follower("ann", "solo", "other", mode=Mode.DIGEST)
    for number in range(1, 4):
        telling.publish(number)
        telling.publish(number, series_id="other")
        clock.advance(hours=8)
        telling.deliver()

    assert telling.told() == [["solo/1", "solo/2", "solo/3", "other/1", "other/2", "other/3"]]


def test_a_message_that_fails_five_times_is_failed_visible_and_replayed_under_its_key(
    telling: Telling, clock: FixedClock, web: FakeWeb
) -> None:
    telling.given_follower()
    web.routes["/ann"] = 500
    telling.publish(7, 8)
    for attempt in range(1, 6):
        clock.advance(minutes=2)
        telling.deliver()
        assert len(telling.asked()) == attempt
    clock.advance(minutes=2)
    telling.deliver()

    assert len(telling.asked()) == 5
    assert telling.states() == ["failed", "failed"]
    assert "answered 500" in telling.notices()[0].error
    assert open_dead_letters(telling) == [("ann", "http_500", 5)]
    failures, pause, error = standing(telling)
    assert (failures, pause) == (1, HOUR - 120)
    assert "answered 500" in (error or "")

    web.routes["/ann"] = 200
    with telling.store.begin() as connection:
        [dead_letter_id] = dead_letter_ids(telling)
        assert replay(connection, dead_letter_id, actor="me", now=clock.at) == "queued"
    telling.deliver()

    assert telling.states() == ["sent", "sent"]
    assert open_dead_letters(telling) == []
    assert standing(telling) == (0, None, None)
    assert len({one.headers["webhook-id"] for one in telling.asked()}) == 1
    assert len({one.body for one in telling.asked()}) == 1
    assert len(telling.asked()) == 6


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (400, "http_400", "answered 400"),
        (403, "http_403", "check that it has the secret"),
        (410, "http_410", "recipients remove"),
        (redirect("http://hooks.test/elsewhere"), "http_302", "give the final address"),
    ],
    ids=["400", "403", "410", "a redirect"],
)
def test_what_will_not_pass_by_waiting_fails_at_once(
    telling: Telling, clock: FixedClock, web: FakeWeb, answer: int | Reply, code: str, said: str
) -> None:
    telling.given_follower()
    web.routes["/ann"] = answer
    telling.publish(7)
    clock.advance(seconds=15)

    assert telling.deliver().failed == 1

    assert telling.states() == ["failed"]
    assert said in telling.notices()[0].error
    assert open_dead_letters(telling) == [("ann", code, 1)]
    assert web.paths == ["/ann"]


def test_who_asks_for_patience_is_given_it_and_no_attempt_is_counted(
    telling: Telling, clock: FixedClock, web: FakeWeb
) -> None:
    telling.given_follower()
    busy = Reply(b"", 429, {"Retry-After": "600"})
    web.routes["/ann"] = [*[busy] * 7, 200]
    telling.publish(7)
    clock.advance(seconds=15)
    for asked in range(1, 8):
        telling.deliver()
        assert len(telling.asked()) == asked
        clock.advance(seconds=599)
        assert telling.deliver().messages == 0
        clock.advance(seconds=1)
    assert [(one.recipient, one.overdue) for one in late(telling)] == [("ann", 1)]
    assert "answered 429" in str(late(telling)[0].error)

    assert telling.deliver().messages == 1
    assert late(telling) == []
    assert len({one.headers["webhook-id"] for one in telling.asked()}) == 1


def test_a_dead_endpoint_is_left_alone_while_others_are_served_and_loses_nothing(
    telling: Telling, clock: FixedClock, web: FakeWeb
) -> None:
    telling = telling.under(max_attempts=1)
    telling.given_follower("dead")
    telling.given_follower("ann")
    web.routes["/dead"] = drop
    telling.publish(1)
    clock.advance(seconds=15)
    done = telling.deliver()
    assert (done.messages, done.failed) == (1, 1)

    clock.advance(minutes=59)
    telling.publish(2)
    clock.advance(seconds=15)
    telling.deliver()
    assert (len(telling.asked("dead")), len(telling.asked("ann"))) == (1, 1)
    assert telling.states("dead") == ["failed", "pending"]

    clock.advance(hours=1)
    telling.deliver()
    assert (len(telling.asked("dead")), telling.told("ann")) == (2, [["1"], ["2"]])
    assert standing(telling, "dead")[:2] == (2, 2 * HOUR)

    web.routes["/dead"] = 200
    telling.publish(3)
    clock.advance(hours=2)
    telling.deliver()
    assert telling.states("dead") == ["failed", "failed", "sent"]
    assert standing(telling, "dead") == (0, None, None)


def test_a_pause_never_grows_beyond_its_limit(telling: Telling, clock: FixedClock) -> None:
    telling = telling.under(max_attempts=1)
    telling.given_follower("ann", address=f"http://127.0.0.1:{closed_port()}/")
    with telling.store.begin() as connection:
        connection.execute(update(recipients).values(failures=70))
    telling.publish(1)
    clock.advance(seconds=15)

    telling.deliver()

    assert standing(telling)[:2] == (71, 24 * HOUR)


def test_a_followers_private_address_is_refused_without_a_connection(
    telling: Telling, clock: FixedClock, web: FakeWeb
) -> None:
    telling.resolve = FakeResolver({"evil.test": [["127.0.0.1"]]})
    telling.given_follower(address=f"http://evil.test:{web.port}/ann")
    telling.publish(1)
    clock.advance(seconds=15)

    telling.deliver()

    assert telling.states() == ["failed"]
    assert open_dead_letters(telling) == [("ann", "blocked_address", 1)]
    assert web.connections == 0


def test_a_new_notice_wakes_a_recipient_who_waits_for_later_but_no_pause(telling: Telling, clock: FixedClock) -> None:
    telling.given_follower("ann", "solo", "other")
    telling.publish(1)
    clock.advance(seconds=15)
    telling.deliver()
    named_at = clock.at
    telling.publish(2)
    clock.advance(seconds=15)
    telling.deliver()
    assert telling.task().not_before == named_at + timedelta(hours=1)

    clock.advance(minutes=1)
    telling.publish(1, series_id="other")
    clock.advance(seconds=15)
    telling.deliver()

    assert telling.told() == [["1"], ["1"]]


def test_a_task_that_was_lost_is_made_again_from_what_waits(telling: Telling, clock: FixedClock) -> None:
    telling.given_follower()
    telling.publish(1)
    telling.deliver()
    with telling.store.begin() as connection:
        connection.exec_driver_sql("DELETE FROM tasks WHERE kind = 'deliver'")
    clock.advance(seconds=15)

    assert telling.deliver().messages == 1


def test_a_deliverer_that_died_at_every_attempt_is_not_tried_for_ever(telling: Telling, clock: FixedClock) -> None:
    telling.given_follower()
    telling.publish(1)
    clock.advance(seconds=15)
    telling.expand()
    telling.deliver(concurrency=1, grouping_seconds=3_600)  # makes the task, sends nothing
    with telling.store.begin() as connection:
        connection.exec_driver_sql("UPDATE notices SET delivery_id = 'd-1'")
        connection.exec_driver_sql("UPDATE tasks SET attempts = 5 WHERE kind = 'deliver'")
    clock.advance(hours=1)

    telling.deliver()

    assert (telling.asked(), telling.states()) == ([], ["failed"])
    assert open_dead_letters(telling) == [("ann", "worker_lost", 6)]
