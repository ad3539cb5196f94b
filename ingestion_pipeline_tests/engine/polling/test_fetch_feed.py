import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from ingestion_pipeline.engine.context import ChangedFeed, FetchState, UnchangedFeed, feed_hash, fetch_feed
from ingestion_pipeline.pages.http.request import Answer, Fetched, Request, Unchanged
from ingestion_pipeline.tasks.errors import Permanent

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
