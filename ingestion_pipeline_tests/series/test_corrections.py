"""What a source corrects itself: the same release under another number."""

from __future__ import annotations

from decimal import Decimal
from random import Random
from typing import Any

import pytest
from sqlalchemy import event

from ingestion_pipeline.series.chapter import Release
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline_tests.builders import a_release
from ingestion_pipeline_tests.series.syncing import Syncing, releases
from ingestion_pipeline_tests.series.test_idempotence import ingest


@pytest.fixture
def syncing(store: Store, clock: FixedClock, settings: Settings, random: Random) -> Syncing:
    """One source that has listed chapters 1 to 4, each with an id of its own."""
    found = Syncing(store, clock, settings, random)
    found.given_source()
    found.sync(listed(1, 2, 3, 4))
    clock.advance(hours=1)
    return found


def listed(*numbers: float, **ids: float) -> list[Release]:
    """Chapters whose id is their number, and others by id."""
    named = {str(number): number for number in numbers} | ids
    return [
        a_release(number=Decimal(str(number)), source_chapter_id=id_, url=f"https://a.test/{id_}")
        for id_, number in named.items()
    ]


@pytest.mark.parametrize("is_complete", [True, False], ids=["complete", "window"])
def test_a_typo_that_the_source_corrects_is_withdrawn_at_once_and_nobody_is_told_twice(
    syncing: Syncing, is_complete: bool
) -> None:
    syncing.sync(listed(1, 2, 3, 4, five=50), complete=is_complete)
    assert (syncing.told(), syncing.latest()[0]) == (["50"], Decimal(50))

    result = syncing.sync(listed(1, 2, 3, 4, five=5), complete=is_complete)

    assert (result.outcome, result.record_count) == ("1 new, 1 withdrawn", 5)
    assert result.needs_full_read is False
    assert syncing.available() == ["1", "2", "3", "4", "5"]
    assert syncing.latest()[0] == Decimal(5)
    assert syncing.told() == ["50"]
    kept = syncing.keys()  # though nobody has it
    assert "50" in kept


def test_an_address_is_as_good_as_an_id_where_there_is_none(syncing: Syncing) -> None:
    wrong, right = ([*releases(1, 2), a_release(number=Decimal(n), url="https://a.test/five")] for n in (50, 5))
    syncing.given_source("series:plain", series_id="plain")
    syncing.sync(releases(1, 2), by="series:plain")
    syncing.sync(wrong, by="series:plain")

    syncing.sync(right, by="series:plain")

    assert syncing.available("series:plain") == ["1", "2", "5"]
    assert syncing.told() == ["50"]


def test_a_oneshot_that_gets_a_number_is_the_same_release(syncing: Syncing) -> None:
    oneshot = a_release(number=None, source_chapter_id="x", title="Extra")
    syncing.sync([*listed(1, 2, 3, 4), oneshot])

    syncing.sync([*listed(1, 2, 3, 4), a_release(number=Decimal("4.5"), source_chapter_id="x")])

    assert syncing.available() == ["1", "2", "3", "4", "4.5"]
    assert syncing.told() == [None]


def test_a_number_that_is_taken_back_a_second_time_is_there_again(syncing: Syncing) -> None:
    syncing.sync(listed(1, 2, 3, 4, five=50))
    syncing.sync(listed(1, 2, 3, 4, five=5))

    syncing.sync(listed(1, 2, 3, 4, five=50))

    assert syncing.available() == ["1", "2", "3", "4", "50"]
    assert (syncing.latest()[0], syncing.told()) == (Decimal(50), ["50"])


def test_what_has_an_id_of_its_own_is_news_and_what_is_merely_missing_is_not_yet_gone(syncing: Syncing) -> None:
    syncing.sync(listed(1, 2, 3, 4, five=50))

    syncing.sync(listed(1, 2, 3, 4, other=5))

    assert syncing.available() == ["1", "2", "3", "4", "5", "50"]
    assert syncing.told() == ["50", "5"]


def test_a_chapter_that_brings_more_than_a_renumbered_release_is_news(syncing: Syncing) -> None:
    syncing.sync(listed(1, 2, 3, 4, five=50))

    syncing.sync([*listed(1, 2, 3, 4, five=5), *listed(other=5)])

    assert (syncing.available()[-1], syncing.told()) == ("5", ["50", "5"])


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
def test_what_a_window_gives_to_every_chapter_proves_nothing(
    syncing: Syncing, before: list[Release], after: list[Release]
) -> None:
    one_address = [a_release(number=one.number, url="https://a.test/same") for one in before]
    syncing.given_source("series:window", series_id="window")
    syncing.sync(one_address if len(before) == 1 else before, by="series:window", complete=False)
    new = [a_release(number=after[0].number, url="https://a.test/same")]

    syncing.sync(new if len(after) == 1 else after, by="series:window", complete=False)

    known = {str(one.number) for one in (*before, *after)}
    assert set(syncing.available("series:window")) == known
    assert "5" in syncing.told()


def test_a_release_that_leaves_a_chapter_of_several_takes_only_itself_along(syncing: Syncing) -> None:
    syncing.sync([*listed(1, 2, 3, 4, a=50), *listed(b=50)], complete=False)

    syncing.sync(listed(3, 4, a=5), complete=False)

    [link] = [row for row in syncing.links() if len(row["releases"]) != 1 or row["url"][-1] == "b"]
    assert [one["source_chapter_id"] for one in link["releases"]] == ["b"]
    assert syncing.available() == ["1", "2", "3", "4", "5", "50"]


def test_swapped_numbers_leave_no_trace_in_a_window(syncing: Syncing) -> None:
    swapped = {"3": 4, "4": 3}
    syncing.sync([*listed(1, 2), *listed(**swapped)], complete=False)

    held = {row["source_chapter_id"]: len(row["releases"]) for row in syncing.links()}
    assert held == {"1": 1, "2": 1, "3": 1, "4": 1}


def test_neither_an_unchanged_listing_nor_a_new_chapter_asks_for_what_may_have_moved(
    syncing: Syncing, store: Store
) -> None:
    """Home, lock, chapters, links, vanished; a new chapter costs its writes and one look more."""
    source, asked = syncing.source(), list[str]()

    def remember(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        asked.append(statement)

    def statements(*numbers: float) -> list[str]:
        with store.begin() as connection:
            asked.clear()
            ingest(syncing, connection, source, listed(*numbers))
            return [" ".join(one.split()) for one in asked]

    event.listen(store.engine, "before_cursor_execute", remember)
    unchanged, new = statements(1, 2, 3, 4), statements(1, 2, 3, 4, 5)
    event.remove(store.engine, "before_cursor_execute", remember)

    assert len(unchanged) == 5
    assert all(one.startswith(("SELECT", "WITH")) and "INSERT" not in one for one in unchanged)
    assert len(new) == 11
