"""Pages as rows and objects: one row per address and content, found again by hundreds."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import event, func, select

from ingestion_pipeline.pages.page import KnownPage, NewPage, SamePage
from ingestion_pipeline.pages.snapshots import keep_pages, known_pages, renew_pages, store_pages
from ingestion_pipeline.pages.workshop import Workshop
from ingestion_pipeline.reading.markdown import MARKDOWN_VERSION
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import snapshots
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.pollers import rows

HOUR = timedelta(hours=1)
URL = "https://a.test/jobs"


def a_page(url: str = URL, text: str = "Baker", **changes: Any) -> NewPage:
    values: dict[str, Any] = {
        "url": url,
        "final_url": url,
        "canonical_url": None,
        "status_code": 200,
        "content_type": "text/html",
        "etag": '"1"',
        "last_modified": None,
        "body": f"<p>{text}".encode(),
        "served_hash": f"served {text}",
        "content_hash": f"hash of {text}",
        "text": text,
        "markdown": f"# {text}",
        "links": (),
    }
    return NewPage(**(values | changes))


def kept(shop: Workshop, *pages: NewPage, hours: int = 0) -> list[int]:
    now = NOON + hours * HOUR
    stored = store_pages(shop.content, [("catalog:a", page) for page in pages], now=now)
    with shop.store.begin() as connection:
        return keep_pages(connection, stored, now=now)


def known(store: Store, *urls: str) -> dict[str, KnownPage]:
    with store.read() as connection:
        return known_pages(connection, urls)


def test_a_page_is_a_row_with_an_object_for_each_form_of_it(shop: Workshop, store: Store) -> None:
    page = a_page(screenshot=b"png", is_rendered=True, canonical_url=URL + "?a")

    [id_] = kept(shop, page)

    [row] = rows(store, snapshots)
    assert (row.id, row.url, row.content_hash) == (id_, URL, "hash of Baker")
    assert (row.source_id, row.canonical_url, row.rendered_at) == ("catalog:a", URL + "?a", NOON)
    objects = (row.body_hash, row.text_hash, row.markdown_hash, row.screenshot_hash)
    assert [shop.content.get(one) for one in objects] == [b"<p>Baker", b"Baker", b"# Baker", b"png"]
    assert (row.markdown_version, row.size_bytes) == (MARKDOWN_VERSION, 8)


def test_what_a_page_does_not_have_is_null(shop: Workshop, store: Store) -> None:
    kept(shop, a_page(markdown=None, text=""))

    [row] = rows(store, snapshots)
    assert (row.markdown_hash, row.markdown_version, row.screenshot_hash) == (None, None, None)
    assert shop.content.get(row.text_hash) == b""


def test_a_page_is_known_by_its_newest_content_even_if_it_had_it_before(
    shop: Workshop, store: Store
) -> None:
    [first] = kept(shop, a_page(text="A"))
    [second] = kept(shop, a_page(text="B"), hours=1)
    assert known(store, URL)[URL].snapshot_id == second

    again = kept(shop, a_page(text="A", etag='"3"'), hours=2)

    assert again == [first]
    assert len(rows(store, snapshots)) == 2
    assert known(store, URL)[URL] == KnownPage(
        snapshot_id=first, content_hash="hash of A", served_hash="served A", etag='"3"'
    )


def test_hundreds_of_pages_are_one_statement_each_way(shop: Workshop, store: Store) -> None:
    urls = [f"https://a.test/{number}?q=" + "x" * 5_000 for number in range(300)]
    pages = [a_page(url, text=str(number)) for number, url in enumerate(urls)]
    stored = store_pages(shop.content, [(None, page) for page in (*pages, pages[7])], now=NOON)
    said: list[str] = []
    with store.begin() as connection:
        event.listen(connection, "before_cursor_execute", lambda *a: said.append(a[2]))
        ids = keep_pages(connection, stored, now=NOON)
        found = known_pages(connection, urls)

    assert len(said) == 2
    assert [found[url].snapshot_id for url in urls] == ids[:-1]
    assert ids[-1] == ids[7]
    assert len(set(ids)) == 300


def test_nothing_is_known_of_others_and_a_listing_is_no_page(shop: Workshop, store: Store) -> None:
    kept(shop, a_page())
    with store.begin() as connection:
        connection.execute(snapshots.update().values(text_hash=None))

    assert known(store, URL, "https://a.test/other") == {}


def test_a_page_that_says_the_same_writes_only_other_validators(
    shop: Workshop, store: Store
) -> None:
    kept(shop, a_page())
    before = known(store, URL)[URL]
    same = SamePage(
        url=URL, known=before, etag='"1"', last_modified=None, served_hash="served Baker"
    )

    with store.begin() as connection:
        assert renew_pages(connection, [same]) == 0
        assert renew_pages(connection, [replace(same, etag='"2"', served_hash="other")]) == 1

    after = known(store, URL)[URL]
    assert after == replace(before, etag='"2"', served_hash="other")
    with store.read() as connection:
        assert connection.execute(select(func.count()).select_from(snapshots)).scalar() == 1


def test_keeping_no_page_asks_nothing(store: Store) -> None:
    with store.begin() as connection:
        assert keep_pages(connection, [], now=NOON) == []
        assert renew_pages(connection, []) == 0
