"""The bounded cache of pages that a crawl has already stored."""

from ingestion_pipeline.catalogs.frontier import KnownPageCache


def test_each_crawl_has_its_own_pages() -> None:
    cache = KnownPageCache()
    cache.add(1, {"/a", "/b"})

    assert set(cache.of(1)) == {"/a", "/b"}
    assert set(cache.of(2)) == set()


def test_a_full_cache_is_cleared() -> None:
    cache = KnownPageCache(most=3)
    cache.add(1, {"/a", "/b"})
    cache.add(1, {"/b"})
    cache.add(2, {"/c", "/d"})

    assert set(cache.of(1)) == set()
    assert set(cache.of(2)) == {"/c", "/d"}


def test_more_links_than_the_cache_holds_are_not_stored() -> None:
    cache = KnownPageCache(most=1)
    cache.add(1, {"/a", "/b"})

    assert set(cache.of(1)) == set()
