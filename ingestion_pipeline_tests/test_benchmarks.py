"""The benchmarks run and compute what they print; how fast anything is, no test says."""

from __future__ import annotations

import pytest

from benchmarks import claims, extraction, ingestion, listings, polls
from benchmarks.__main__ import main, written
from benchmarks.database import Database, postgresql, sqlite
from benchmarks.figure import Cost, Figure, Skipped, middle

SIZES = claims.Sizes(tasks=30, one_by_one=5, batches=(10,), workers=(2,), rounds=1)


def a_cost(items: int = 100, wall_seconds: float = 1.0, cpu_seconds: float = 0.5) -> Cost:
    return Cost(items=items, wall_seconds=wall_seconds, cpu_seconds=cpu_seconds)


def a_figure(ours: Cost, theirs: Cost) -> Figure:
    return Figure(claim="claim", database="SQLite", peer="peer", ours=ours, theirs=theirs, bar=0.4)


def test_a_ratio_says_how_many_times_as_many_items_ours_does() -> None:
    figure = a_figure(a_cost(wall_seconds=2), a_cost(items=10, wall_seconds=1, cpu_seconds=0.1))

    assert figure.ratio == pytest.approx(50 / 10)
    assert figure.cpu_ratio == pytest.approx(200 / 100)
    assert written(figure).split()[-3:] == ["5.00", "2.00", "0.40"]


def test_several_measurements_are_their_medians() -> None:
    costs = [a_cost(wall_seconds=n, cpu_seconds=n / 10) for n in (9, 1, 2)]

    assert middle(costs) == a_cost(wall_seconds=2, cpu_seconds=0.2)


def all_figures(database: Database) -> list[Figure | Skipped]:
    return [
        *ingestion.measure(database, chapters=20, row_by_row=3, rounds=1),
        *claims.measure(database, SIZES),
        *extraction.measure(database, pages=5, rounds=1),
        *listings.measure(database, listings.Sizes(listings=40, few=20, stored=(9, 30), rounds=1)),
    ]


def is_measured(line: Figure | Skipped) -> bool:
    return isinstance(line, Figure) and line.ratio > 0 and line.ours.items > 0 < line.theirs.items


@pytest.mark.slow
def test_every_claim_is_measured_on_sqlite() -> None:
    with sqlite() as database:
        figures = all_figures(database)

    assert len(figures) == 8
    assert all(is_measured(line) for line in figures), figures


@pytest.mark.slow
@pytest.mark.postgres
def test_every_claim_is_measured_on_postgresql_or_says_why_not() -> None:
    with postgresql() as database:
        if database is None:
            pytest.skip("there is no PostgreSQL (initdb) on this machine")
        figures = all_figures(database)

    unmeasured = [line for line in figures if not is_measured(line)]
    assert all(isinstance(line, Skipped) and "pgqueuer" in line.reason for line in unmeasured)
    assert len(figures) - len(unmeasured) >= 5


@pytest.mark.soak
def test_sources_are_polled_both_ways() -> None:
    with sqlite() as database:
        figures = list(polls.measure(database, count=50))

    assert [line.ours.items for line in figures] == [50, 50]
    assert all("1 x poll_hot" in line.claim for line in figures)


def test_a_benchmark_that_does_not_exist_is_named() -> None:
    with pytest.raises(SystemExit, match="no benchmark nonsense; there are: claims"):
        main(["nonsense"])
