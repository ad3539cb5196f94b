"""A redirect to another host: its rules are fetched, its spacing applies, its lease is needed."""

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.pages.politeness.hosts import lease_hosts
from ingestion_pipeline.sources.source import Definition
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import hosts
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.fakes import FakeWeb, Reply, WebAnswer, redirect
from ingestion_pipeline_tests.polling_runs import (
    a_feed,
    add_robots,
    add_sources,
    fetch,
    rows,
    task_row,
    with_settings,
)

pytestmark = pytest.mark.both_databases

ON_SQLITE = pytest.mark.parametrize("database", ["sqlite"])
MINUTE = timedelta(minutes=1)


def a_source(name: str, host: str = "a.test", **changes: Any) -> Definition:
    values = {"id": f"series:{name}", "url": f"http://{host}/{name}", "series": name}
    return a_definition(**(values | changes))


def serve_redirect(web: FakeWeb, *, rules: WebAnswer = 404, target: WebAnswer | None = None) -> None:
    """Redirect /one of a.test to /there of b.test, which has these rules."""
    web.routes |= {"/one": redirect("http://b.test/there"), "b.test/robots.txt": rules}
    web.routes["b.test/there"] = a_feed(1) if target is None else target


def requested_paths(web: FakeWeb, host: str) -> list[str]:
    return [request.path for request in web.requests if request.host == host]


def host_row(store: Store, host: str) -> Any:
    return next(row for row in rows(store, hosts) if row.host == host)


def test_the_target_hosts_rules_are_fetched_and_stored_and_its_lease_is_released(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    serve_redirect(web, rules=b"User-agent: *\nDisallow: /private")
    add_sources(store, a_source("one"))

    _, fetched = fetch(ctx, web)

    assert fetched.counts.changed == 1
    assert requested_paths(web, "b.test") == ["/there"]
    assert [request.host for request in web.robots_requests] == ["a.test", "b.test"]
    row = host_row(store, "b.test")
    assert row.robots["http://b.test"]["rules"] == [[False, "/private"]]
    assert row.lease_owner is None


@ON_SQLITE
@pytest.mark.parametrize(
    ("rules", "code"), [(b"User-agent: *\nDisallow: /there", "blocked_by_robots"), (503, "robots_unavailable")]
)
def test_a_url_that_the_target_host_disallows_is_not_fetched(
    ctx: RunContext, store: Store, web: FakeWeb, rules: WebAnswer, code: str
) -> None:
    serve_redirect(web, rules=rules)
    add_sources(store, a_source("one"))

    fetch(ctx, web)

    assert (requested_paths(web, "a.test"), requested_paths(web, "b.test")) == (["/one"], [])
    task = task_row(store, "series:one")
    assert (task.status, task.attempts, task.error_code) == ("PENDING", 0, code)


@ON_SQLITE
def test_a_source_that_ignores_robots_still_needs_the_lease_of_the_target_host(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    serve_redirect(web, rules=b"User-agent: *\nDisallow: /")
    add_sources(store, a_source("one", config={"ignore_robots": True}))

    fetch(ctx, web)

    assert (requested_paths(web, "b.test"), web.robots_requests) == (["/there"], [])
    assert host_row(store, "b.test").next_allowed_at is not None


def test_a_target_host_leased_by_another_run_is_not_fetched_and_the_poll_is_released(
    ctx: RunContext, store: Store, web: FakeWeb, now: datetime
) -> None:
    serve_redirect(web)
    add_sources(store, a_source("one"))
    with store.begin() as connection:
        lease_hosts(connection, ["b.test"], owner="another", now=now, lease=MINUTE)

    fetch(ctx, web)

    assert (requested_paths(web, "a.test"), requested_paths(web, "b.test")) == (["/one"], [])
    task = task_row(store, "series:one")
    assert (task.status, task.attempts, task.error_code) == ("PENDING", 0, "host_busy")
    assert task.not_before == now + MINUTE
    assert host_row(store, "b.test").requested_at is not None


@pytest.mark.slow
@ON_SQLITE
def test_redirects_from_many_hosts_keep_the_spacing_of_their_target(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    names = ["one", "two", "three"]
    add_robots(store, *(f"{name}.test" for name in names), "b.test")
    web.routes |= {f"/{name}": redirect("http://b.test/there") for name in names}
    web.routes |= {"b.test/there": a_feed(1), "b.test/own": a_feed(1)}
    add_sources(store, *(a_source(name, f"{name}.test") for name in names))
    add_sources(store, a_source("own", "b.test"))

    _, fetched = fetch(with_settings(ctx, hosts__delay_seconds="0.3"), web)

    assert fetched.counts.changed == 4
    times = sorted(request.at for request in web.requests if request.host == "b.test")
    assert len(times) == 4
    assert min(after - before for before, after in pairwise(times)) >= 0.29


@ON_SQLITE
def test_a_pause_of_the_target_host_applies_to_every_source(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock
) -> None:
    serve_redirect(web, target=Reply(b"", 429, {"Retry-After": "600"}))
    add_sources(store, a_source("one"))

    fetch(ctx, web)

    assert task_row(store, "series:one").error_code == "rate_limited"
    wait = host_row(store, "b.test").next_allowed_at - clock.at
    assert wait == pytest.approx(timedelta(seconds=600), abs=timedelta(seconds=5))
    add_sources(store, a_source("own", "b.test"))
    fetch(ctx, web)
    assert requested_paths(web, "b.test") == ["/there"]


@ON_SQLITE
def test_a_long_delay_of_the_target_host_is_not_waited_for(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock
) -> None:
    serve_redirect(web, rules=b"User-agent: *\nCrawl-delay: 20")
    add_sources(store, a_source("one"))

    fetch(ctx, web)

    task = task_row(store, "series:one")
    assert (task.error_code, requested_paths(web, "b.test")) == ("host_busy", [])
    clock.advance(seconds=25)
    assert fetch(ctx, web)[1].counts.changed == 1


@pytest.mark.slow
@ON_SQLITE
def test_every_hop_on_the_same_host_waits_for_its_turn(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    """They once came within a millisecond: a redirect counted as part of the request before it."""
    add_robots(store, "a.test")
    web.routes |= {"/one": redirect("/two"), "/two": redirect("/three"), "/three": a_feed(1)}
    add_sources(store, a_source("one"))

    _, fetched = fetch(with_settings(ctx, hosts__delay_seconds="0.4", fetch__deadline_seconds="0.6"), web)

    assert fetched.counts.changed == 1  # our own waiting does not count against the deadline
    times = [request.at for request in web.requests]
    assert len(times) == 3
    assert min(after - before for before, after in pairwise(times)) >= 0.39


def test_a_redirected_robots_txt_is_not_fetched_while_another_run_leases_its_host(
    ctx: RunContext, store: Store, web: FakeWeb, now: datetime
) -> None:
    web.routes |= {"a.test/robots.txt": redirect("http://b.test/rules"), "/one": a_feed(1)}
    web.routes |= {"b.test/rules": b"User-agent: *\nAllow: /"}
    add_sources(store, a_source("one"))
    with store.begin() as connection:
        lease_hosts(connection, ["b.test"], owner="another", now=now, lease=MINUTE)

    fetch(ctx, web)

    assert (requested_paths(web, "b.test"), requested_paths(web, "a.test")) == ([], [])
    task = task_row(store, "series:one")
    assert (task.status, task.attempts, task.error_code) == ("PENDING", 0, "host_busy")


@pytest.mark.slow
@ON_SQLITE
def test_a_redirected_robots_txt_keeps_the_spacing_of_each_host(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    web.routes |= {"a.test/robots.txt": redirect("/rules"), "a.test/rules": redirect("http://b.test/1")}
    web.routes |= {"b.test/1": redirect("http://b.test/2"), "b.test/2": b"User-agent: *\nAllow: /"}
    web.routes |= {"/one": a_feed(1)}
    add_sources(store, a_source("one"))

    _, fetched = fetch(with_settings(ctx, hosts__delay_seconds="0.3"), web)

    assert fetched.counts.changed == 1
    requests = [*web.requests, *web.robots_requests]
    for host in ("a.test", "b.test"):
        times = sorted(request.at for request in requests if request.host == host)
        assert len(times) >= 2
        assert min(after - before for before, after in pairwise(times)) >= 0.29
    assert host_row(store, "b.test").lease_owner is None
