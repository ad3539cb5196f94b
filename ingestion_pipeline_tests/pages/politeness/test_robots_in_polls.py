"""robots.txt during polls: fetched once, stored in the host's row, honoured by all runs."""

import asyncio
import gzip
import time
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import select

from ingestion_pipeline.pages.politeness.hosts import Leased, lease_hosts, store_robots
from ingestion_pipeline.sources.declarations import declaration, definition_of
from ingestion_pipeline.sources.files import redeclare
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.status import reason, watched_source
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import audit_log, dead_letters, hosts, sources, tasks
from ingestion_pipeline_tests.fakes import FakeWeb, Reply, WebAnswer, dripping_answer, redirect
from ingestion_pipeline_tests.pages.politeness.polls import Polls, a_source
from ingestion_pipeline_tests.polling_runs import (
    POLLS,
    WorkerJob,
    a_feed,
    add_robots,
    fetch,
    fetch_async,
    poll,
    poll_until_done,
    rows,
    slow_answer,
    task_row,
    wait_until,
    with_settings,
)
from ingestion_pipeline_tests.processes import Child
from ingestion_pipeline_tests.statements import recorded_statements

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
ON_SQLITE = pytest.mark.parametrize("database", ["sqlite"])
# With a NUL, which no URL has and PostgreSQL does not accept.
FORBIDDEN = b"User-agent: *\nDisallow: /a\0b\nDisallow: /private/\nAllow: /private/open"


def serve_robots(web: FakeWeb, answer: WebAnswer) -> None:
    web.routes["/robots.txt"] = answer


def status_reason(store: Store, source_id: str) -> str:
    """Return the reason that `ingest status` shows for the source."""
    with store.read() as connection:
        now = store.clock.now(connection)
        watched = watched_source(connection, source_id)
    assert watched is not None
    return reason(watched.source, watched.poll, now=now, max_attempts=3)


def test_a_disallowed_url_is_never_fetched_and_its_poll_waits_for_new_rules(polls: Polls, clock: FixedClock) -> None:
    serve_robots(polls.web, FORBIDDEN)
    polls.web.routes |= {"/private/1": a_feed(1), "/private/open/2": a_feed(1), "/3": a_feed(1)}
    polls.add(a_source("/private/1"), a_source("/private/open/2"), a_source("/3"))

    fetched = polls.fetch()

    assert sorted(polls.web.paths) == ["/3", "/private/open/2"]
    assert (fetched.counts.changed, fetched.counts.given_back) == (2, 1)
    task = task_row(polls.store, "series:private-1")
    assert (task.status, task.attempts, task.error_code) == ("PENDING", 0, "blocked_by_robots")
    assert task.not_before - clock.at == pytest.approx(DAY, abs=timedelta(seconds=2))
    assert status_reason(polls.store, "series:private-1").startswith(
        "robots.txt of a.test says 'Disallow: /private/': http://a.test/private/1 is not fetched until 2026-03-02"
    )
    assert {source.failure_count for source in rows(polls.store, sources)} == {0}
    assert rows(polls.store, dead_letters) == []


def test_stored_rules_cost_no_request_and_no_statement_until_they_expire(polls: Polls, clock: FixedClock) -> None:
    serve_robots(polls.web, FORBIDDEN)
    polls.web.routes |= {"/private/1": a_feed(1), "/3": Reply(a_feed(1), headers={"ETag": '"a"'})}
    polls.add(a_source("/3"), a_source("/private/1"))
    poll(polls.ctx, polls.web)
    assert len(polls.web.robots_requests) == 1

    clock.advance(hours=23)
    by_hand = replace(POLLS, source_ids=("series:3", "series:private-1"))
    with recorded_statements(polls.store.engine) as calls:
        polled = poll(polls.ctx, polls.web, by_hand)
    statements_sent = [statement for statement, _ in calls]

    assert (polled.counts.unchanged, polled.counts.given_back) == (1, 1)
    assert len(polls.web.robots_requests) == 1
    assert [
        statement for statement in statements_sent if "UPDATE hosts" in statement and "robots_fetched_at" in statement
    ] == []
    assert [statement for statement in statements_sent if "SELECT" in statement and "robots" in statement] == []

    clock.advance(hours=2)
    serve_robots(polls.web, 404)
    assert poll(polls.ctx, polls.web).counts.changed == 1
    assert len(polls.web.robots_requests) == 2
    assert polls.web.paths.count("/private/1") == 1


@pytest.mark.parametrize(
    ("answer", "code"), [(404, None), (403, None), (500, "robots_unavailable"), (429, "robots_unavailable")]
)
def test_a_missing_robots_txt_allows_everything_and_an_unavailable_one_nothing(
    polls: Polls, clock: FixedClock, answer: WebAnswer, code: str | None
) -> None:
    serve_robots(polls.web, answer)
    polls.web.routes |= {"/1": a_feed(1), "/2": a_feed(1)}
    polls.add(a_source("/1"), a_source("/2"))

    polls.fetch()

    assert len(polls.web.robots_requests) == 1
    assert len(polls.web.requests) == (0 if code else 2)
    assert task_row(polls.store, "series:1").error_code == code
    if code:
        assert {task.attempts for task in rows(polls.store, tasks)} == {0}
        assert {source.failure_count for source in rows(polls.store, sources)} == {0}
        assert f"robots.txt answered {answer}: nothing is fetched" in status_reason(polls.store, "series:2")
        serve_robots(polls.web, 404)
        clock.advance(minutes=59)
        fetch(polls.ctx, polls.web, replace(POLLS, source_ids=("series:1",)))
        assert (len(polls.web.robots_requests), polls.web.paths) == (1, [])
        clock.advance(minutes=2)
        assert polls.fetch().counts.changed == 2


@pytest.mark.slow
@ON_SQLITE
@pytest.mark.parametrize(
    ("answer", "allowed"),
    [
        pytest.param(b"User-agent: *\nDisallow: /1\n" + b"#" * 1_000_000, False, id="1 MB"),
        pytest.param(b"#\n" * 300_000 + b"User-agent: *\nDisallow: /1\n", True, id="too late"),
        pytest.param(
            Reply(gzip.compress(b"User-agent: *\nDisallow: /1"), 200, {"Content-Encoding": "gzip"}), False, id="gzip"
        ),
        pytest.param(Reply(b"?", 200, {"Content-Encoding": "lz4"}), False, id="unreadable"),
        pytest.param(redirect("http://b.test/rules"), False, id="another host"),
        pytest.param(redirect("/robots.txt"), True, id="a loop"),
        pytest.param(b"User-agent: tests\nAllow: /\n\nUser-agent: *\nDisallow: /", True, id="us"),
    ],
)
def test_unusual_robots_txt_answers_follow_the_standard(polls: Polls, answer: WebAnswer, allowed: bool) -> None:
    polls.web.routes |= {"a.test/robots.txt": answer, "/1": a_feed(1)}
    polls.web.routes |= {"b.test/rules": b"User-agent: *\nDisallow: /1"}
    polls.add(a_source("/1"))

    for _ in range(2):  # fetched first, then from the stored rules
        poll(polls.ctx, polls.web, replace(POLLS, source_ids=("series:1",)))

    assert polls.web.paths.count("/1") == (2 if allowed else 0)
    assert len([request for request in polls.web.robots_requests if request.host == "a.test"]) == 1


@pytest.mark.slow
@ON_SQLITE
def test_a_dripping_robots_txt_fails_its_poll_and_nothing_is_fetched(polls: Polls) -> None:
    """A host that is down permanently must open its breaker eventually."""
    serve_robots(polls.web, dripping_answer(b"HTTP/1.1 200 OK\r\n\r\n", every_seconds=0.05))
    polls.add(a_source("/1"))
    began = time.monotonic()

    polls.fetch(fetch__deadline_seconds="0.4", work__max_attempts="1")

    assert (polls.web.requests, time.monotonic() - began < 2) == ([], True)
    [dead_letter] = rows(polls.store, dead_letters)
    assert dead_letter.error_code == "timeout"
    assert "http://a.test/robots.txt" in dead_letter.error
    assert rows(polls.store, hosts)[0].lease_owner is None


@ON_SQLITE
def test_a_redirect_to_a_disallowed_url_is_not_followed(polls: Polls) -> None:
    serve_robots(polls.web, FORBIDDEN)
    polls.web.routes |= {"/1": redirect("/private/1"), "/private/1": a_feed(1)}
    polls.add(a_source("/1"))

    polls.fetch()

    assert polls.web.paths == ["/1"]
    assert task_row(polls.store, "series:1").error_code == "blocked_by_robots"


@pytest.mark.slow
def test_a_crawl_delay_spaces_the_requests_of_two_processes(polls: Polls, database_url: str) -> None:
    serve_robots(polls.web, b"User-agent: *\nCrawl-delay: 0.5")
    names = ["/1", "/2", "/3", "/4"]
    polls.web.routes |= {name: a_feed(1) for name in names}
    polls.add(*(a_source(name) for name in names))
    changes = {"polling__slice_seconds": "1", "hosts__lease_seconds": "1"}
    job = WorkerJob(url=database_url, home=polls.ctx.settings.home, port=polls.web.port, changes=changes)

    pair = [Child(poll_until_done, job) for _ in range(2)]
    assert sum(child.result() for child in pair) == 4

    times = sorted(request.at for request in [*polls.web.requests, *polls.web.robots_requests])
    assert (len(polls.web.robots_requests), len(polls.web.requests)) == (1, 4)
    assert min(after - before for before, after in pairwise(times)) >= 0.49
    assert rows(polls.store, hosts)[0].crawl_delay_seconds == 0.5


@pytest.mark.slow
@ON_SQLITE
def test_an_absurd_crawl_delay_is_capped_and_left_to_later_runs(polls: Polls, clock: FixedClock) -> None:
    answer = Reply(b"User-agent: *\nCrawl-delay: 999999", 200, {"Cache-Control": "no-cache"})
    serve_robots(polls.web, answer)
    polls.web.routes |= {"/1": a_feed(1), "/2": a_feed(1)}
    polls.add(a_source("/1"), a_source("/2"))

    first = polls.fetch()
    assert (first.counts.given_back, polls.web.paths) == (2, [])
    assert "delay that the host's robots.txt asks for" in status_reason(polls.store, "series:1")
    clock.advance(seconds=601)
    second = polls.fetch()

    assert (second.counts.changed, second.counts.given_back, len(polls.web.paths)) == (1, 1, 1)
    wait = rows(polls.store, hosts)[0].next_allowed_at - clock.at
    assert wait == pytest.approx(timedelta(seconds=600), abs=timedelta(seconds=2))


def test_a_robots_override_is_fetched_and_its_start_and_end_are_audited(polls: Polls, now: datetime) -> None:
    serve_robots(polls.web, FORBIDDEN)
    polls.web.routes |= {"/private/1": a_feed(1), "/private/2": a_feed(1)}
    overriding = a_source("/private/1", config={"ignore_robots": True})
    polls.add(overriding, a_source("/private/2"))
    polls.add(overriding)

    polls.fetch()
    with polls.store.begin() as connection:
        source = sources_by_id(connection, [overriding.id])[overriding.id]
        honest, _ = definition_of(declaration(source) | {"config": {}})
        assert honest is not None
        redeclare(connection, source, honest, actor="ana", now=now)
        query = select(audit_log.c.actor, audit_log.c.action, audit_log.c.subject)
        audit_rows = [tuple(row) for row in connection.execute(query.order_by(audit_log.c.id))]

    assert (source.ignores_robots, polls.web.paths) == (True, ["/private/1"])
    assert audit_rows[0] == ("system", "source.ignore_robots", overriding.id)
    assert audit_rows[1] == ("ana", "source.honour_robots", overriding.id)
    assert [action for _, action, _ in audit_rows].count("source.ignore_robots") == 1


@ON_SQLITE
def test_robots_txt_of_a_documented_api_is_not_fetched(polls: Polls) -> None:
    config = {"api_base": "http://a.test", "manga_id": "one"}
    polls.add(a_source("/title/one", platform="mangadex", config=config))

    polls.fetch()

    assert (len(polls.web.requests), polls.web.robots_requests) == (1, [])


@ON_SQLITE
def test_rules_stored_for_another_agent_are_fetched_again(polls: Polls) -> None:
    add_robots(polls.store, "a.test", text=b"User-agent: *\nDisallow: /", agent="another/1.0")
    polls.web.routes["/1"] = a_feed(1)
    polls.add(a_source("/1"))

    polls.fetch()

    assert (len(polls.web.robots_requests), polls.web.paths) == (1, ["/1"])


@pytest.mark.slow
@ON_SQLITE
def test_rules_are_stored_with_the_heartbeat_of_a_long_fetch(polls: Polls) -> None:
    """The rules survive a worker that dies later."""
    serve_robots(polls.web, FORBIDDEN)
    polls.web.routes["/1"] = slow_answer(a_feed(1), 2)
    polls.add(a_source("/1"))
    ctx = with_settings(polls.ctx, work__lease_seconds="1")

    async def visit() -> Any:
        run = asyncio.create_task(fetch_async(ctx, polls.web.port))
        await asyncio.to_thread(wait_until, lambda: any(row.robots for row in rows(polls.store, hosts)))
        [row] = rows(polls.store, hosts)
        await run
        return row

    row = asyncio.run(visit())

    assert row.lease_owner is not None
    assert row.robots["http://a.test"]["rules"][-1] == [False, "/private/"]


def test_only_the_lease_owner_stores_the_rules_of_a_host(store: Store, now: datetime) -> None:
    rules_by_host = {"a.test": ({"http://a.test": {"rules": []}}, 2.0)}
    with store.begin() as connection:
        lease_hosts(connection, ["a.test"], owner="one", now=now, lease=HOUR)
        store_robots(connection, rules_by_host, owner="another", now=now)
        before = lease_hosts(connection, ["a.test"], owner="one", now=now, lease=HOUR)
        store_robots(connection, rules_by_host, owner="one", now=now)
        after = lease_hosts(connection, ["a.test"], owner="one", now=now, lease=HOUR)

    assert before == {"a.test": Leased(next_allowed_at=None)}
    assert after == {"a.test": Leased(next_allowed_at=None, robots=rules_by_host["a.test"][0])}
    [row] = rows(store, hosts)
    assert (row.crawl_delay_seconds, row.robots_fetched_at) == (2.0, now)
