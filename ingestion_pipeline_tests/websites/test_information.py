"""Phase 1: what a website is the website of."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from ingestion_pipeline.settings import Website
from ingestion_pipeline.tasks.errors import Permanent, Transient, WorkError
from ingestion_pipeline.urls import BadUrl
from ingestion_pipeline.websites.business import Business, NamedBy, business_key, confidence_of, home_url
from ingestion_pipeline.websites.facts import informative_links
from ingestion_pipeline.websites.information import information
from ingestion_pipeline.websites.source_config import WebsiteConfig, parse_website_config
from ingestion_pipeline.websites.states import InformationOutcome, Informed, PhaseFailed
from ingestion_pipeline_tests.websites.sites import ACME, HOME, site_page, visits


def informed(pages: Mapping[str, str | WorkError], url: str = HOME, **changes: Any) -> InformationOutcome:
    visit = visits(pages, changes.pop("seen", None))
    settings = changes.pop("settings", Website())
    return asyncio.run(information(url, visit=visit, settings=settings, **changes))


def business(pages: Mapping[str, str | WorkError], url: str = HOME, **changes: Any) -> Business:
    outcome = informed(pages, url, **changes)
    assert isinstance(outcome, Informed), outcome
    return outcome.business


def test_a_business_is_read_from_its_home_page_and_others_that_tell_more() -> None:
    seen: list[str] = []

    found = business(ACME, seen=seen)

    assert seen == ["/", "/about-us", "/contact", "/acme-vs-globex"]
    assert (found.name, found.industry, found.location) == ("Acme Tools", "Accounting software", "Köln, DE")
    assert found.aliases == ("Acme Tools GmbH",)
    assert found.keywords[:3] == ("invoicing", "tax returns", "payroll")
    assert 3 <= len(found.keywords) <= 5
    assert set(found.competitors) == {"Initech", "Globex"}
    assert found.language == "en"
    assert found.confidence == 100
    assert found.evidence["name"]["rung"] == "embedded"


def test_a_url_without_a_scheme_works() -> None:
    assert business(ACME, "www.acme-tools.test").url == "https://www.acme-tools.test"


def test_a_name_from_the_domain_is_worth_twenty() -> None:
    found = business({"/": site_page("<p>Hi</p>", title="Home")})

    assert (found.name, found.confidence) == ("Acme Tools", 20)


def test_a_title_names_the_business_if_its_domain_agrees() -> None:
    found = business({"/": site_page("<p>Hi</p>", title="Welcome | ACME Tools")})

    assert found.name == "ACME Tools"
    assert found.evidence["name"]["rung"] == "title"


def test_a_footer_names_the_business_if_nothing_else_does() -> None:
    found = business({"/": site_page("<p>Hi</p><footer>© 2026 Globex Ltd</footer>")})

    assert (found.name, found.evidence["name"]["rung"]) == ("Globex", "text")
    assert found.evidence["name"]["status"] == "exact"


@pytest.mark.parametrize("error", [Permanent("gone", code="http_404"), Transient("down")])
def test_without_its_home_page_the_phase_fails_as_the_visit_did(error: WorkError) -> None:
    outcome = informed({"/": error})

    assert outcome == PhaseFailed(error=error)


def test_another_page_that_fails_is_a_problem_and_no_more() -> None:
    outcome = informed({"/": ACME["/"], "/about-us": Transient("down", code="http_503")})

    assert isinstance(outcome, Informed)
    assert outcome.business.name == "Acme Tools"
    assert outcome.problems[0].code == "http_503"


def test_what_the_operator_says_is_not_looked_up() -> None:
    seen: list[str] = []
    given = WebsiteConfig(name="Acme", competitors=("Globex",), keywords=("tools",), language="DE")

    found = business(ACME, config=given, seen=seen)

    assert seen == []
    assert (found.name, found.confidence, found.competitors) == ("Acme", 100, ("Globex",))
    assert found.language == "de"


def test_the_operator_corrects_what_is_read() -> None:
    found = business(ACME, config=WebsiteConfig(industry="Bakery software", competitors=("Hooli",)))

    assert (found.name, found.industry) == ("Acme Tools", "Bakery software")
    assert found.competitors[0] == "Hooli"


def test_a_bad_address_fails_for_good_and_says_why() -> None:
    outcome = informed(ACME, "https://user:secret@acme.test")

    assert isinstance(outcome, PhaseFailed)
    assert outcome.error.code == "bad_url"
    assert "secret" not in outcome.error.text


def test_an_analysis_keeps_its_business_as_it_was() -> None:
    found = business(ACME)

    assert Business.from_json(found.as_json()) == found


@pytest.mark.parametrize("url", ["acme.test", "http://acme.test", "https://www.acme.test/", "HTTPS://ACME.test/#a"])
def test_a_business_has_one_key_however_its_address_is_written(url: str) -> None:
    assert business_key(url) == business_key("https://acme.test")
    assert business_key(url) != business_key("https://acme.test/shop")


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(BadUrl):
        home_url("https://")


@pytest.mark.parametrize(
    ("named_by", "changes", "points"),
    [
        (NamedBy.DOMAIN, {"facts": ("a", "b", "c", "d"), "keywords": 5}, 20),
        (NamedBy.TEXT, {}, 50),
        (NamedBy.MODEL, {}, 50),
        (NamedBy.TITLE, {"agrees_with_domain": True}, 60),
        (NamedBy.META, {"facts": ("a", None, "c", None)}, 68),
        (NamedBy.EMBEDDED, {"keywords": 3}, 74),
        (NamedBy.EMBEDDED, {"keywords": 2}, 70),
        (NamedBy.EMBEDDED, {"agrees_with_domain": True, "facts": ("a", "b", "c", "d"), "keywords": 4}, 100),
        (NamedBy.OPERATOR, {}, 100),
    ],
)
def test_confidence_is_by_who_named_it_and_what_else_is_known(
    named_by: NamedBy, changes: dict[str, Any], points: int
) -> None:
    assert confidence_of(named_by=named_by, **changes) == points


def test_telling_pages_are_one_of_a_kind_of_the_same_site() -> None:
    links = [
        "https://acme.test/en/about-us",
        "https://acme.test/company/history/1990/spring",
        "https://acme.test/impressum",
        "https://other.test/about",
        "https://acme.test/blog/what-about-it",
        "https://acme.test/about",
        "https://acme.test/products",
    ]

    found = informative_links(links, "https://www.acme.test/", most=3)

    assert found == ["https://acme.test/about", "https://acme.test/impressum", "https://acme.test/products"]


def test_everything_wrong_with_what_is_given_is_said_at_once() -> None:
    config = {"business": {"name": "", "colour": "red", "aliases": "ACME"}, "prompts": ["ok?", 7]}

    _, bad = parse_website_config(config)

    assert {one.field for one in bad} == {
        "config.business.colour",
        "config.business.name",
        "config.business.aliases",
        "config.prompts[1]",
    }


def test_what_is_given_is_read() -> None:
    given, bad = parse_website_config({"business": {"name": "Acme", "aliases": ["ACME"]}, "prompts": ["Who?"]})

    assert bad == []
    assert (given.name, given.aliases, given.prompts) == ("Acme", ("ACME",), ("Who?",))
    assert given.is_manual
