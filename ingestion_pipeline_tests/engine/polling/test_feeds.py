"""A feed's pages, the refusals a poll meets, and the circuit breaker of its source."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest

from ingestion_pipeline.engine.context import ChangedFeed, FetchState, RunContext, UnchangedFeed, feed_hash, fetch_feed
from ingestion_pipeline.pages.http.request import Answer, Fetched, Request, Unchanged
from ingestion_pipeline.sources.status import reason, watched_source
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import dead_letters, snapshots
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.pages.page_fetches import SHELL
from ingestion_pipeline_tests.polling_runs import (
    a_feed,
    add_sources,
    fetch,
    fetch_async,
    poll,
    rows,
    source_row,
    task_row,
)

URL = "https://a.test/list"


@dataclass
class Pages:
    """A feed whose pages name the next one, and the site that serves them."""

    bodies: Mapping[str, str]
    etag: str | None = '"v1"'
    requests: list[Request] = field(default_factory=list[Request])

    def first_request(self) -> Request:
        return Request(url=URL, accept="text/plain")

    def next_request(self, body: bytes, *, previous: Request, url: str = "") -> Request | None:
        following = body.decode().partition(" next: ")[2]
        return Request(url=following) if following else None

    async def fetch(self, request: Request) -> Answer:
        self.requests.append(request)
        if self.etag is not None and request.etag == self.etag:
            return Unchanged(url=request.url, etag=self.etag, last_modified="today")
        return a_page(self.bodies[request.url], url=request.url, etag=self.etag)

    def read(
        self, state: FetchState | None = None, *, parser_version: str = "rss:1", max_pages: int = 5
    ) -> UnchangedFeed | ChangedFeed:
        return asyncio.run(
            fetch_feed(
                self, state or FetchState(), parser_version=parser_version, fetch=self.fetch, max_pages=max_pages
            )
        )


def a_page(body: str, *, url: str = URL, etag: str | None = '"v1"') -> Fetched:
    return Fetched(
        url=url,
        final_url=url,
        status_code=200,
        body=body.encode(),
        content_type="text/plain",
        etag=etag,
        last_modified="yesterday",
    )


def three_pages(last: str = "three") -> Pages:
    return Pages({URL: "one next: https://a.test/2", "https://a.test/2": "two next: /3", "/3": last})


def state_of(feed: ChangedFeed, *, etag: str | None = None) -> FetchState:
    return FetchState(content_hash=feed.content_hash, etag=etag)


def as_changed(answer: UnchangedFeed | ChangedFeed) -> ChangedFeed:
    assert isinstance(answer, ChangedFeed)
    return answer


def test_a_feed_is_followed_to_its_last_page() -> None:
    pages = three_pages()

    feed = as_changed(pages.read())

    assert [page.body.partition(b" ")[0] for page in feed.pages] == [b"one", b"two", b"three"]
    assert [request.url for request in pages.requests] == [URL, "https://a.test/2", "/3"]


def test_only_the_first_page_is_requested_conditionally() -> None:
    pages = three_pages()

    pages.read(FetchState(content_hash="0" * 64, etag='"old"', last_modified="last week"))

    conditions = [(request.etag, request.last_modified) for request in pages.requests]
    assert conditions == [('"old"', "last week"), (None, None), (None, None)]
    assert pages.requests[0].accept == "text/plain"


def test_a_304_is_an_unchanged_feed_with_its_new_validators() -> None:
    pages = Pages({URL: "one"})

    same = pages.read(FetchState(content_hash="0" * 64, etag='"v1"'))

    assert same == UnchangedFeed(etag='"v1"', last_modified="today")


def test_equal_pages_sent_again_are_an_unchanged_feed() -> None:
    pages = Pages({URL: "one"})
    before = as_changed(pages.read())

    same = pages.read(state_of(before, etag='"v0"'))

    assert same == UnchangedFeed(etag='"v1"', last_modified="yesterday")


def test_many_equal_pages_are_an_unchanged_feed_without_validators() -> None:
    """With the first page's etag, a 304 on page one would hide changes on page two."""
    before = as_changed(three_pages().read())

    same = three_pages().read(state_of(before))

    assert same == UnchangedFeed(etag=None, last_modified=None)


def test_a_change_on_the_last_page_is_detected() -> None:
    before = as_changed(three_pages().read())

    after = three_pages(last="more").read(state_of(before))

    assert as_changed(after).content_hash != before.content_hash


@pytest.mark.parametrize("parser_version", ["rss:2", "rss:1:{}"], ids=["version", "configuration"])
def test_another_parser_version_makes_equal_pages_a_changed_feed(parser_version: str) -> None:
    pages = Pages({URL: "one"})
    before = as_changed(pages.read())

    assert isinstance(pages.read(state_of(before), parser_version=parser_version), ChangedFeed)


def test_the_hash_depends_on_the_page_boundaries() -> None:
    first = feed_hash([a_page("ab"), a_page("c")], parser_version="r")
    other = feed_hash([a_page("a"), a_page("bc")], parser_version="r")

    assert first != other


def test_the_hash_separates_the_parser_version_from_the_pages() -> None:
    assert feed_hash([], parser_version="ab") != feed_hash([a_page("b")], parser_version="a")


def test_as_many_pages_as_allowed_are_read() -> None:
    assert len(as_changed(three_pages().read(max_pages=3)).pages) == 3


def test_more_pages_than_allowed_are_refused_with_the_name_of_the_setting() -> None:
    pages = three_pages()

    with pytest.raises(Permanent, match=r"more than 2 pages.*fetch\.max_pages") as refused:
        pages.read(max_pages=2)

    assert refused.value.code == "too_many_pages"
    assert len(pages.requests) == 2


@pytest.mark.parametrize("max_pages", [1, 2], ids=["too many pages", "bad 304"])
def test_the_error_of_a_refused_feed_contains_no_secret_of_its_url(max_pages: int) -> None:
    class Keyed(Pages):
        def first_request(self) -> Request:
            return Request(url=f"{URL}?api_key=canary")

        async def fetch(self, request: Request) -> Answer:
            if "/2" in request.url:
                return Unchanged(url=request.url, etag=None, last_modified=None)
            return await super().fetch(request)

    with pytest.raises(Permanent, match="api_key") as refused:
        Keyed({f"{URL}?api_key=canary": f"one next: {URL}/2?api_key=canary"}).read(max_pages=max_pages)

    assert "canary" not in str(refused.value)


def test_a_feed_that_links_to_itself_ends_at_the_limit() -> None:
    pages = Pages({URL: f"one next: {URL}"})

    with pytest.raises(Permanent, match="more than 5 pages"):
        pages.read()


def test_a_later_page_that_claims_to_be_unchanged_is_refused() -> None:
    class Odd(Pages):
        async def fetch(self, request: Request) -> Answer:
            if request.url == URL:
                return await super().fetch(request)
            return Unchanged(url=request.url, etag=None, last_modified=None)

    with pytest.raises(Permanent, match="304") as refused:
        Odd(three_pages().bodies).read()

    assert refused.value.code == "bad_304"


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


DAY = timedelta(days=1)


def open_breaker(ctx: RunContext, web: FakeWeb, clock: FixedClock) -> datetime:
    """Let five polls of one source fail and return the time of its probe."""
    add_sources(ctx.store, a_definition(url="http://a.test/1"))
    web.routes["/1"] = 404
    for _ in range(5):
        clock.advance(days=2)
        fetch(ctx, web)
    assert source_row(ctx.store).status == "open"
    web.requests.clear()
    return clock.at + DAY


def probe_with_twenty_workers(ctx: RunContext, web: FakeWeb) -> None:
    async def probe() -> None:
        await asyncio.gather(*(fetch_async(ctx, web.port) for _ in range(20)))

    asyncio.run(probe())


@pytest.mark.slow
def test_an_open_breaker_blocks_requests_for_a_day(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock
) -> None:
    probe_at = open_breaker(ctx, web, clock)
    clock.at = probe_at - timedelta(seconds=1)

    probe_with_twenty_workers(ctx, web)

    assert web.requests == []


@pytest.mark.slow
def test_twenty_workers_send_one_probe_and_its_failure_keeps_the_breaker_open_for_another_day(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock
) -> None:
    open_breaker(ctx, web, clock)
    web.routes["/1"] = 500  # transient: a poll would try three times, a probe does not
    probed_at = clock.advance(days=1, hours=3)

    probe_with_twenty_workers(ctx, web)

    assert web.paths == ["/1"]
    source = source_row(store)
    assert (source.status, source.failure_count) == ("open", 6)
    assert source.next_check_at >= probed_at + DAY
    assert task_row(store).not_before == source.next_check_at


@pytest.mark.slow
def test_a_probe_that_succeeds_closes_the_breaker(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock
) -> None:
    open_breaker(ctx, web, clock)
    web.routes["/1"] = a_feed(1)
    clock.advance(days=1, hours=3)

    poll(ctx, web)

    source = source_row(store)
    assert (source.status, source.failure_count, len(web.requests)) == ("active", 0, 1)
