"""Pages that had records and have none now, on a loopback web."""

from collections.abc import Iterable

import pytest

from ingestion_pipeline.catalogs import checks, extraction_control
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.operations.source_health import source_statuses, sources_to_review
from ingestion_pipeline.pages.content.snapshots import dead_letter_snapshots
from ingestion_pipeline.sources.status import HealthStatus
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import data_items, datasets, extractions, pages
from ingestion_pipeline.tasks.ended_tasks import list_dead_letters
from ingestion_pipeline_tests.catalog_extractions import CATALOG_ID, LiveCatalog, a_catalog
from ingestion_pipeline_tests.catalogs.course_pages import course_html
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import add_sources, rows

pytestmark = [pytest.mark.both_databases, pytest.mark.slow]

ALL_COURSES = range(101, 125)
BROKEN = range(101, 106)
BARE_ERROR_PAGE = "<html><body><h1>Down for maintenance</h1><p>We will be back soon.</p></body></html>"


def framed_page(content: str) -> str:
    """Return a page with the header and footer of the site."""
    return (
        "<html><body><header><a href='/'>Harbour University</a><nav>Courses Staff Library</nav>"
        f"</header><main>{content}</main><footer>Harbour University, on the quay</footer>"
        "</body></html>"
    )


def course_list(numbers: Iterable[int]) -> str:
    return "<ul>" + "".join(f'<li><a href="/c/{number}">{number}</a></li>' for number in numbers) + "</ul>"


def serve_catalog(web: FakeWeb, store: Store) -> None:
    """Serve 24 courses, each on its own page."""
    web.routes |= {"/": framed_page(f"<h1>Catalogue</h1>{course_list(ALL_COURSES)}")}
    web.routes |= {f"/c/{number}": framed_page(course_html(number)) for number in ALL_COURSES}
    add_sources(store, a_catalog())


@pytest.fixture
def crawled(live: LiveCatalog) -> LiveCatalog:
    serve_catalog(live.web, live.store)
    live.crawl_all()
    return live


@pytest.fixture
def paged(live: LiveCatalog) -> LiveCatalog:
    serve_paged_catalog(live.web, live.store)
    live.crawl_all()
    return live


@pytest.fixture
def explored(live: LiveCatalog) -> LiveCatalog:
    serve_explored_catalog(live.web, live.store)
    live.crawl_all()
    return live


def published_numbers(store: Store) -> list[int]:
    """Return the numbers of the courses in the published dataset."""
    published = [row.id for row in rows(store, datasets) if row.status == "published"]
    items = [row for row in rows(store, data_items) if row.dataset_id == max(published)]
    return sorted(int(row.data["course_id"].split()[1]) for row in items)


def failed_pages(store: Store) -> dict[int, str]:
    """Return the failure codes of the last extraction, by course number."""
    last = max(row.id for row in rows(store, extractions))
    return {
        int(row.url[-3:]): row.failure["code"]
        for row in rows(store, pages)
        if row.extraction_id == last and row.status == "ERROR"
    }


def health(ctx: RunContext) -> HealthStatus:
    with ctx.store.read() as connection:
        now = ctx.store.clock.now(connection)
        [status] = source_statuses(connection, ctx.settings, now=now, ids=[CATALOG_ID])
        is_notable = CATALOG_ID in {
            source_to_review.facts.id for source_to_review in sources_to_review(connection, ctx.settings, now=now)
        }
    assert is_notable or status.assessment.health == "healthy"
    return status.assessment


def served_bodies(ctx: RunContext) -> list[bytes]:
    """Return the stored bodies of the open dead letters."""
    with ctx.store.read() as connection:
        snapshots = [dead_letter_snapshots(connection, dead_letter) for dead_letter in list_dead_letters(connection)]
    return [ctx.content.get(snapshot["body_hash"]) for [snapshot] in snapshots]


@pytest.mark.parametrize(
    "error_page",
    [
        BARE_ERROR_PAGE,
        framed_page("<h1>Something went wrong</h1><p>Please try again later.</p>"),
        framed_page("<h1>Wir sind gleich wieder da</h1><p>Bitte etwas Geduld.</p>"),
        "<html><body><h1>Coffee break</h1><p>The machines are resting.</p></body></html>",
        '{"error": "internal", "ok": false}',
    ],
    ids=["bare", "in the site's frame", "in words nobody knows", "another site", "data"],
)
def test_a_page_that_serves_an_error_page_keeps_its_records(crawled: LiveCatalog, error_page: str) -> None:
    crawled.web.routes |= {f"/c/{number}": error_page for number in BROKEN}

    for _ in range(3):
        crawled.crawl_all()

        assert published_numbers(crawled.store) == list(ALL_COURSES)
        assert failed_pages(crawled.store).keys() == set(BROKEN)
        assert health(crawled.ctx).health == "degraded"
    [*_, last] = crawled.rows(extractions)
    assert (last.status, last.summary["kept"]) == ("COMPLETE", len(BROKEN))
    with crawled.store.read() as connection:
        [finding] = checks.missing_pages(connection)
    assert (finding.subject, finding.message[:7]) == (CATALOG_ID, "5 pages")
    assert set(served_bodies(crawled.ctx)) == {error_page.encode()}


@pytest.mark.parametrize(
    "answer",
    [500, "", framed_page("<h1>Page not found</h1><p>There is no such page.</p>")],
    ids=["500", "nothing", "not found with status 200"],
)
def test_a_page_that_fails_in_any_way_keeps_its_records_and_degrades_its_source(
    crawled: LiveCatalog, answer: int | str
) -> None:
    crawled.web.routes["/c/101"] = answer

    crawled.crawl_all()

    assert published_numbers(crawled.store) == list(ALL_COURSES)
    assert health(crawled.ctx).health == "degraded"
    with crawled.store.read() as connection:
        [finding] = checks.missing_pages(connection)
    assert (finding.subject, finding.message[:6]) == (CATALOG_ID, "1 page")


def test_the_source_is_healthy_again_when_the_page_recovers(crawled: LiveCatalog) -> None:
    crawled.web.routes["/c/101"] = BARE_ERROR_PAGE
    crawled.crawl_all()
    [failed] = [row.failure for row in crawled.rows(pages) if row.status == "ERROR"]
    assert "/c/101 had 1 record and now has none: " in failed["message"]

    crawled.web.routes["/c/101"] = framed_page(course_html(101, about="other things"))
    crawled.crawl_all()

    assert published_numbers(crawled.store) == list(ALL_COURSES)
    assert failed_pages(crawled.store) == {}
    assert health(crawled.ctx).health == "healthy"
    assert served_bodies(crawled.ctx) == [BARE_ERROR_PAGE.encode()]  # of the failed fetch, not of the newest


@pytest.mark.parametrize(
    "emptied",
    [
        "<h1>MATH 101. Numbers 101.</h1><p>This course is no longer offered.</p>",
        "<p>Nothing is taught here this year.</p>",
        '<div class="courseblock"><p class="courseblocktitle"><strong></strong></p>'
        '<p class="courseblockdesc"></p></div>',
    ],
    ids=["names its course", "says nothing of it", "an empty form"],
)
def test_a_page_that_still_resembles_its_siblings_loses_its_records_at_the_second_read(
    crawled: LiveCatalog, emptied: str
) -> None:
    crawled.web.routes["/c/101"] = framed_page(emptied)

    crawled.crawl_all()
    assert (published_numbers(crawled.store), failed_pages(crawled.store)) == (
        list(ALL_COURSES),
        {101: "records_missing_once"},
    )
    assert health(crawled.ctx).health == "degraded"

    crawled.crawl_all()
    assert (published_numbers(crawled.store), failed_pages(crawled.store)) == (list(ALL_COURSES)[1:], {})
    assert health(crawled.ctx).health == "healthy"


def test_a_failure_between_two_reads_without_records_restarts_the_count(crawled: LiveCatalog) -> None:
    for answer in (framed_page("<p>None.</p>"), BARE_ERROR_PAGE, framed_page("<p>None.</p>")):
        crawled.web.routes["/c/101"] = answer
        crawled.crawl_all()

        assert published_numbers(crawled.store) == list(ALL_COURSES)


PAGED = {
    "page_type": "DETAIL_LINKS",
    "link_pattern": "/c/",
    "pagination": {"url_pattern": "/?page={page_num}", "total_pages": 3},
}
LIST_PAGES = {1: range(101, 109), 2: range(109, 114), 3: range(114, 125)}


def list_page(numbers: Iterable[int]) -> str:
    pager = "".join(f'<a href="/?page={page}">{page}</a>' for page in LIST_PAGES)
    return framed_page(f"<h1>Catalogue</h1>{course_list(numbers)}<nav>{pager}</nav>")


def serve_paged_catalog(web: FakeWeb, store: Store) -> None:
    """Serve the same courses, listed on three pages."""
    serve_catalog(web, store)
    web.routes |= {f"/?page={page}": list_page(numbers) for page, numbers in LIST_PAGES.items()}
    web.routes["/"] = web.routes["/?page=1"]
    add_sources(store, a_catalog(PAGED))


@pytest.mark.parametrize(
    "answer",
    [500, BARE_ERROR_PAGE, framed_page("<h1>Etwas ist schiefgelaufen</h1>")],
    ids=["500", "bare", "in the site's frame"],
)
def test_a_list_page_that_serves_an_error_keeps_the_records_behind_it(paged: LiveCatalog, answer: int | str) -> None:
    paged.web.routes["/?page=2"] = answer

    for _ in range(2):
        paged.crawl_all()

        assert published_numbers(paged.store) == list(ALL_COURSES)


def test_a_list_page_that_lost_its_links_is_accepted_at_the_second_read(paged: LiveCatalog) -> None:
    paged.web.routes["/?page=2"] = list_page([])

    paged.crawl_all()
    assert published_numbers(paged.store) == list(ALL_COURSES)
    assert health(paged.ctx).health == "degraded"

    paged.crawl_all()
    assert published_numbers(paged.store) == [*LIST_PAGES[1], *LIST_PAGES[3]]
    assert health(paged.ctx).health == "healthy"


def serve_categories(web: FakeWeb, store: Store) -> None:
    """Serve the same courses below three categories; `about` is a menu page and no category."""
    serve_catalog(web, store)
    for page, numbers in LIST_PAGES.items():
        web.routes[f"/d/{page}"] = framed_page(f"<h1>Part {page}</h1>{course_list(numbers)}")
    web.routes["/d/about"] = framed_page("<h1>About us</h1>")
    parts = "".join(f'<li><a href="/d/{page}">{page}</a></li>' for page in (*LIST_PAGES, "about"))
    web.routes["/"] = framed_page(f"<h1>Catalogue</h1><ul>{parts}</ul>")
    inner = {"page_type": "DETAIL_LINKS", "link_pattern": "/c/"}
    add_sources(store, a_catalog({"page_type": "CATEGORY_LINKS", "link_pattern": "/d/", "links": inner}))


@pytest.mark.parametrize("answer", [500, "", BARE_ERROR_PAGE], ids=["500", "nothing", "an error page"])
@pytest.mark.parametrize(("broken", "status"), [(1, "published"), (2, "quarantined")])
def test_a_first_dataset_with_failed_categories_is_degraded_and_quarantined_without_most(
    live: LiveCatalog, answer: int | str, broken: int, status: str
) -> None:
    serve_categories(live.web, live.store)
    live.web.routes |= {f"/d/{page}": answer for page in list(LIST_PAGES)[:broken]}

    live.crawl_all()

    assert [row.status for row in live.rows(datasets)] == [status]
    assert health(live.ctx).health == "degraded"


def test_a_menu_page_without_records_leaves_its_source_healthy(live: LiveCatalog) -> None:
    serve_categories(live.web, live.store)

    live.crawl_all()

    assert published_numbers(live.store) == list(ALL_COURSES)
    assert health(live.ctx).health == "healthy"


def serve_explored_catalog(web: FakeWeb, store: Store) -> None:
    """Serve the same courses below three categories, for an exploratory crawl."""
    serve_catalog(web, store)
    for page, numbers in LIST_PAGES.items():
        web.routes[f"/d/{page}"] = framed_page(f"<h1>Part {page}</h1>{course_list(numbers)}")
    parts = "".join(f'<li><a href="/d/{page}">Part {page}</a></li>' for page in LIST_PAGES)
    web.routes["/"] = framed_page(f"<h1>Catalogue</h1><ul>{parts}</ul>")
    add_sources(store, a_catalog({"page_type": "EXPLORATORY", "link_pattern": "/(c|d)/"}))


@pytest.mark.parametrize(
    "error_page",
    [
        BARE_ERROR_PAGE,
        framed_page("<h1>Something went wrong</h1><p>Please try again later.</p>"),
        "<html><body><h1>Coffee break</h1><p>The machines are resting.</p></body></html>",
    ],
    ids=["bare", "in the site's frame", "another site"],
)
def test_an_explored_page_that_serves_an_error_page_keeps_the_records_behind_it(
    explored: LiveCatalog, error_page: str
) -> None:
    explored.web.routes["/d/2"] = error_page

    for _ in range(3):
        explored.crawl_all()

        assert published_numbers(explored.store) == list(ALL_COURSES)
        assert health(explored.ctx).health == "degraded"
    assert set(served_bodies(explored.ctx)) == {error_page.encode()}


def test_an_explored_page_that_lost_its_links_is_accepted_at_the_second_read(explored: LiveCatalog) -> None:
    explored.web.routes["/d/2"] = framed_page("<h1>Part 2</h1><p>Nothing is taught here.</p>")

    explored.crawl_all()
    assert published_numbers(explored.store) == list(ALL_COURSES)
    assert health(explored.ctx).health == "degraded"

    for _ in range(2):
        explored.crawl_all()
        assert published_numbers(explored.store) == [*LIST_PAGES[1], *LIST_PAGES[3]]
        assert health(explored.ctx).health == "healthy"


@pytest.mark.parametrize("answer", [404, 410])
def test_a_page_that_is_gone_loses_its_records_at_once(crawled: LiveCatalog, answer: int) -> None:
    crawled.web.routes["/c/101"] = answer

    crawled.crawl_all()

    assert published_numbers(crawled.store) == list(ALL_COURSES)[1:]


def test_a_page_that_lost_its_records_is_fetched_again_by_a_retry(crawled: LiveCatalog) -> None:
    crawled.web.routes["/c/101"] = BARE_ERROR_PAGE
    crawled.crawl_all()
    crawled.web.routes["/c/101"] = framed_page(course_html(101, about="other things"))

    with crawled.store.begin() as connection:
        now = crawled.store.clock.now(connection)
        retried = extraction_control.retry(connection, 2, actor="ann", now=now)
    crawled.crawl_all()

    assert (retried.fetched, retried.read) == (1, 0)
    assert published_numbers(crawled.store) == list(ALL_COURSES)
    assert failed_pages(crawled.store) == {}
