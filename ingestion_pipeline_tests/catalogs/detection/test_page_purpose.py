"""Page type, platform, link clusters and paging by rules, on real and saved pages."""

import pytest

from ingestion_pipeline.catalogs.detection.link_shapes import clusters_of, platform_of, purpose_of
from ingestion_pipeline.catalogs.detection.page_analysis import PageAnalysis, analyze_page, find_paging
from ingestion_pipeline.catalogs.extraction.entity_type import entity_type
from ingestion_pipeline_tests.catalogs.course_pages import PAGES_WITH_COURSES, PAGES_WITHOUT_COURSES, saved_body
from ingestion_pipeline_tests.catalogs.detection import sites
from ingestion_pipeline_tests.samples import sample

URL = "http://a.test/list"


def analyze(html: str, url: str = URL) -> PageAnalysis:
    return analyze_page(html, url, kind=entity_type("course"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "page_type", "platform"),
    [
        ("banner/gatech_cs_catalog_listing.html", "DETAIL", "banner"),
        ("banner/gatech_cs1332_detail.html", "DETAIL", "banner"),
        ("banner/gatech_subject_select.html", None, "banner"),
        ("banner/gatech_term_select.html", None, None),
        ("courseleaf/odu_courseblock.html", "DETAIL", "courseleaf"),
        ("cleancatalog/atlanticcape_baking_certificate.html", "DETAIL_LINKS", None),
    ],
)
def test_the_type_and_platform_of_a_real_page_are_recognized(
    name: str, page_type: str | None, platform: str | None
) -> None:
    page = analyze(sample(f"courses/{name}").read_text(errors="replace"))
    matched = platform_of(page)

    assert purpose_of(page).page_type == page_type
    assert (matched.name if matched else None) == platform


PAGES = [name for name in PAGES_WITH_COURSES if saved_body(name).lstrip()[:1] not in "{["]
TEASERS = {"smartcatalog"}  # two courses in a line each, which link to their pages


@pytest.mark.parametrize("name", [name for name in PAGES if name not in TEASERS])
def test_a_page_of_courses_is_a_detail_page(name: str) -> None:
    assert purpose_of(analyze(saved_body(name))).page_type == "DETAIL"


@pytest.mark.parametrize("name", PAGES_WITHOUT_COURSES)
def test_a_page_without_courses_is_no_detail_page(name: str) -> None:
    assert purpose_of(analyze(saved_body(name))).page_type != "DETAIL"


def test_a_list_of_courses_without_descriptions_is_a_list_of_links() -> None:
    page = analyze(sites.numbered()["/courses"])

    purpose = purpose_of(page)

    assert purpose.page_type == "DETAIL_LINKS"
    assert {anchor.url for anchor in purpose.clusters[0].anchors} == {
        f"http://a.test/courses/{number}" for number in range(4)
    }


def test_a_menu_ranks_behind_the_content() -> None:
    first = clusters_of(analyze(sites.kuali()["/catalog/courses"]))[0]

    assert all("/catalog/courses/" in anchor.url for anchor in first.anchors)
    assert first.aside_share == 0


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        (
            {"/l?page=0": "1", "/l?page=1": "2", "/l?page=2": "3"},
            {"url_pattern": "http://a.test/l?page={page_num}", "total_pages": 3, "start_page": 0},
        ),
        (
            {"/l?start=0": "1", "/l?start=25": "2", "/l?start=100": "5"},
            {"url_pattern": "http://a.test/l?start={offset}", "total_pages": 5, "limit": 25},
        ),
        (
            {"/l/2/x": "2", "/l/3/x": "3", "/l/14/x": "14"},
            {"url_pattern": "http://a.test/l/{page_num}/x", "total_pages": 14},
        ),
        ({"/next": "Next"}, {"next": "rel"}),
        ({"/about": "About"}, None),
    ],
    ids=["from zero", "offset", "in the path", "next alone", "none"],
)
def test_paging_is_found_by_the_pager(links: dict[str, str], expected: object) -> None:
    paging = find_paging(analyze(sites.page(sites.pager(links))))

    assert (paging and dict(paging.pagination)) == expected
