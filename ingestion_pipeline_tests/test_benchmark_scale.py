"""The benchmark of many sources asks everything at every size, among chapters that are there."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from shutil import copy

from sqlalchemy import func, inspect, select

from benchmarks import history, scale
from benchmarks.database import Database
from benchmarks.figure import Meter
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import chapter_sources
from ingestion_pipeline_tests.builders import NOON, a_definition


def test_everything_is_asked_at_every_size(sqlite_template: Path, tmp_path: Path) -> None:
    def another(name: str) -> str:
        return f"sqlite:///{copy(sqlite_template, tmp_path / name)}"

    with closing(open_store(another("bench"))) as store:
        database = Database(name="SQLite", url="", store=store, meter=Meter(), folder=tmp_path, another=another)
        sizes = scale.Sizes(sources=(2, 3), with_chapters=(2, 3), rounds=1)
        lines = [item.line() for item in scale.measure(database, sizes)]

    claims = {line.claim.rpartition(", ms")[0] for line in lines if line.limit == 1.0}
    assert claims == scale.BARS
    assert all(line.ratio is not None for line in lines)
    assert all("2: " in line.peer and "3: " in line.peer for line in lines[:-1])
    assert "200: " in lines[-1].peer
    assert "300: " in lines[-1].peer


def test_the_chapters_that_a_listing_is_compared_with_are_there_and_their_indexes_too(store: Store) -> None:
    names = [history.series_name(number) for number in range(2)]
    before = inspect(store.engine).get_indexes("chapter_sources")
    with store.begin() as connection:
        many = [a_definition(id=f"series:{name}", series=name) for name in names]
        register(connection, many, now=NOON)

    stored = history.add_chapters(store)
    taken = history.compared({stored: store}, Meter(), rounds=1)

    assert list(taken) == [200]
    with store.read() as connection:
        links = connection.execute(select(func.count()).select_from(chapter_sources)).scalar_one()
    assert links == 200
    assert inspect(store.engine).get_indexes("chapter_sources") == before
