"""What the benchmarks compare: histories and rules of polling, stored chapters, scale."""

import json
from contextlib import closing
from pathlib import Path
from shutil import copy

import pytest
from sqlalchemy import func, inspect, select

from benchmarks import history, scale
from benchmarks.database import Database
from benchmarks.figure import Meter
from benchmarks.polling.comparison import compare
from benchmarks.polling.families import DAY, START, WEEK, History, recorded_documents, synthetic
from benchmarks.polling.replay import replay
from benchmarks.polling.rules import Every
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import chapter_sources
from ingestion_pipeline_tests.builders import NOON, a_definition

pytestmark = pytest.mark.both_databases


def test_a_known_process_leads_to_fewer_delays_than_a_known_rate() -> None:
    histories = synthetic("office", count=2, days=40)

    result = compare(histories, days=40, settings=load_settings({}), rules=("rates known", "process known"), near=0.1)

    assert result["process known"].mean < result["rates known"].mean / 1.5


def test_only_the_scored_part_of_a_history_counts() -> None:
    every_day = History([START + (number + 0.5) * DAY for number in range(100)], states_dates=False)

    result = replay([every_day], lambda _: Every(DAY), days=100)

    assert (result.requests, len(result.delays)) == (70, 69)
    assert result.mean == DAY / 2


def test_a_history_is_moved_by_whole_weeks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tuesday = 1_600_758_000
    (tmp_path / "change_histories").mkdir()
    documents = {f"document {number}": [tuesday + day * 86_400 for day in range(8)] for number in range(90)}
    (tmp_path / "change_histories" / "some.json").write_text(json.dumps(documents))
    monkeypatch.setenv("INGESTION_SAMPLES", str(tmp_path))

    used, unused = (recorded_documents(used_for_constants=is_used) for is_used in (True, False))

    assert (len(used), len(unused)) == (80, 10)
    for document in used + unused:
        assert START <= document.start < START + WEEK
        assert (document.changes[0] - tuesday) % WEEK == 0


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
