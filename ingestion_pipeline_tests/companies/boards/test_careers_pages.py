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


def next_link(page: int, last: int) -> str:
    return f"<a rel=next href='/careers?page={page + 1}'>Next</a>" if page < last else ""


def page_links(page: int, last: int) -> str:
    links = (f"<a href='/careers?page={n}'>{n}</a>" for n in range(1, last + 1) if n != page)
    return f"<div class=pagination>{''.join(links)}</div>"


def page_links_from_zero(page: int, last: int) -> str:
    links = (f"<a href='/careers?page={n - 1}'>{n}</a>" for n in range(1, last + 1) if n != page)
    return f"<div class=pagination>{''.join(links)}</div>"


def offset_links(page: int, last: int) -> str:
    links = (f"<a href='/careers?start={(n - 1) * PER_PAGE}'>{n}</a>" for n in range(1, last + 1) if n != page)
    return f"<div class=pager>{''.join(links)}</div>"


def load_more_link(page: int, last: int) -> str:
    return f"<a class=button href='?page={page + 1}'>Load more</a>" if page < last else ""


def load_more_link_from_zero(page: int, last: int) -> str:
    return f"<a class=button href='?page={page}'>Show more jobs</a>" if page < last else ""


def arrow_link(page: int, last: int) -> str:
    icon = "<svg></svg>"
    link = f"<a aria-label='Next page' href='/careers?after=c{page + 1}'>{icon}</a>"
    return link if page < last else ""


PAGERS: dict[Callable[[int, int], str], str] = {
    next_link: "?page={page}",
    page_links: "?page={page}",
    page_links_from_zero: "?page={before}",
    offset_links: "?start={offset}",
    load_more_link: "?page={page}",
    load_more_link_from_zero: "?page={before}",
    arrow_link: "?after=c{page}",
}
KINDS: dict[str, tuple[dict[str, Any], Callable[[Sequence[int]], str]]] = {
    "jsonld": ({}, json_ld_postings),
    "html": ({"recognise": True}, job_cards),
    "selectors": ({"items": "ul.openings li", "fields": {"title": "a", "url": "a@href"}}, job_cards),
}


def serve(
    boards: Boards,
    numbers: Sequence[int],
    render: Callable[[Sequence[int]], str],
    pager: Callable[[int, int], str] = next_link,
) -> None:
    """Serve the jobs on consecutive pages of the careers page."""
    pages = [numbers[start : start + PER_PAGE] for start in range(0, len(numbers), PER_PAGE)]
    for number, jobs in enumerate(pages, 1):
        values = {"page": number, "before": number - 1, "offset": (number - 1) * PER_PAGE}
        query = PAGERS[pager].format(**values) if number > 1 else ""
        body = f"<html><body>{render(jobs)}{pager(number, len(pages))}</body></html>"
        boards.web.routes[f"acme.test/careers{query}"] = body


def careers_page(kind: str = "jsonld", **config: Any) -> Definition:
    platform = "html" if kind == "selectors" else kind
    return a_board(url=CAREERS, platform=platform, config=KINDS[kind][0] | config, company="acme")


def statuses(boards: Boards) -> dict[str, str]:
    return {listing.title: listing.status for listing in boards.listings()}


@pytest.mark.parametrize("pager", PAGERS, ids=lambda pager: pager.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_every_page_of_a_careers_page_is_read(boards: Boards, kind: str, pager: Callable[[int, int], str]) -> None:
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

    empty_page = f"<html><body><p>Back soon</p>{next_link(3, 9)}</body></html>"
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
