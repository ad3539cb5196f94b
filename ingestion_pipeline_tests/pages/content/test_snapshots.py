"""Page snapshots as rows and objects: one row per URL and content, looked up in bulk."""

from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.pages.content.snapshots import SnapshotArchive, write_page_snapshots
from ingestion_pipeline.pages.visits.page import KnownPage, NewPage, SamePage, links_hash
from ingestion_pipeline.reading.html.markdown import MARKDOWN_VERSION
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import snapshots
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.polling_runs import rows
from ingestion_pipeline_tests.statements import recorded_statements

pytestmark = pytest.mark.both_databases

HOUR = timedelta(hours=1)
URL = "https://a.test/jobs"


def a_page(url: str = URL, text: str = "Baker", **changes: Any) -> NewPage:
    body = f"<p>{text}".encode()
    values: dict[str, Any] = {
        "url": url,
        "final_url": url,
        "canonical_url": None,
        "status_code": 200,
        "content_type": "text/html",
        "etag": '"1"',
        "last_modified": None,
        "body": body,
        "served_hash": sha256(body).hexdigest(),
        "content_hash": f"hash of {text}",
        "text": text.encode(),
        "markdown": f"# {text}".encode(),
        "links": (),
    }
    return NewPage(**(values | changes))


def write_pages(ctx: RunContext, *pages: NewPage, hours: int = 0) -> list[int]:
    now = NOON + hours * HOUR
    stored = SnapshotArchive(ctx.store, ctx.content).store([("catalog:a", page) for page in pages], now=now)
    with ctx.store.begin() as connection:
        return write_page_snapshots(connection, stored, now=now)


def known_by_url(ctx: RunContext, *urls: str) -> dict[str, KnownPage]:
    with ctx.store.read() as connection:
        return SnapshotArchive(ctx.store, ctx.content).known_pages(connection, urls)


def test_a_page_is_a_row_with_an_object_for_each_form_of_it(ctx: RunContext, store: Store) -> None:
    page = a_page(screenshot=b"png", is_rendered=True, canonical_url=URL + "?a")

    [id_] = write_pages(ctx, page)

    [row] = rows(store, snapshots)
    assert (row.id, row.url, row.content_hash) == (id_, URL, "hash of Baker")
    assert (row.source_id, row.canonical_url, row.rendered_at) == ("catalog:a", URL + "?a", NOON)
    objects = (row.body_hash, row.text_hash, row.markdown_hash, row.screenshot_hash)
    assert [ctx.content.get(name) for name in objects] == [b"<p>Baker", b"Baker", b"# Baker", b"png"]
    assert (row.markdown_version, row.size_bytes) == (MARKDOWN_VERSION, 8)


def test_missing_forms_of_a_page_are_null(ctx: RunContext, store: Store) -> None:
    write_pages(ctx, a_page(markdown=None, text=""))

    [row] = rows(store, snapshots)
    assert (row.markdown_hash, row.markdown_version, row.screenshot_hash) == (None, None, None)
    assert ctx.content.get(row.text_hash) == b""


def test_a_page_is_known_by_its_newest_content_even_if_it_had_it_before(ctx: RunContext, store: Store) -> None:
    [first] = write_pages(ctx, a_page(text="A"))
    [second] = write_pages(ctx, a_page(text="B"), hours=1)
    assert known_by_url(ctx, URL)[URL].snapshot_id == second

    newest = write_pages(ctx, a_page(text="A", etag='"3"'), hours=2)

    assert newest == [first]
    assert len(rows(store, snapshots)) == 2
    assert known_by_url(ctx, URL)[URL] == KnownPage(
        snapshot_id=first,
        content_hash="hash of A",
        final_url=URL,
        fetched_at=NOON + timedelta(hours=2),
        served_hash=sha256(b"<p>A").hexdigest(),
        etag='"3"',
        links_hash=links_hash([]),
    )


@pytest.mark.slow
def test_hundreds_of_pages_are_one_statement_each_way(ctx: RunContext, store: Store) -> None:
    urls = [f"https://a.test/{number}?q=" + "x" * 5_000 for number in range(300)]
    pages = [a_page(url, text=str(number)) for number, url in enumerate(urls)]
    stored = SnapshotArchive(ctx.store, ctx.content).store([(None, page) for page in (*pages, pages[7])], now=NOON)
    with store.begin() as connection, recorded_statements(connection) as statements:
        ids = write_page_snapshots(connection, stored, now=NOON)
        pages_by_url = SnapshotArchive(ctx.store, ctx.content).known_pages(connection, urls)

    assert len(statements) == 2
    assert [pages_by_url[url].snapshot_id for url in urls] == ids[:-1]
    assert ids[-1] == ids[7]
    assert len(set(ids)) == 300


def test_links_and_rendering_options_are_stored_with_the_page(ctx: RunContext) -> None:
    discovered = ("https://a.test/é?a=1", "https://a.test/2")
    rendered = a_page(is_rendered=True, discovered=discovered, rendering_hash="recipe", links=(URL,))
    write_pages(ctx, rendered, a_page(URL + "/plain"))

    archive = SnapshotArchive(ctx.store, ctx.content)
    page, plain = map(known_by_url(ctx, URL, URL + "/plain").__getitem__, (URL, URL + "/plain"))

    assert (page.links_hash, page.rendering_hash) == (links_hash((URL, *discovered)), "recipe")
    assert archive.stored(page).links == discovered
    assert (archive.stored(plain).links, plain.rendering_hash) == (None, None)


@pytest.mark.parametrize("form", ["body_hash", "text_hash", "markdown_hash", "screenshot_hash"])
@pytest.mark.parametrize("database", ["sqlite"])
def test_a_page_with_a_missing_object_is_unknown_until_it_is_stored_again(ctx: RunContext, form: str) -> None:
    page = a_page(screenshot=b"png")
    write_pages(ctx, a_page(text="older"))
    write_pages(ctx, page, hours=1)
    lost = next(getattr(row, form) for row in rows(ctx.store, snapshots) if row.screenshot_hash)

    (ctx.settings.home / "content" / lost[:2] / lost[2:]).unlink()

    assert known_by_url(ctx, URL) == {}  # not even by its earlier content
    write_pages(ctx, page, hours=2)
    assert known_by_url(ctx, URL)[URL].content_hash == page.content_hash


def test_other_urls_and_feeds_are_not_known_pages(ctx: RunContext, store: Store) -> None:
    write_pages(ctx, a_page())
    with store.begin() as connection:
        connection.execute(snapshots.update().values(text_hash=None))

    assert known_by_url(ctx, URL, "https://a.test/other") == {}


def test_an_unchanged_page_writes_only_its_new_validators(ctx: RunContext, store: Store) -> None:
    write_pages(ctx, a_page())
    before = known_by_url(ctx, URL)[URL]
    same = SamePage(url=URL, known_page=before, etag='"1"', last_modified=None, served_hash=before.served_hash)

    archive = SnapshotArchive(ctx.store, ctx.content)
    with store.begin() as connection:
        assert archive.renew(connection, [same]) == 0
        assert archive.renew(connection, [replace(same, etag='"2"', served_hash="other")]) == 1

    after = known_by_url(ctx, URL)[URL]
    assert after == replace(before, etag='"2"', served_hash="other")
    assert len(rows(store, snapshots)) == 1


def test_storing_no_pages_runs_no_statement(ctx: RunContext, store: Store) -> None:
    with store.begin() as connection:
        assert write_page_snapshots(connection, [], now=NOON) == []
        assert SnapshotArchive(ctx.store, ctx.content).renew(connection, []) == 0
