"""A source corrects itself: the same release under another number."""

from decimal import Decimal

import pytest

from ingestion_pipeline.series.chapter import Release
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline_tests.builders import a_release
from ingestion_pipeline_tests.series.series_harness import SeriesHarness, releases
from ingestion_pipeline_tests.statements import recorded_statements


@pytest.fixture
def harness(harness: SeriesHarness, clock: FixedClock) -> SeriesHarness:
    """One source that has listed chapters 1 to 4, each with an id of its own."""
    harness.add_source(listing=listed(1, 2, 3, 4))
    clock.advance(hours=1)
    return harness


def listed(*numbers: float, **ids: float) -> list[Release]:
    """Chapters whose id is their number, and others by id."""
    numbers_by_id = {str(number): number for number in numbers} | ids
    return [
        a_release(number=Decimal(str(number)), source_chapter_id=id_, url=f"https://a.test/{id_}")
        for id_, number in numbers_by_id.items()
    ]


@pytest.mark.parametrize("is_complete", [True, False], ids=["complete", "window"])
def test_a_corrected_number_withdraws_the_wrong_one_at_once_and_is_not_announced_again(
    harness: SeriesHarness, is_complete: bool
) -> None:
    harness.sync(listed(1, 2, 3, 4, five=50), complete=is_complete)
    assert (harness.announced_numbers(), harness.latest()[0]) == (["50"], Decimal(50))

    result = harness.sync(listed(1, 2, 3, 4, five=5), complete=is_complete)

    assert (result.outcome, result.record_count) == ("1 new, 1 withdrawn", 5)
    assert result.needs_full_read is False
    assert harness.available() == ["1", "2", "3", "4", "5"]
    assert harness.latest()[0] == Decimal(5)
    assert harness.announced_numbers() == ["50"]
    keys = harness.keys()
    assert "50" in keys  # though no source has it


def test_a_release_without_an_id_is_recognised_by_its_url(harness: SeriesHarness) -> None:
    wrong, right = ([*releases(1, 2), a_release(number=Decimal(n), url="https://a.test/five")] for n in (50, 5))
    harness.add_source("series:plain", series_id="plain")
    harness.sync(releases(1, 2), by="series:plain")
    harness.sync(wrong, by="series:plain")

    harness.sync(right, by="series:plain")

    assert harness.available("series:plain") == ["1", "2", "5"]
    assert harness.announced_numbers() == ["50"]


def test_a_oneshot_that_gets_a_number_is_the_same_release(harness: SeriesHarness) -> None:
    oneshot = a_release(number=None, source_chapter_id="x", title="Extra")
    harness.sync([*listed(1, 2, 3, 4), oneshot])

    harness.sync([*listed(1, 2, 3, 4), a_release(number=Decimal("4.5"), source_chapter_id="x")])

    assert harness.available() == ["1", "2", "3", "4", "4.5"]
    assert harness.announced_numbers() == [None]


def test_a_correction_that_is_reverted_makes_the_first_number_available_again(harness: SeriesHarness) -> None:
    harness.sync(listed(1, 2, 3, 4, five=50))
    harness.sync(listed(1, 2, 3, 4, five=5))

    harness.sync(listed(1, 2, 3, 4, five=50))

    assert harness.available() == ["1", "2", "3", "4", "50"]
    assert (harness.latest()[0], harness.announced_numbers()) == (Decimal(50), ["50"])


def test_a_new_id_is_a_new_chapter_and_a_missing_one_is_not_withdrawn_yet(harness: SeriesHarness) -> None:
    harness.sync(listed(1, 2, 3, 4, five=50))

    harness.sync(listed(1, 2, 3, 4, other=5))

    assert harness.available() == ["1", "2", "3", "4", "5", "50"]
    assert harness.announced_numbers() == ["50", "5"]


def test_a_chapter_with_more_than_a_renumbered_release_is_announced(harness: SeriesHarness) -> None:
    harness.sync(listed(1, 2, 3, 4, five=50))

    harness.sync([*listed(1, 2, 3, 4, five=5), *listed(other=5)])

    assert (harness.available()[-1], harness.announced_numbers()) == ("5", ["50", "5"])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(releases(4), releases(5), id="a window of one"),
        pytest.param(
            [a_release(number=Decimal(n), url="https://a.test/all") for n in (3, 4)],
            [a_release(number=Decimal(n), url="https://a.test/all") for n in (4, 5)],
            id="one address for all",
        ),
        pytest.param(listed(a=3, b=4), listed(a=5, b=6), id="ids by position, all new"),
    ],
)
def test_an_id_or_url_shared_by_every_chapter_of_a_window_is_not_a_correction(
    harness: SeriesHarness, before: list[Release], after: list[Release]
) -> None:
    one_address = [a_release(number=release.number, url="https://a.test/same") for release in before]
    harness.add_source("series:window", series_id="window")
    harness.sync(one_address if len(before) == 1 else before, by="series:window", complete=False)
    new = [a_release(number=after[0].number, url="https://a.test/same")]

    harness.sync(new if len(after) == 1 else after, by="series:window", complete=False)

    numbers = {str(release.number) for release in (*before, *after)}
    assert set(harness.available("series:window")) == numbers
    assert "5" in harness.announced_numbers()


def test_a_renumbered_release_leaves_the_other_releases_of_its_chapter(harness: SeriesHarness) -> None:
    harness.sync([*listed(1, 2, 3, 4, a=50), *listed(b=50)], complete=False)

    harness.sync(listed(3, 4, a=5), complete=False)

    [link] = [row for row in harness.links() if len(row["releases"]) != 1 or row["url"][-1] == "b"]
    assert [release["source_chapter_id"] for release in link["releases"]] == ["b"]
    assert harness.available() == ["1", "2", "3", "4", "5", "50"]


def test_swapped_numbers_in_a_window_leave_one_release_per_chapter(harness: SeriesHarness) -> None:
    swapped = {"3": 4, "4": 3}
    harness.sync([*listed(1, 2), *listed(**swapped)], complete=False)

    release_counts = {row["source_chapter_id"]: len(row["releases"]) for row in harness.links()}
    assert release_counts == {"1": 1, "2": 1, "3": 1, "4": 1}


def test_unchanged_listings_and_new_chapters_do_not_query_for_corrections(harness: SeriesHarness, store: Store) -> None:
    """Series, lock, chapters, links, vanished; a new chapter costs its writes and one query more."""
    source = harness.source()

    def statements(*numbers: float) -> list[str]:
        with store.begin() as connection, recorded_statements(connection) as recorded:
            harness.ingest(connection, source, listed(*numbers))
        return [" ".join(text.split()) for text, _ in recorded]

    unchanged, new = statements(1, 2, 3, 4), statements(1, 2, 3, 4, 5)

    assert len(unchanged) == 5
    assert all(text.startswith(("SELECT", "WITH")) and "INSERT" not in text for text in unchanged)
    assert len(new) == 11
