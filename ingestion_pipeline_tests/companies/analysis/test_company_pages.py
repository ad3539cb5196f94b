"""Which pages of a site are fetched, and the technologies that they name."""

import json
import re
from typing import Any

import pytest

from ingestion_pipeline.companies.analysis.company_pages import (
    Role,
    SiteLink,
    guessed_pages,
    is_same_site,
    missing_roles,
    named_pages,
    role_of,
    technologies_in,
)
from ingestion_pipeline.companies.job_listing import MACHINE_LEARNING, STACK
from ingestion_pipeline_tests.companies.cases import with_cases
from ingestion_pipeline_tests.samples import sample

HOME = "https://www.acme.test/"


def anchors(*links: tuple[str, str]) -> list[SiteLink]:
    return [SiteLink(url=f"https://www.acme.test{path}", text=text) for path, text in links]


@with_cases("url", "text", "role")
def test_the_role_of_a_page_follows_from_its_path_or_link_text(url: str, text: str, role: Role | None) -> None:
    assert role_of(url, text) == role


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


def technology_names(text: str) -> set[str]:
    return {name for names in technologies_in(text).values() for name in names}


def test_the_technology_groups_have_the_documented_sizes() -> None:
    counts = {
        group: sum(technology.group == group for technology in STACK.values())
        for group in ("languages", "frontend", "infrastructure", "databases")
    }

    assert counts == {"languages": 8, "frontend": 4, "infrastructure": 5, "databases": 4}
    assert any(technology.group == MACHINE_LEARNING for technology in STACK.values())


@with_cases("text")
def test_similar_words_are_not_technologies(text: str) -> None:
    assert technology_names(text) == set()


@with_cases("text", "expected")
def test_technologies_are_found(text: str, expected: list[str]) -> None:
    assert technology_names(text) == set(expected)


def test_a_word_next_to_machine_learning_is_not_a_technology() -> None:
    assert technology_names("AI, Go further") == {"artificial intelligence"}


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for child in children for text in _texts(child)]


@pytest.mark.slow
def test_every_hit_in_the_samples_is_a_whole_word() -> None:
    """Real postings contain "email" and "ago": neither is "ai" or "go"."""
    bodies = sorted(sample("jobs").glob("*/*.json"))
    texts = [text for body in bodies for text in _texts(json.loads(body.read_bytes()))]

    assert len(texts) > 500
    for text in texts:
        names = technology_names(text)
        if "go" in names:
            assert re.search(r"\bGo\b|[Gg]olang", text)
        if "artificial intelligence" in names:
            assert re.search(r"\bAI\b|ntelligence|A\.I\.", text)
