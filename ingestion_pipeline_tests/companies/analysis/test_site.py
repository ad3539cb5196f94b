"""Which pages of a site are fetched, chosen by their names."""

import pytest

from ingestion_pipeline.companies.analysis.company_pages import (
    Role,
    SiteLink,
    guessed_pages,
    is_same_site,
    missing_roles,
    named_pages,
    role_of,
)

HOME = "https://www.acme.test/"


def anchors(*links: tuple[str, str]) -> list[SiteLink]:
    return [SiteLink(url=f"https://www.acme.test{path}", text=text) for path, text in links]


@pytest.mark.parametrize(
    ("url", "text", "role"),
    [
        ("https://a.test/about", "", Role.ABOUT),
        ("https://a.test/en/about-us.html", "", Role.ABOUT),
        ("https://a.test/x/17", "Who we are", Role.ABOUT),
        ("https://a.test/%C3%BCber-uns/", "", Role.ABOUT),
        ("https://a.test/company/careers", "Company", Role.CAREERS),
        ("https://a.test/x", "We're hiring!", Role.CAREERS),
        ("https://a.test/x", "Open positions", Role.CAREERS),
        ("https://a.test/life-at-acme", "", Role.CULTURE),
        ("https://a.test/careers/senior-engineer", "Senior Engineer", None),
        ("https://a.test/blog/about-the-new-office-and-more", "", None),
        ("https://a.test/a/b/c/d/about", "", None),
        ("https://a.test/", "Home", None),
    ],
)
def test_the_role_of_a_page_follows_from_its_path_or_link_text(url: str, text: str, role: Role | None) -> None:
    assert role_of(url, text) is role


def test_a_page_is_chosen_before_its_subpages() -> None:
    links = anchors(("/x/y/about", "About"), ("/about", "About"), ("/story", "Our story"), ("/jobs", "Jobs"))

    pages = named_pages(links, home=HOME, named_by="navigation")

    assert [(page.url.removeprefix(HOME[:-1]), page.role) for page in pages if page.role is Role.ABOUT] == [
        ("/about", Role.ABOUT),
        ("/story", Role.ABOUT),
    ]
    assert [page.url.removeprefix(HOME[:-1]) for page in pages if page.role is Role.CAREERS] == ["/jobs"]


def test_other_sites_and_the_home_page_are_not_chosen() -> None:
    links = [
        *anchors(("/", "About us")),
        SiteLink(url="https://partner.test/about", text="About"),
        SiteLink(url="https://careers.acme.test/jobs", text="Jobs"),
    ]

    pages = named_pages(links, home=HOME, named_by="navigation")

    assert [page.url for page in pages] == ["https://careers.acme.test/jobs"]


def test_a_host_with_a_similar_ending_is_another_site() -> None:
    assert is_same_site("https://jobs.acme.test/", HOME)
    assert not is_same_site("https://notacme.test/", HOME)


def test_the_usual_addresses_are_tried_in_their_order() -> None:
    assert [page.url for page in guessed_pages(HOME, Role.ABOUT)] == [
        "https://www.acme.test/about",
        "https://www.acme.test/about-us",
        "https://www.acme.test/company",
    ]
    assert missing_roles([Role.HOME, Role.ABOUT]) == [Role.CAREERS]
