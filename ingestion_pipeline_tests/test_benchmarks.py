"""The benchmarks run and compute what they print; no test asserts a speed."""

import dataclasses
import json
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from benchmarks import claims, extraction, ingestion, listings, polls
from benchmarks.__main__ import main, measured
from benchmarks.database import Database, postgresql, sqlite
from benchmarks.figure import Cost, Figure, Flat, Skipped, middle
from benchmarks.registry import SQLITE, Benchmark
from benchmarks.table import Line, as_json, row, summary

SIZES = claims.Sizes(tasks=30, one_by_one=5, batches=(10,), workers=(2,), rounds=1)


def a_cost(items: int = 100, wall_seconds: float = 1.0, cpu_seconds: float = 0.5) -> Cost:
    return Cost(items=items, wall_seconds=wall_seconds, cpu_seconds=cpu_seconds)


def a_figure(ours: Cost, theirs: Cost) -> Figure:
    return Figure(claim="claim", database="SQLite", peer="peer", ours=ours, theirs=theirs, bar=0.4)


def test_a_ratio_is_our_throughput_over_the_peers() -> None:
    figure = a_figure(a_cost(wall_seconds=2), a_cost(items=10, wall_seconds=1, cpu_seconds=0.1))

    assert figure.ratio == pytest.approx(50 / 10)
    assert figure.cpu_ratio == pytest.approx(200 / 100)
    assert row(figure.line()).split()[-3:] == ["0.40", "2.00", "yes"]


@pytest.mark.parametrize(
    ("ratio", "limit", "goal", "is_less_better", "met"),
    [
        (0.39, 0.4, 0.5, False, "no"),
        (0.4, 0.4, 0.5, False, "yes"),
        (0.5, 0.4, 0.5, False, "goal"),
        (9.0, 8.0, None, False, "yes"),
        (1.2, 1.2, None, True, "yes"),
        (1.21, 1.2, None, True, "no"),
        (0.1, None, None, False, "no peer"),
        (None, 0.4, None, False, "not measured: no peer"),
    ],
)
def test_a_claim_is_met_at_its_limit_and_not_beyond_it(
    ratio: float | None, limit: float | None, goal: float | None, is_less_better: bool, met: str
) -> None:
    line = Line(
        claim="claim",
        database="SQLite",
        ratio=ratio,
        limit=limit,
        goal=goal,
        is_less_better=is_less_better,
        note="no peer",
    )

    assert line.met == met


def test_the_table_as_json_has_every_line_and_what_was_not_measured() -> None:
    peaks = {100: 10_000_000, 1_000: 15_000_000}
    lines = [
        a_figure(a_cost(), a_cost()).line(),
        Flat(claim="memory", database="SQLite", peaks=peaks).line(),
        Skipped("crawl", "SQLite", "it does not install").line(),
    ]
    document = json.loads(as_json(lines, now=datetime(2026, 1, 1, tzinfo=UTC), quick=True, seconds=3))

    assert [(line["claim"], line["ratio"], line["met"]) for line in document["lines"]] == [
        ("claim", 1.0, "yes"),
        ("memory", 1.5, "no"),
        ("crawl", None, "not measured: it does not install"),
    ]
    assert document["machine"]["cores"] >= 1
    assert summary(lines) == "1 met, 1 not met, 1 not measured"


def test_a_benchmark_that_fails_has_a_line_and_stops_no_other() -> None:
    def failing(_: Database) -> Iterator[Line]:
        yield Line(claim="first", database=SQLITE, ratio=1.0)
        raise RuntimeError("the peer fell over")

    def fine(_: Database) -> Iterator[Line]:
        yield Line(claim="last", database=SQLITE, ratio=1.0)

    benchmarks = [
        Benchmark(name=name, full=item, quick=item, databases=(SQLITE,))
        for name, item in {"bad": failing, "good": fine}.items()
    ]
    result = {line.claim: line.met for line in measured(benchmarks, quick=True)}

    assert result == {"first": "", "bad": "not measured: it failed: the peer fell over", "last": ""}


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


@pytest.mark.soak
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


def test_a_limit_of_ten_thousand_is_neither_met_nor_missed_by_fewer() -> None:
    few = dataclasses.replace(a_figure(a_cost(), a_cost()), bar=None, note=polls.promised(500)[1])

    assert polls.promised(10_000) == (polls.BAR, "")
    assert polls.promised(500)[0] is None
    assert few.line().met.startswith("no limit: ")
    assert summary([few.line()]).startswith("0 met, 0 not met, 0 not measured")


def test_a_benchmark_that_does_not_exist_is_named() -> None:
    with pytest.raises(SystemExit, match="no benchmark nonsense; there are: asset_page"):
        main(["nonsense"])
