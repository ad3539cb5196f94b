"""A company's own careers page: every page is read, and jobs it no longer lists are closed."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ingestion_pipeline.sources.source import Definition
from ingestion_pipeline_tests.companies.boards.job_boards import Boards, a_board

CAREERS = "http://acme.test/careers"
JOBS = tuple(range(1, 13))
PER_PAGE = 4


def json_ld_postings(numbers: Sequence[int], company: str = "Acme") -> str:
    postings = [
        {
            "@type": "JobPosting",
            "title": f"Engineer {number}",
            "url": f"http://acme.test/jobs/{number}",
            "hiringOrganization": {"name": company if number % 2 else "Acme"},
        }
        for number in numbers
    ]
    return f'<script type="application/ld+json">{json.dumps(postings)}</script>'


def job_cards(numbers: Sequence[int]) -> str:
    cards = (f"<li><a href='/jobs/{number}'>Engineer {number}</a></li>" for number in numbers)
    return f"<ul class=openings>{''.join(cards)}</ul>"


# By name: the query of a page, a link to it, and the class of the box that links to every other page, else to the next.
PAGERS: dict[str, tuple[str, str, str | None]] = {
    "next_link": ("page={page}", "<a rel=next href='/careers?{query}'>Next</a>", None),
    "page_links": ("page={page}", "<a href='/careers?{query}'>{page}</a>", "pagination"),
    "page_links_from_zero": ("page={before}", "<a href='/careers?{query}'>{page}</a>", "pagination"),
    "offset_links": ("start={offset}", "<a href='/careers?{query}'>{page}</a>", "pager"),
    "load_more_link": ("page={page}", "<a class=button href='?{query}'>Load more</a>", None),
    "load_more_link_from_zero": ("page={before}", "<a class=button href='?{query}'>Show more jobs</a>", None),
    "arrow_link": ("after=c{page}", "<a aria-label='Next page' href='/careers?{query}'><svg></svg></a>", None),
}


def query_of(pager: str, page: int) -> str:
    return PAGERS[pager][0].format(page=page, before=page - 1, offset=(page - 1) * PER_PAGE)


def links_on(page: int, last: int, pager: str = "next_link") -> str:
    _, link, box = PAGERS[pager]
    targets = range(1, last + 1) if box else range(page + 1, min(page + 1, last) + 1)
    links = "".join(link.format(query=query_of(pager, n), page=n) for n in targets if n != page)
    return f"<div class={box}>{links}</div>" if box else links


KINDS: dict[str, tuple[dict[str, Any], Callable[[Sequence[int]], str]]] = {
    "jsonld": ({}, json_ld_postings),
    "html": ({"recognise": True}, job_cards),
    "selectors": ({"items": "ul.openings li", "fields": {"title": "a", "url": "a@href"}}, job_cards),
}


def serve(
    boards: Boards, numbers: Sequence[int], render: Callable[[Sequence[int]], str], pager: str = "next_link"
) -> None:
    """Serve the jobs on consecutive pages of the careers page."""
    pages = [numbers[start : start + PER_PAGE] for start in range(0, len(numbers), PER_PAGE)]
    for number, jobs in enumerate(pages, 1):
        query = f"?{query_of(pager, number)}" if number > 1 else ""
        body = f"<html><body>{render(jobs)}{links_on(number, len(pages), pager)}</body></html>"
        boards.web.routes[f"acme.test/careers{query}"] = body


def careers_page(kind: str = "jsonld", **config: Any) -> Definition:
    platform = "html" if kind == "selectors" else kind
    return a_board(url=CAREERS, platform=platform, config=KINDS[kind][0] | config, company="acme")


def statuses(boards: Boards) -> dict[str, str]:
    return {listing.title: listing.status for listing in boards.listings()}


@pytest.mark.parametrize("pager", PAGERS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_page_of_a_careers_page_is_read(boards: Boards, kind: str, pager: str) -> None:
    serve(boards, JOBS, KINDS[kind][1], pager)
    boards.add(careers_page(kind))

    boards.poll()

    assert sorted(statuses(boards)) == sorted(f"Engineer {number}" for number in JOBS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_vanishes_from_a_careers_page_is_closed(boards: Boards, kind: str) -> None:
    serve(boards, JOBS, KINDS[kind][1])
    boards.add(careers_page(kind))
    boards.poll()

    serve(boards, JOBS[1:], KINDS[kind][1])
    boards.poll()
    status_after_one_poll = statuses(boards)["Engineer 1"]
    boards.poll()

    assert status_after_one_poll == "open"
    assert [title for title, status in statuses(boards).items() if status == "closed"] == ["Engineer 1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "render"),
    [
        ({}, lambda numbers: json_ld_postings(numbers, company="Globex")),
        ({"complete": False}, json_ld_postings),
        ({"company_filter": "Acme"}, json_ld_postings),
    ],
    ids=["jobs of several companies", "complete: false", "company_filter"],
)
def test_a_page_that_shows_only_part_of_the_jobs_closes_nothing(
    boards: Boards, config: dict[str, Any], render: Callable[[Sequence[int]], str]
) -> None:
    serve(boards, JOBS, render)
    boards.add(careers_page(**config))
    boards.poll()

    serve(boards, JOBS[1:], render)
    boards.poll()
    boards.poll()

    assert set(statuses(boards).values()) == {"open"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_whose_button_loads_more_jobs_closes_nothing(boards: Boards, kind: str) -> None:
    render = KINDS[kind][1]
    button = "<button type=button>Load more jobs</button>"
    boards.web.routes["acme.test/careers"] = f"<html><body>{render(JOBS[:4])}{button}</body></html>"
    boards.add(careers_page(kind))
    boards.poll()

    boards.web.routes["acme.test/careers"] = f"<html><body>{render(JOBS[1:5])}{button}</body></html>"
    boards.poll()
    boards.poll()

    assert set(statuses(boards).values()) == {"open"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_further_page_that_lists_nothing_ends_the_list_and_closes_nothing(boards: Boards, kind: str) -> None:
    serve(boards, JOBS, KINDS[kind][1])
    boards.add(careers_page(kind))
    boards.poll()

    empty_page = f"<html><body><p>Back soon</p>{links_on(3, 9)}</body></html>"
    boards.web.routes["acme.test/careers?page=3"] = empty_page
    requested = len(boards.web.paths)
    boards.poll()
    boards.poll()

    assert set(statuses(boards).values()) == {"open"}
    assert "/careers?page=4" not in boards.web.paths[requested:]


def test_a_next_link_that_leads_back_ends_the_list(boards: Boards) -> None:
    serve(boards, JOBS, json_ld_postings)
    last = f"<html>{json_ld_postings(JOBS[8:])}<a rel=next href='/careers?page=2'>Next</a>"
    boards.web.routes["acme.test/careers?page=3"] = last
    boards.add(careers_page())

    boards.poll()

    assert len(boards.listings()) == len(JOBS)
    assert len([path for path in boards.web.paths if path.startswith("/careers")]) == 3
