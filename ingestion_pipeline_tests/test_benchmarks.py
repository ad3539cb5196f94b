"""The benchmarks, in small."""

import dataclasses
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest

from benchmarks import claims, crawl, extraction, ingestion, listings, polls
from benchmarks.__main__ import main, measured
from benchmarks.crawlers.job import host_name, without_tracking
from benchmarks.crawlers.pages import Site, path_of
from benchmarks.database import Database, postgresql, sqlite
from benchmarks.disk import FILES, PLACES, dearest_file, wait_for_quiet
from benchmarks.environments import NoEnvironment
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


HREF = re.compile(r'<a [^>]*?href="([^"]*)"')


def hrefs_of(page: bytes) -> list[str]:
    return [unescape(href) for href in HREF.findall(page.decode())]


def reachable_pages(site: Site) -> set[str]:
    """The pages that links lead to, from the front pages on."""
    pages = {
        f"http://{host_name(host)}{path_of(number)}": (host, number)
        for host in range(site.hosts)
        for number in range(site.pages_of(host))
    }
    waiting = [f"http://{host_name(host)}/" for host in range(site.hosts)]
    visited = set(waiting)
    while waiting:
        url = waiting.pop()
        for href in hrefs_of(site.page(*pages[url])):
            link = without_tracking(urljoin(url, href))
            if link in pages and link not in visited:
                visited.add(link)
                waiting.append(link)
    return visited


def test_pages_have_the_size_and_the_links_of_the_claim() -> None:
    pages = [Site(pages=2_000, hosts=10).page(3, number) for number in (0, 7, 199)]

    assert all(42_000 < len(page) < 44_000 for page in pages)
    assert all(105 <= len(hrefs_of(page)) <= 115 for page in pages)
    assert all(75 <= len(set(hrefs_of(page))) <= 95 for page in pages)


def test_a_page_is_the_same_each_time_and_no_two_pages_are_equal() -> None:
    pages = [Site(pages=20, hosts=2).page(host, 4) for host in (0, 0, 1)]

    assert pages[0] == pages[1] != pages[2]


def test_links_are_written_in_all_the_ways_of_the_web() -> None:
    hrefs = hrefs_of(Site(pages=2_000, hosts=10).page(0, 1))

    schemes = {urlsplit(href).scheme for href in hrefs}
    assert schemes == {"", "http", "https", "mailto", "javascript"}
    assert all(any(sign in href for href in hrefs) for sign in ("#part", "utm_source", "../"))


@pytest.mark.slow
@pytest.mark.parametrize("is_small", [False, True])
def test_every_page_is_reached_from_the_front_pages(is_small: bool) -> None:
    assert len(reachable_pages(Site(pages=152, hosts=3, is_small=is_small))) == 152


@pytest.mark.soak
def test_ours_crawls_the_whole_site_and_finds_the_same_links_with_markdown() -> None:
    with crawl.site(pages=30, hosts=3) as port:
        measurements = [crawl.run(crawl.OURS, port, 30, 3, markdown=markdown_flag) for markdown_flag in (False, True)]

    assert [measurement.pages for measurement in measurements] == [30, 30]
    assert measurements[0].links == measurements[1].links > 30 * 5
    assert all(measurement.cpu_seconds > 0 for measurement in measurements)


@pytest.mark.slow
def test_each_peer_is_measured_or_says_how_to_get_it() -> None:
    sizes = crawl.Sizes(pages=20, pages_with_markdown=0, hosts=2, rounds=1, small_pages=(), patience_seconds=0)
    with sqlite() as database:
        lines = list(crawl.measure(database, sizes))

    assert len(lines) == len(crawl.PEERS)
    assert all("[bench]" in line.reason for line in lines if isinstance(line, Skipped))


def test_a_disk_is_waited_for_until_a_file_is_cheap(capsys: pytest.CaptureFixture[str]) -> None:
    costs = iter([0.0008, 0.0004, 0.00003])
    pauses: list[float] = []

    assert wait_for_quiet(costs.__next__, patience_seconds=60, pause=pauses.append)

    assert pauses == [5, 5]
    assert capsys.readouterr().err.splitlines() == [
        "  waiting for the disk: 0.80 ms of CPU a file",
        "  waiting for the disk: 0.40 ms of CPU a file",
    ]


def test_a_disk_is_waited_for_up_to_the_timeout(capsys: pytest.CaptureFixture[str]) -> None:
    pauses: list[float] = []

    assert not wait_for_quiet(lambda: 0.0008, patience_seconds=10, pause=pauses.append)

    assert pauses == [5, 5]
    assert "the disk is not quiet: 0.80 ms" in capsys.readouterr().err.splitlines()[-1]


def test_the_cost_of_a_file_is_measured_on_created_files(tmp_path: Path) -> None:
    assert dearest_file(tmp_path) > 0

    assert sum(1 for path in tmp_path.rglob("*") if path.is_file()) == PLACES * FILES


def test_a_peer_without_its_library_says_so() -> None:
    with pytest.raises(NoEnvironment, match=r"no nonsense_library: pip install -e '\.\[bench\]'"):
        crawl.Crawler(name="nonsense", module="nonsense", needs=("nonsense_library",)).python()


def a_crawl(*, pages: int = 30, links: int = 300) -> crawl.Crawled:
    return crawl.Crawled(pages=pages, links=links, wall_seconds=1, cpu_seconds=1, peak_bytes=1)


@pytest.mark.parametrize(("pages", "served", "requests"), [(29, 30, 30), (30, 29, 30), (30, 30, 31)])
def test_a_missing_or_repeated_page_invalidates_the_measurement(pages: int, served: int, requests: int) -> None:
    tally = {"pages": served, "requests": requests}

    with pytest.raises(RuntimeError, match="of 30 pages, served"):
        crawl.check_whole(crawl.OURS, a_crawl(pages=pages), tally, 30)


def test_a_second_robots_request_invalidates_the_measurement() -> None:
    tally = {"pages": 30, "requests": 30, "most_of_one_missing": 2}

    with pytest.raises(RuntimeError, match="asked again"):
        crawl.check_whole(crawl.OURS, a_crawl(), tally, 30)


@pytest.mark.soak
def test_memory_is_flat_from_two_thousand_pages_to_a_hundred_thousand() -> None:
    peaks = {pages: crawl.peak_bytes(pages) for pages in (2_000, 20_000, 100_000)}

    assert max(peaks.values()) <= peaks[2_000] * 1.2, peaks


def test_crawlers_that_found_different_links_are_not_compared() -> None:
    with pytest.raises(RuntimeError, match="did not find the same links"):
        crawl.check_links({crawl.OURS: [a_crawl()], crawl.PEERS[0]: [a_crawl(links=299)]})
