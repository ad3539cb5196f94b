"""Deliveries: messages, answers, retries, pauses and dead letters."""

import json
from collections.abc import Sequence
from datetime import timedelta

import pytest
from sqlalchemy import select, update
from standardwebhooks.webhooks import Webhook

from ingestion_pipeline.notices.queries import Undelivered, undelivered
from ingestion_pipeline.registry import replay
from ingestion_pipeline.sources.source import Mode
from ingestion_pipeline.store import FixedClock
from ingestion_pipeline.store.tables import dead_letters, recipients
from ingestion_pipeline_tests.fakes import ConcurrencyProbe, FakeResolver, FakeWeb, Reply, closed_port, drop, redirect
from ingestion_pipeline_tests.notices.notice_harness import SECRET, NoticeHarness
from ingestion_pipeline_tests.polling_runs import loopback_resolver, rows

pytestmark = pytest.mark.both_databases

HOUR = 3_600


def open_dead_letters(harness: NoticeHarness) -> list[tuple[str, str, int]]:
    with harness.store.read() as connection:
        query = select(dead_letters).where(dead_letters.c.replayed_at.is_(None))
        return [(row.payload["recipient"], row.error_code, row.attempts) for row in connection.execute(query)]


def recipient_status(harness: NoticeHarness, recipient: str = "ann") -> tuple[int, float | None, str | None]:
    """Return consecutive failures, seconds until the next delivery, and the last error."""
    with harness.store.read() as connection:
        row = connection.execute(select(recipients).where(recipients.c.id == recipient)).one()
    pause = None if row.not_before is None else row.not_before - harness.clock.at
    return row.failures, pause and pause.total_seconds(), row.last_error


def overdue(harness: NoticeHarness) -> Sequence[Undelivered]:
    with harness.store.read() as connection:
        return undelivered(connection, now=harness.clock.at, overdue_seconds=900)


@pytest.mark.slow
def test_ten_recipients_are_served_at_a_time_and_no_more(harness: NoticeHarness) -> None:
    probe = ConcurrencyProbe(most=10)
    harness.web.routes["/hook"] = probe
    harness.resolve = loopback_resolver(harness.web.port)
    for number in range(13):
        harness.add_follower(f"r{number}", address=f"http://r{number}.test/hook")
    harness.publish(7)

    delivered = harness.deliver_after(seconds=15)

    assert (delivered.sent, probe.peak) == (13, 10)


def test_a_chapter_reaches_its_follower_signed_and_once(harness: NoticeHarness, clock: FixedClock) -> None:
    harness.add_follower()
    harness.publish(7)

    first = harness.deliver_after(seconds=15)
    second = harness.deliver()

    assert (first.messages, first.sent, first.delay_seconds) == (1, 1, 15.0)
    assert (second.messages, second.sent) == (0, 0)
    [request] = harness.requests_to()
    [row] = harness.notices()
    assert (row.status, row.sent_at, row.delivery_id) == ("sent", clock.at, request.headers["webhook-id"])
    assert (request.method, request.headers["idempotency-key"]) == ("POST", row.delivery_id)
    assert json.loads(request.body) == {
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
    assert harness.task().status == "SUCCESS"


def test_the_signature_passes_the_standard_webhooks_verifier(
    harness: NoticeHarness, clock: FixedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.add_follower()
    harness.publish(7)
    harness.deliver_after(seconds=15)

    [request] = harness.requests_to()
    receiver = Webhook(SECRET)
    monkeypatch.setattr(receiver, "_Webhook__verify_timestamp", lambda _: clock.at)
    receiver.verify(request.body, dict(request.headers))
    with pytest.raises(Exception, match="No matching signature"):
        receiver.verify(request.body + b" ", dict(request.headers))


def test_chapters_of_one_window_go_in_one_message_and_the_next_after_an_hour(harness: NoticeHarness) -> None:
    harness.add_follower()
    harness.publish(1)
    assert harness.deliver().messages == 0
    harness.clock.advance(seconds=10)
    harness.publish(2)
    assert harness.deliver_after(seconds=5).messages == 1
    harness.publish(3)
    harness.clock.advance(minutes=30)
    harness.publish(4)
    assert harness.deliver().messages == 0

    harness.deliver_after(minutes=30)

    assert harness.delivered_chapters() == [["1", "2"], ["3", "4"]]


def test_a_digest_is_sent_once_a_day_and_lists_everything(harness: NoticeHarness) -> None:
    harness.add_follower("ann", "solo", "other", mode=Mode.DIGEST)
    for number in range(1, 4):
        harness.publish(number)
        harness.publish(number, series_id="other")
        harness.deliver_after(hours=8)

    assert harness.delivered_chapters() == [["solo/1", "solo/2", "solo/3", "other/1", "other/2", "other/3"]]


@pytest.mark.slow
def test_a_message_that_fails_five_times_is_dead_lettered_and_replayed_under_its_key(harness: NoticeHarness) -> None:
    harness.add_follower()
    harness.web.routes["/ann"] = 500
    harness.publish(7, 8)
    for attempt in range(1, 6):
        harness.deliver_after(minutes=2)
        assert len(harness.requests_to()) == attempt
    harness.deliver_after(minutes=2)

    assert len(harness.requests_to()) == 5
    assert harness.states() == ["failed", "failed"]
    assert "answered 500" in harness.notices()[0].error
    assert open_dead_letters(harness) == [("ann", "http_500", 5)]
    failures, pause, error = recipient_status(harness)
    assert (failures, pause) == (1, HOUR - 120)
    assert "answered 500" in (error or "")

    harness.web.routes["/ann"] = 200
    with harness.store.begin() as connection:
        [dead_letter_id] = [row.id for row in rows(harness.store, dead_letters)]
        assert replay(connection, dead_letter_id, actor="me", now=harness.clock.at) == "queued"
    harness.deliver()

    assert harness.states() == ["sent", "sent"]
    assert open_dead_letters(harness) == []
    assert recipient_status(harness) == (0, None, None)
    assert len({request.headers["webhook-id"] for request in harness.requests_to()}) == 1
    assert len({request.body for request in harness.requests_to()}) == 1
    assert len(harness.requests_to()) == 6


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        (400, "http_400", "answered 400"),
        (403, "http_403", "check that it has the secret"),
        (410, "http_410", "recipients remove"),
        (redirect("http://hooks.test/elsewhere"), "http_302", "give the final address"),
    ],
    ids=["400", "403", "410", "a redirect"],
)
def test_a_permanent_refusal_fails_at_once(
    harness: NoticeHarness, web: FakeWeb, answer: int | Reply, code: str, message: str
) -> None:
    harness.add_follower()
    web.routes["/ann"] = answer
    harness.publish(7)

    assert harness.deliver_after(seconds=15).failed == 1

    assert harness.states() == ["failed"]
    assert message in harness.notices()[0].error
    assert open_dead_letters(harness) == [("ann", code, 1)]
    assert web.paths == ["/ann"]


@pytest.mark.slow
def test_retry_after_is_honoured_and_costs_no_attempt(harness: NoticeHarness, clock: FixedClock, web: FakeWeb) -> None:
    harness.add_follower()
    busy = Reply(b"", 429, {"Retry-After": "600"})
    web.routes["/ann"] = [*[busy] * 7, 200]
    harness.publish(7)
    clock.advance(seconds=15)
    for attempt in range(1, 8):
        harness.deliver()
        assert len(harness.requests_to()) == attempt
        assert harness.deliver_after(seconds=599).messages == 0
        clock.advance(seconds=1)
    assert [(row.recipient, row.overdue) for row in overdue(harness)] == [("ann", 1)]
    assert "answered 429" in str(overdue(harness)[0].error)

    assert harness.deliver().messages == 1
    assert overdue(harness) == []
    assert len({request.headers["webhook-id"] for request in harness.requests_to()}) == 1


@pytest.mark.slow
def test_a_dead_endpoint_is_paused_while_others_are_served_and_loses_nothing(harness: NoticeHarness) -> None:
    harness = harness.with_limits(max_attempts=1)
    harness.add_follower("dead")
    harness.add_follower("ann")
    harness.web.routes["/dead"] = drop
    harness.publish(1)
    delivered = harness.deliver_after(seconds=15)
    assert (delivered.messages, delivered.failed) == (1, 1)

    harness.clock.advance(minutes=59)
    harness.publish(2)
    harness.deliver_after(seconds=15)
    assert (len(harness.requests_to("dead")), len(harness.requests_to("ann"))) == (1, 1)
    assert harness.states("dead") == ["failed", "pending"]

    harness.deliver_after(hours=1)
    assert (len(harness.requests_to("dead")), harness.delivered_chapters("ann")) == (2, [["1"], ["2"]])
    assert recipient_status(harness, "dead")[:2] == (2, 2 * HOUR)

    harness.web.routes["/dead"] = 200
    harness.publish(3)
    harness.deliver_after(hours=2)
    assert harness.states("dead") == ["failed", "failed", "sent"]
    assert recipient_status(harness, "dead") == (0, None, None)


def test_a_pause_never_grows_beyond_its_limit(harness: NoticeHarness) -> None:
    harness = harness.with_limits(max_attempts=1)
    harness.add_follower("ann", address=f"http://127.0.0.1:{closed_port()}/")
    with harness.store.begin() as connection:
        connection.execute(update(recipients).values(failures=70))
    harness.publish(1)

    harness.deliver_after(seconds=15)

    assert recipient_status(harness)[:2] == (71, 24 * HOUR)


def test_a_followers_private_address_is_refused_without_a_connection(harness: NoticeHarness, web: FakeWeb) -> None:
    harness.resolve = FakeResolver({"evil.test": [["127.0.0.1"]]})
    harness.add_follower(address=f"http://evil.test:{web.port}/ann")
    harness.publish(1)

    harness.deliver_after(seconds=15)

    assert harness.states() == ["failed"]
    assert open_dead_letters(harness) == [("ann", "blocked_address", 1)]
    assert web.connections == 0


def test_a_new_notice_advances_a_rate_limited_delivery(harness: NoticeHarness, clock: FixedClock) -> None:
    harness.add_follower("ann", "solo", "other")
    harness.publish(1)
    harness.deliver_after(seconds=15)
    sent_at = clock.at
    harness.publish(2)
    harness.deliver_after(seconds=15)
    assert harness.task().not_before == sent_at + timedelta(hours=1)

    clock.advance(minutes=1)
    harness.publish(1, series_id="other")
    harness.deliver_after(seconds=15)

    assert harness.delivered_chapters() == [["1"], ["1"]]


def test_a_lost_task_is_created_again_from_pending_notices(harness: NoticeHarness) -> None:
    harness.add_follower()
    harness.publish(1)
    harness.deliver()
    with harness.store.begin() as connection:
        connection.exec_driver_sql("DELETE FROM tasks WHERE kind = 'deliver'")

    assert harness.deliver_after(seconds=15).messages == 1


def test_a_delivery_whose_worker_was_lost_at_every_attempt_is_dead_lettered(harness: NoticeHarness) -> None:
    harness.add_follower()
    harness.publish(1)
    harness.clock.advance(seconds=15)
    harness.expand()
    harness.deliver(concurrency=1, grouping_seconds=3_600)  # creates the task, sends nothing
    with harness.store.begin() as connection:
        connection.exec_driver_sql("UPDATE notices SET delivery_id = 'd-1'")
        connection.exec_driver_sql("UPDATE tasks SET attempts = 5, suspicion = 3 WHERE kind = 'deliver'")

    harness.deliver_after(hours=1)

    assert (harness.requests_to(), harness.states()) == ([], ["failed"])
    assert open_dead_letters(harness) == [("ann", "worker_lost", 5)]
