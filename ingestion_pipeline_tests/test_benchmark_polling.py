"""The bound of the polling benchmark: to know every change beforehand."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import combinations
from pathlib import Path
from shutil import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, inspect, select

from benchmarks import history, scale
from benchmarks.database import Database
from benchmarks.figure import Meter
from benchmarks.polling.bound import least_delay
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import chapter_sources
from ingestion_pipeline_tests.builders import NOON, a_definition

pytestmark = pytest.mark.both_databases

Changes = list[float]


def polling_schedules(changes: Sequence[float]) -> Iterator[tuple[int, float]]:
    """Yield requests and delay of every schedule that polls after some changes and after the last."""
    *before, last = sorted(changes)
    for count in range(len(before) + 1):
        for chosen in combinations(before, count):
            polls = [*chosen, last]
            yield len(polls), sum(min(poll for poll in polls if poll >= at) - at for at in changes)


def best_delay(sources: Sequence[Changes], requests: int) -> float:
    """The least sum of delays over all ways, by trying them."""
    best = {0: 0.0}
    for changes in sources:
        after: dict[int, float] = {}
        for spent, delay in best.items():
            for more, late in polling_schedules(changes):
                total = spent + more
                after[total] = min(after.get(total, float("inf")), delay + late)
        best = after
    return min(delay for spent, delay in best.items() if spent <= requests)


moments = st.lists(st.integers(0, 500).map(float), min_size=1, max_size=5)


@pytest.mark.slow
@given(sources=st.lists(moments, min_size=1, max_size=3), data=st.data())
def test_no_schedule_is_less_late_than_the_one_that_knows_every_change(
    sources: list[Changes], data: st.DataObject
) -> None:
    total = sum(map(len, sources))
    requests = data.draw(st.integers(len(sources), total))

    bound = least_delay(sources, requests=requests) * total
    assert bound == pytest.approx(best_delay(sources, requests), abs=1e-3)


def test_with_a_request_for_each_change_nothing_is_late() -> None:
    assert least_delay([[0, 10, 40], [7]], requests=4) == 0
    assert least_delay([[0, 10, 40], [7]], requests=3) == pytest.approx(10 / 4)
    assert least_delay([[0, 10, 40], [], [7]], requests=2) == pytest.approx(70 / 4)
    with pytest.raises(ValueError, match="2 sources changed; 1 requests"):
        least_delay([[0, 10], [7]], requests=1)


@pytest.mark.slow
def test_every_statement_is_measured_at_every_size(sqlite_template: Path, tmp_path: Path) -> None:
    def another(name: str) -> str:
        return f"sqlite:///{copy(sqlite_template, tmp_path / name)}"

    with closing(open_store(another("bench"))) as store:
        database = Database(name="SQLite", url="", store=store, meter=Meter(), folder=tmp_path, another=another)
        sizes = scale.Sizes(sources=(2, 3), with_chapters=(2, 3), rounds=1)
        lines = [measurement.line() for measurement in scale.measure(database, sizes)]

    claims = {line.claim.rpartition(", ms")[0] for line in lines if line.limit == 1.0}
    assert claims == scale.BARS
    assert all(line.ratio is not None for line in lines)
    assert all("2: " in line.peer and "3: " in line.peer for line in lines[:-1])
    assert "200: " in lines[-1].peer
    assert "300: " in lines[-1].peer


@pytest.mark.slow
def test_the_compared_chapters_and_their_indexes_exist(store: Store) -> None:
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
