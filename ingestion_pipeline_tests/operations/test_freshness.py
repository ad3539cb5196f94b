"""The freshness grid and its picture."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import update

from ingestion_pipeline.operations.source_health import (
    COLUMNS,
    LEGEND,
    NEVER,
    NOT_YET,
    Grid,
    colour_of,
    freshness,
    freshness_picture,
    source_statuses,
)
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import sources
from ingestion_pipeline_tests.operations.failing_sources import add_healthy_sources

pytestmark = pytest.mark.both_databases

HOUR = timedelta(hours=1)


def freshness_grid(store: Store, settings: Settings, *, now: datetime) -> Grid:
    with store.read() as connection:
        return freshness(source_statuses(connection, settings, now=now), now=now)


@pytest.mark.parametrize("database", ["sqlite"])
def test_few_sources_have_a_row_each_and_many_are_grouped(store: Store, settings: Settings, now: datetime) -> None:
    with store.begin() as connection:
        ids = add_healthy_sources(connection, 6, now=now)
        ages = dict(zip(ids[1:4], (HOUR, 9 * HOUR, 99 * HOUR), strict=True))
        for id_, age in ages.items():
            where = sources.c.id == id_
            connection.execute(update(sources).where(where).values(tier="warm", last_success_at=now - age))
        unread = sources.c.id.in_(ids[4:])
        connection.execute(update(sources).where(unread).values(last_success_at=None))
        in_vain = sources.c.id == ids[4]
        connection.execute(update(sources).where(in_vain).values(failure_count=1))
    few = freshness_grid(store, settings, now=now)
    with store.begin() as connection:
        add_healthy_sources(connection, 100, now=now)
    many = freshness_grid(store, settings, now=now)

    places = {name: row.index(1) for name, row in zip(few.names, few.counts, strict=True)}
    columns = [COLUMNS[places[source_id]] for source_id in ids]
    assert columns == ["≤ 1", "≤ 1", "≤ 3", "> 10", "never", "not yet"]
    assert many.is_gathered
    assert set(many.names) <= {"job_board hot", "job_board warm", "series hot", "series warm"}
    assert sum(map(sum, many.counts)) == 100


def test_a_source_not_yet_polled_is_grey_and_one_that_never_succeeded_is_red() -> None:
    red, green, _ = colour_of(NEVER)

    assert len(set(colour_of(NOT_YET))) == 1
    assert red > 2 * green
    assert [column for _, column in LEGEND if column in {NEVER, NOT_YET}] == [NEVER, NOT_YET]


@pytest.mark.slow
def test_the_picture_of_very_many_sources_is_small() -> None:
    names = tuple(f"{kind} {tier}" for kind in "abcde" for tier in ("hot", "warm", "cold"))
    row = (90_000, 5, 0, 17, 0, 3, 1_000, 2_000)
    picture = freshness_picture(Grid(names=names, counts=(row,) * 15, is_gathered=True))

    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 60_000
    with pytest.raises(ValueError, match="no source"):
        freshness_picture(Grid(names=(), counts=(), is_gathered=False))
