"""The site of the crawl benchmark matches its claim, and only complete crawls are measured."""

import re
from html import unescape
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest

from benchmarks import crawl
from benchmarks.crawlers.job import host_name, without_tracking
from benchmarks.crawlers.pages import Site, path_of
from benchmarks.database import sqlite
from benchmarks.disk import FILES, PLACES, dearest_file, wait_for_quiet
from benchmarks.environments import NoEnvironment
from benchmarks.figure import Skipped

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
