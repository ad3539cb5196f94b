"""What a run remembers of pages that are in the database: a hint, and never more than so much."""

from __future__ import annotations

from ingestion_pipeline.engine.crawling.protocol import KnownPageCache


def test_what_one_walk_knows_is_news_to_another() -> None:
    cache = KnownPageCache()
    cache.add(1, {"/a", "/b"})

    assert set(cache.of(1)) == {"/a", "/b"}
    assert set(cache.of(2)) == set()


def test_it_forgets_all_rather_than_grow() -> None:
    cache = KnownPageCache(most=3)
    cache.add(1, {"/a", "/b"})
    cache.add(1, {"/b"})
    cache.add(2, {"/c", "/d"})

    assert set(cache.of(1)) == set()
    assert set(cache.of(2)) == {"/c", "/d"}


def test_a_page_with_more_links_than_there_is_room_is_not_remembered() -> None:
    cache = KnownPageCache(most=1)
    cache.add(1, {"/a", "/b"})

    assert set(cache.of(1)) == set()
