"""The demo's catalogues are extracted by rules."""

import gzip
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingestion_pipeline import demo
from ingestion_pipeline.catalogs.extraction.entity_type import entity_type
from ingestion_pipeline.catalogs.extraction.pipeline import read_records
from ingestion_pipeline.catalogs.extraction.record import Record
from ingestion_pipeline.demo import catalog_sites
from ingestion_pipeline.demo.catalog_sites import (
    API_BASE,
    COLLEGE_COURSES,
    COLLEGE_HOST,
    DAY,
    EVENING,
    LANTERN_HOST,
    LOST,
    MEADOW_COURSES,
    MEADOW_HOST,
    PATIENCE,
    PROGRAMMES,
    RENDERED,
    TIDEWATER_COURSES,
    TIDEWATER_HOST,
    WEAVING,
    Course,
    courses,
    lantern_courses,
    meadow_courses,
    tidewater_courses,
)
from ingestion_pipeline.demo.content import DemoState, break_site, mutate, write_state
from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline.pages import robots_allows
from ingestion_pipeline.pages.visits.page import EmptyShell, LoginPage, classify_response
from ingestion_pipeline.reading import decode
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline_tests.demo.expected_results import Expected, expected
from ingestion_pipeline_tests.demo.site_requests import Reply, get

COURSE = entity_type("course")
MUTATED, BROKEN = mutate(DemoState()), break_site(DemoState())


def tidewater(site: DemoSite, query: str) -> Reply:
    return get(site, f"http://{TIDEWATER_HOST}/catalog?{query}")


def lantern(site: DemoSite, catalog: str, skip: int, limit: int = 20) -> Reply:
    query = f"catalogId={catalog}&skip={skip}&limit={limit}"
    return get(site, f"{API_BASE}/cm/lantern_demo/courses/search/%24filters?{query}")


def records(reply: Reply) -> Sequence[Record]:
    assert reply.status == 200
    return read_records(COURSE, Document.of(reply.body, reply.headers["Content-Type"])).records


def stated_fields(course: Course) -> dict[str, Any]:
    low, _, high = course.credits.partition("-")
    needed = course.prerequisites
    return {
        "course_id": course.code,
        "course_name": course.title,
        "course_description": course.description,
        "course_prerequisites": needed,
        "course_credits_min": float(low) if high else None,
        "course_credits_max": float(high or low),
    }


def read_fields(record: Record) -> dict[str, Any]:
    fields: dict[str, Any] = {name: record.fields[name] for name in stated_fields(WEAVING)}
    needed = fields["course_prerequisites"]
    fields["course_prerequisites"] = str(needed).removesuffix(".") if needed else None
    for name in ("course_credits_min", "course_credits_max"):
        fields[name] = None if fields[name] is None else float(str(fields[name]))
    return fields


def test_tidewater_pages_by_offset_and_its_last_page_is_shorter(site: DemoSite) -> None:
    pages = [records(tidewater(site, f"offset={start}&limit=8")) for start in (0, 8, 16)]

    assert [len(page) for page in pages] == [8, 8, 6]
    assert [read_fields(record) for page in pages for record in page] == [*map(stated_fields, TIDEWATER_COURSES)]


def test_tidewater_answers_an_empty_list_past_its_last_course(site: DemoSite) -> None:
    beyond = tidewater(site, "offset=24&limit=8")

    assert beyond.status == 200
    assert records(beyond) == []


def test_tidewater_without_an_offset_is_its_first_page(site: DemoSite) -> None:
    assert tidewater(site, "").body == tidewater(site, "offset=0&limit=8").body


@pytest.mark.parametrize("query", ["offset=-1", "offset=x", "limit=0", "limit=51", f"offset={10**30}"])
def test_tidewater_refuses_an_invalid_offset_or_limit(site: DemoSite, query: str) -> None:
    assert tidewater(site, query).status == 400


def test_the_api_returns_twenty_courses_at_a_time_until_the_end(site: DemoSite) -> None:
    pages = [lantern(site, DAY, skip).json for skip in (0, 20, 40)]

    assert [page["listLength"] for page in pages] == [35, 35, 35]
    assert [len(page["data"]) for page in pages] == [20, 15, 0]
    assert len(lantern(site, EVENING, 0).json["data"]) == 12


def test_the_api_responses_are_read_as_their_courses(site: DemoSite) -> None:
    found_records = [record for skip in (0, 20) for record in records(lantern(site, DAY, skip))]
    found_records += records(lantern(site, EVENING, 0))

    listed = lantern_courses(DemoState())
    assert [read_fields(record) for record in found_records] == [
        stated_fields(course) for name in listed for course in listed[name]
    ]


def test_the_api_serves_its_own_catalogs_and_no_other_school(site: DemoSite) -> None:
    catalogs = get(site, f"{API_BASE}/ca/lantern_demo/catalogs").json

    assert [catalog["id"] for catalog in catalogs] == [DAY, EVENING]
    assert get(site, f"{API_BASE}/ca/another/catalogs").status == 404
    assert get(site, f"{API_BASE}/cm/another/courses/search/$filters").status == 404
    assert lantern(site, "unknown", 0).json == {"listLength": 0, "data": []}
    assert lantern(site, DAY, 0, limit=0).status == 400


def test_the_page_of_the_api_names_its_platform_and_its_school(site: DemoSite) -> None:
    page = get(site, f"http://{LANTERN_HOST}/").body.decode()

    assert re.search(r'name="og:url" content="https://lantern_demo-catalog\.coursedog\.com', page)
    assert 'school: "lantern_demo"' in page


def test_meadow_leads_by_numbered_pages_to_a_page_for_each_course(site: DemoSite) -> None:
    school = f"http://{MEADOW_HOST}"
    lists = [get(site, f"{school}/programme?page={number}") for number in (1, 2, 3, 4)]
    paths = [re.findall(r'href="(/programme/[^"]+)"', page.body.decode()) for page in lists]

    assert [page.status for page in lists] == [200, 200, 200, 404]
    assert [len(page_paths) for page_paths in paths] == [5, 5, 4, 0]
    found_records = [record for page in paths for path in page for record in records(get(site, school + path))]
    assert [read_fields(record) for record in found_records] == [*map(stated_fields, MEADOW_COURSES)]


def test_the_courses_of_the_college_are_read_from_their_pages(site: DemoSite) -> None:
    readable = [course for course in courses(DemoState()) if course.code not in {RENDERED, "HIST 110"}]

    found_records = [
        record for course in readable for record in records(get(site, f"http://{COLLEGE_HOST}{course.path}"))
    ]
    assert [read_fields(record) for record in found_records] == [*map(stated_fields, readable)]


@pytest.mark.slow
def test_the_annex_teaches_weaving_and_patience(site: DemoSite) -> None:
    pages = [f"http://annex.demo.test/evening/{name}" for name in ("weaving", "slow")]

    found_records = [record for url in pages for record in records(get(site, url))]
    assert [read_fields(record) for record in found_records] == [stated_fields(WEAVING), stated_fields(PATIENCE)]


@pytest.mark.parametrize("listed", [courses, tidewater_courses, meadow_courses])
def test_each_mutation_adds_a_course_and_changes_the_credits_of_another(listed: Any) -> None:
    states = [DemoState(new_chapters=count) for count in range(4)]
    for before, after in pairwise(states):
        pairs = zip(listed(before), listed(after), strict=False)
        changed = [(old, new) for old, new in pairs if old != new]

        assert len(listed(after)) == len(listed(before)) + 1
        assert [(old.code, old.title) for old, _ in changed] == [(new.code, new.title) for _, new in changed]
        assert [old.credits != new.credits for old, new in changed] == [True]


def test_a_mutation_changes_the_pages(site: DemoSite) -> None:
    write_state(site.home, MUTATED)

    last = records(tidewater(site, "offset=16&limit=8"))
    second = [read_fields(record) for record in records(tidewater(site, "offset=8&limit=8"))]
    assert (len(last), last[-1].fields["course_id"]) == (7, "SEM 401")
    assert [fields["course_credits_max"] for fields in second if fields["course_id"] == "OCE 201"] == [4]
    day = lantern(site, DAY, 20).json
    assert (day["listLength"], day["data"][-1]["code"]) == (36, "SEM 401")
    assert lantern(site, DAY, 0).json["data"][0]["credits"]["creditHours"]["min"] == 4


def test_a_broken_site_has_one_error_page_and_one_empty_page(site: DemoSite) -> None:
    write_state(site.home, BROKEN)

    lost = next(course for course in courses(BROKEN) if course.code == LOST)
    assert [tidewater(site, f"offset={start}&limit=8").status for start in (0, 8, 16)] == [200, 500, 200]
    assert records(get(site, f"http://{COLLEGE_HOST}{lost.path}")) == []


def test_each_learning_outcome_is_verbatim_on_its_own_page_only(site: DemoSite) -> None:
    for programme in PROGRAMMES:
        page = get(site, f"http://{COLLEGE_HOST}{programme.path}").body.decode().replace("&#x27;", "'")
        others = [other for other in PROGRAMMES if other is not programme]

        assert [outcome for outcome in programme.learned if outcome not in page] == []
        assert [outcome for other in others for outcome in other.learned if outcome in page] == []
    assert get(site, f"http://{COLLEGE_HOST}/outcomes/nothing").status == 404


@pytest.mark.parametrize(
    ("state", "has_browser", "item_counts"),
    [
        (DemoState(), True, {"harbour": 12, "tidewater": 22, "lantern": 45, "meadow": 14}),
        (DemoState(), False, {"harbour": 11, "tidewater": 22, "lantern": 45, "meadow": 14}),
        (MUTATED, True, {"harbour": 13, "tidewater": 23, "lantern": 46, "meadow": 15}),
        (BROKEN, True, {"harbour": 11, "tidewater": 14, "lantern": 45, "meadow": 14}),
    ],
    ids=["shipped", "without a browser", "mutated", "broken"],
)
def test_the_expected_size_of_each_dataset_is_exact(
    state: DemoState, has_browser: bool, item_counts: dict[str, int]
) -> None:
    expectations = expected(state, has_browser=has_browser)

    assert {name: expectations[f"catalog:{name}"].items for name in item_counts} == item_counts
    assert expectations["catalog:lantern"].repeats == 2
    assert expectations["catalog:harbour-annex"] == Expected(items=2, pages=2)
    assert expectations["catalog:harbour-outcomes"] == Expected(items=5, pages=2, flagged=1)


def test_every_declared_catalog_is_served_and_has_an_expected_size(site: DemoSite) -> None:
    folder = Path(demo.__path__[0])
    declared = [
        source
        for name in ("sources.yaml", "catalogs.yaml")
        for source in yaml.safe_load((folder / name).read_text())["sources"]
        if source["kind"] == "catalog"
    ]

    assert {source["id"] for source in declared} == set(expected(DemoState(), has_browser=True))
    assert {get(site, source["url"]).status for source in declared} == {200}
    api = next(source for source in declared if source["id"] == "catalog:lantern")["config"]["recipe"]["api"]
    assert (api["api_base"], api["catalog_ids"]) == (API_BASE, [DAY, EVENING])


COLLEGE = f"http://{catalog_sites.COLLEGE_HOST}"
LINK = re.compile(r'class="course"><a href="([^"?]+)')


def listed(site: DemoSite, number: int) -> list[str]:
    return LINK.findall(get(site, f"{COLLEGE}/courses?page={number}").body.decode())


def test_three_numbered_pages_lead_to_twelve_courses(site: DemoSite) -> None:
    paths = [path for number in (1, 2, 3) for path in listed(site, number)]

    assert paths == [course.path for course in COLLEGE_COURSES] + ["/courses/archive/1962"]
    assert get(site, f"{COLLEGE}/courses?page=4").status == 404


def test_a_mutation_adds_a_course(site: DemoSite) -> None:
    write_state(site.home, mutate(DemoState()))

    assert listed(site, 3)[2:] == ["/courses/sem-401", "/courses/archive/1962"]
    assert b"Seminar of Term 1" in get(site, f"{COLLEGE}/courses/sem-401").body


def test_robots_txt_disallows_the_archive(site: DemoSite) -> None:
    robots = get(site, f"{COLLEGE}/robots.txt").body.decode()

    assert not robots_allows(robots, "ingestion_pipeline", f"{COLLEGE}/courses/archive/1962")
    assert robots_allows(robots, "ingestion_pipeline", f"{COLLEGE}/courses/cs-101")


def test_the_harbour_is_two_redirects_away(site: DemoSite) -> None:
    first = get(site, f"{COLLEGE}/courses/hist-110")
    second = get(site, COLLEGE + first.headers["Location"])
    third = get(site, COLLEGE + second.headers["Location"])

    assert [first.status, second.status, third.status] == [302, 302, 200]
    assert b"HIST 110: The Harbour and the Sea" in third.body


def test_one_page_declares_shift_jis_only_in_its_body(site: DemoSite) -> None:
    reply = get(site, f"{COLLEGE}/courses/jpn-101")

    assert reply.headers["Content-Type"] == "text/html"
    assert "日本語入門" in decode(reply.body, reply.headers["Content-Type"])


def test_one_page_is_empty_until_its_script_has_run(site: DemoSite) -> None:
    url = f"{COLLEGE}/courses/art-204"
    reply = get(site, url)

    assert b"Drawing Ships" not in reply.body
    response_class = classify_response(url, 200, {"content-type": "text/html"}, reply.body)
    assert isinstance(response_class, EmptyShell)


def test_the_members_pages_are_behind_a_login(site: DemoSite) -> None:
    url = f"http://{catalog_sites.MEMBERS_HOST}/courses"
    reply = get(site, url)

    response_class = classify_response(url, 200, {"content-type": "text/html"}, reply.body)
    assert isinstance(response_class, LoginPage)


@pytest.mark.slow
def test_the_annex_has_a_delay_and_a_bomb(site: DemoSite) -> None:
    annex = f"http://{catalog_sites.ANNEX_HOST}"

    assert b"Crawl-delay: 0.5" in get(site, f"{annex}/robots.txt").body
    bomb = get(site, f"{annex}/evening/endless")
    assert bomb.headers["Content-Encoding"] == "gzip"
    assert len(gzip.decompress(bomb.body)) == catalog_sites.BOMB_BYTES > 500 * len(bomb.body)
