"""Polls that get a blocked page, or something else, instead of a feed."""

import pytest

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.sources.status import reason, watched_source
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import dead_letters, snapshots
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.pages.page_fetches import SHELL
from ingestion_pipeline_tests.polling_runs import a_feed, add_sources, poll, rows, source_row, task_row

CHALLENGE = (
    b"<html><title>Just a moment...</title><body>Verifying you are human."
    b"<script src='/cdn-cgi/challenge-platform/h/g/x.js'></script>"
)
LOGIN = b"<title>Sign in</title><form><input name=u><input type=password></form>"
LIST = {"items": "li", "fields": {"number": "b", "url": "a@href"}}


def add_list_source(store: Store, **config: object) -> None:
    add_sources(store, a_definition(url="http://a.test/solo", platform="html", config=LIST | config))


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        pytest.param(CHALLENGE, "bot_wall", id="a bot wall"),
        pytest.param(Reply(CHALLENGE, 403), "bot_wall", id="a bot wall with 403"),
        pytest.param(LOGIN, "login_wall", id="a login"),
        pytest.param(Reply(LOGIN, 401), "login_wall", id="a login with 401"),
        pytest.param(Reply(LOGIN, 403), "login_wall", id="a login with 403"),
    ],
)
def test_a_blocked_feed_disables_its_source_and_is_not_fetched_again(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock, answer: bytes | Reply, code: str
) -> None:
    add_list_source(store)
    web.routes["/solo"] = answer

    for _ in range(2):
        poll(ctx, web)
        clock.advance(days=9)

    source = source_row(store)
    assert (source.status, source.failure_count, task_row(store).error_code) == (*("disabled", 0), code)
    assert web.paths == ["/solo"]
    with store.read() as connection:
        watched = watched_source(connection, "series:solo")
    assert watched is not None
    explanation = reason(watched.source, watched.poll, now=clock.at, max_attempts=3)
    assert code.replace("_", " ") in explanation


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        pytest.param(b"<title>Page not found</title>Sorry!", "soft_not_found", id="not found"),
        pytest.param(b"%PDF-1.7 ...", "wrong_type", id="a file"),
        pytest.param(SHELL.encode(), "needs_browser", id="an empty shell"),
        pytest.param(b"<title>Solo</title><p>No chapters yet.", "no_items", id="a page"),
    ],
)
def test_a_page_served_instead_of_a_feed_has_its_own_error_code(
    ctx: RunContext, store: Store, web: FakeWeb, answer: bytes, code: str
) -> None:
    add_list_source(store)
    web.routes["/solo"] = answer

    poll(ctx, web)

    [dead_letter] = rows(store, dead_letters)
    assert dead_letter.error_code == code
    assert source_row(store).failure_count == 1
    assert [snapshot.failure for snapshot in rows(store, snapshots)] == [code]


def test_a_list_that_may_be_empty_is_accepted_unless_it_is_blocked(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock
) -> None:
    add_list_source(store, may_be_empty=True)
    web.routes["/solo"] = [b"<title>Solo</title><p>No chapters yet.", LOGIN]

    poll(ctx, web)
    assert source_row(store).status == "active"
    clock.advance(days=9)
    poll(ctx, web)

    assert source_row(store).status == "disabled"


def test_a_401_without_a_form_is_a_failure_and_not_a_login_page(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    """An expired key is no reason to disable its source at once."""
    add_list_source(store)
    web.routes["/solo"] = Reply(b'{"error": "unauthorized"}', 401)

    poll(ctx, web)

    assert [dead_letter.error_code for dead_letter in rows(store, dead_letters)] == ["http_401"]
    assert (source_row(store).status, source_row(store).failure_count) == ("active", 1)


def test_a_plain_403_is_a_block_and_waits_four_hours(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock
) -> None:
    add_list_source(store)
    web.routes["/solo"] = Reply(b"<html><title>Forbidden</title>You may not.", 403)

    poll(ctx, web)

    task = task_row(store)
    assert (task.status, task.error_code) == ("PENDING", "http_403")
    assert (task.not_before - clock.at).total_seconds() >= 4 * 3_600
    assert source_row(store).status == "active"


def test_a_feed_is_never_classified_as_blocked(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    add_sources(store, a_definition(url="http://a.test/solo"))
    web.routes["/solo"] = a_feed(1, note=" Sign in, verify you are human, page not found")

    poll(ctx, web)

    assert source_row(store).status == "active"
    assert rows(store, dead_letters) == []
