import gzip
import re

import pytest

from ingestion_pipeline.demo import catalog_sites
from ingestion_pipeline.demo.catalog_sites import COLLEGE_COURSES
from ingestion_pipeline.demo.content import DemoState, mutate, write_state
from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline.pages import robots_allows
from ingestion_pipeline.pages.visits.page import EmptyShell, LoginPage, classify_response
from ingestion_pipeline.reading import decode
from ingestion_pipeline_tests.demo.site_requests import get

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
