"""What a run remembers of pages that are in the database: a hint, and never more than so much."""

from __future__ import annotations

from ingestion_pipeline.engine.crawling.protocol import KnownPages


def test_what_one_walk_knows_is_news_to_another() -> None:
    known = KnownPages()
    known.add(1, {"/a", "/b"})

    assert set(known.of(1)) == {"/a", "/b"}
    assert set(known.of(2)) == set()


def test_it_forgets_all_rather_than_grow() -> None:
    known = KnownPages(most=3)
    known.add(1, {"/a", "/b"})
    known.add(1, {"/b"})
    known.add(2, {"/c", "/d"})

    assert set(known.of(1)) == set()
    assert set(known.of(2)) == {"/c", "/d"}


def test_a_page_with_more_links_than_there_is_room_is_not_remembered() -> None:
    known = KnownPages(most=1)
    known.add(1, {"/a", "/b"})

    assert set(known.of(1)) == set()
