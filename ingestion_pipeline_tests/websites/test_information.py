"""Phase 1: the business of a website, and the competitors it names."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingestion_pipeline.tasks.errors import Permanent, Transient, WorkError
from ingestion_pipeline.urls import BadUrl
from ingestion_pipeline.websites.business import (
    Business,
    FetchedPage,
    Informed,
    NamedBy,
    WebsiteConfig,
    business_key,
    confidence_of,
    home_url,
    parse_website_config,
)
from ingestion_pipeline.websites.information import information, informative_links, is_parked, named_competitors
from ingestion_pipeline.websites.mentions import Names
from ingestion_pipeline_tests.pages.page_fetches import failing
from ingestion_pipeline_tests.websites.website_runs import (
    ACME_PAGES,
    HOME,
    ORGANIZATION,
    json_ld,
    page_visitor,
    site_page,
)

CASES = yaml.safe_load((Path(__file__).parent / "expected" / "information.yaml").read_text(encoding="utf-8"))


def gather_information(pages: Mapping[str, str | WorkError], url: str = HOME, **changes: Any) -> Informed:
    visit = page_visitor(pages, changes.pop("seen", None))
    inputs: dict[str, Any] = {"model": None, "config": WebsiteConfig(), "source_id": None} | changes
    return asyncio.run(information(url, visit=visit, **inputs))


def read_business(pages: Mapping[str, str | WorkError], url: str = HOME, **changes: Any) -> Business:
    outcome = gather_information(pages, url, **changes)
    return outcome.business


def test_a_business_is_read_from_its_home_page_and_other_informative_pages() -> None:
    paths: list[str] = []

    business = read_business(ACME_PAGES, seen=paths)

    assert paths == ["/", "/about-us", "/contact", "/acme-vs-globex"]
    assert (business.name, business.industry, business.location) == ("Acme Tools", "Accounting software", "Köln, DE")
    assert business.aliases == ("Acme Tools GmbH",)
    assert business.keywords[:3] == ("invoicing", "tax returns", "payroll")
    assert 3 <= len(business.keywords) <= 5
    assert set(business.competitors) == {"Initech", "Globex"}
    assert business.language == "en"
    assert business.confidence == 100
    assert business.evidence["name"]["method"] == "embedded"


def test_a_url_without_a_scheme_works() -> None:
    assert read_business(ACME_PAGES, "www.acme-tools.test").url == "https://www.acme-tools.test"


def test_a_name_from_the_domain_has_a_confidence_of_twenty() -> None:
    business = read_business({"/": site_page("<p>Hi</p>", title="Home")})

    assert (business.name, business.confidence) == ("Acme Tools", 20)


def test_the_title_names_the_business_if_its_domain_agrees() -> None:
    business = read_business({"/": site_page("<p>Hi</p>", title="Welcome | ACME Tools")})

    assert business.name == "ACME Tools"
    assert business.evidence["name"]["method"] == "title"


def test_the_footer_names_the_business_if_nothing_else_does() -> None:
    business = read_business({"/": site_page("<p>Hi</p><footer>© 2026 Globex Ltd</footer>")})

    assert (business.name, business.evidence["name"]["method"]) == ("Globex", "text")
    assert business.evidence["name"]["status"] == "exact"


@pytest.mark.parametrize("error", [Permanent("gone", code="http_404"), Transient("down")])
def test_without_its_home_page_the_phase_fails_with_the_error_of_the_fetch(error: WorkError) -> None:
    with pytest.raises(type(error)) as failure:
        gather_information({"/": error})

    assert failure.value is error


@pytest.mark.parametrize(
    "text",
    [
        "acme.test is parked free, courtesy of a registrar.",
        "This domain is for sale! Make an offer on this domain.",
        "The domain acme.test may be for sale. Buy this domain.",
        "Diese Domain steht zum Verkauf.",
        "Ce nom de domaine est à vendre",
        "Этот домен продаётся",
    ],
)
def test_a_parked_domain_is_nobodys_business(text: str) -> None:
    with pytest.raises(Permanent) as failure:
        gather_information({"/": site_page(f"<h1>acme.test</h1><p>{text}</p>")})

    assert failure.value.code == "parked_domain"


def test_a_business_that_writes_about_domains_is_one() -> None:
    article = (
        "<p>How to tell that a domain is for sale, and what it costs.</p>" + "<p>We sell tools to gardeners.</p>" * 60
    )

    assert read_business({"/": site_page(article)}).name
    assert is_parked(FetchedPage(url="https://www.hugedomains.com/domain_profile.cfm?d=acme", html="<p>Acme</p>"))


def test_a_notice_that_holds_a_sentence_names_no_business() -> None:
    business = read_business({"/": site_page("<p>Hi</p><footer>© 2026 Copying is forbidden</footer>")})

    assert (business.name, business.evidence["name"]["method"]) == ("Acme Tools", "domain")


def test_a_stated_keyword_is_sure_and_a_counted_one_is_not() -> None:
    business = read_business(ACME_PAGES)

    assert set(business.unsure) == set(business.keywords) - {"invoicing", "tax returns", "payroll"}


def test_a_keyword_of_a_meta_tag_is_sure_if_the_text_has_it_in_small_letters() -> None:
    keywords = "rye bread, Leeds, review, cake, bread for everybody who loves bread"
    head = f"<meta name='keywords' content='{keywords}'>"
    body = "<p>We bake rye bread in Leeds. Each review is good.</p><p>We bake bread for everybody who loves bread.</p>"

    business = read_business({"/": site_page(body, head=head)})

    assert set(business.keywords) - set(business.unsure) == {"rye bread"}


@pytest.mark.parametrize(
    "industry", ["general", "BusinessApplication", "https://schema.org/Other", "We bake. You eat."]
)
def test_an_industry_that_nobody_asks_for_is_unsure(industry: str) -> None:
    page = site_page(head=json_ld({**ORGANIZATION, "industry": industry}))

    assert industry in read_business({"/": page}).unsure
    assert industry not in read_business({"/": page}, config=WebsiteConfig(industry=industry)).unsure


def test_an_address_in_the_text_is_an_unsure_location() -> None:
    business = read_business({"/": site_page("<address>Mill Lane<br>Leeds</address>")})

    assert business.unsure == (business.location,) == ("Mill Lane, Leeds",)


def test_a_business_stored_without_doubts_is_read() -> None:
    stored = {name: value for name, value in read_business(ACME_PAGES).as_json().items() if name != "unsure"}

    assert Business.from_json(stored).unsure == ()


def test_another_page_that_fails_is_only_a_problem() -> None:
    outcome = gather_information({"/": ACME_PAGES["/"], "/about-us": Transient("down", code="http_503")})

    assert outcome.business.name == "Acme Tools"
    assert outcome.problems[0].code == "http_503"


def test_values_of_the_operator_are_used_without_a_fetch() -> None:
    paths: list[str] = []
    config = WebsiteConfig(name="Acme", competitors=("Globex",), keywords=("tools",), language="DE")

    business = read_business(ACME_PAGES, config=config, seen=paths)

    assert paths == []
    assert (business.name, business.confidence, business.competitors) == ("Acme", 100, ("Globex",))
    assert business.language == "de"


def test_values_of_the_operator_override_the_page() -> None:
    business = read_business(ACME_PAGES, config=WebsiteConfig(industry="Bakery software", competitors=("Hooli",)))

    assert (business.name, business.industry) == ("Acme Tools", "Bakery software")
    assert business.competitors[0] == "Hooli"


def test_a_bad_url_fails_permanently_with_a_reason() -> None:
    with failing(Permanent, "bad_url") as failure:
        gather_information(ACME_PAGES, "https://user:secret@acme.test")

    assert "secret" not in failure.value.text


def test_a_business_survives_a_json_round_trip() -> None:
    business = read_business(ACME_PAGES)

    assert Business.from_json(business.as_json()) == business


@pytest.mark.parametrize("url", ["acme.test", "http://acme.test", "https://www.acme.test/", "HTTPS://ACME.test/#a"])
def test_every_spelling_of_a_url_has_one_business_key(url: str) -> None:
    assert business_key(url) == business_key("https://acme.test")
    assert business_key(url) != business_key("https://acme.test/shop")


def test_a_url_without_a_host_is_refused() -> None:
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
def test_confidence_follows_from_the_source_of_the_name_and_other_facts(
    named_by: NamedBy, changes: dict[str, Any], points: int
) -> None:
    assert confidence_of(named_by=named_by, **changes) == points


def test_one_informative_page_of_each_kind_is_chosen_on_the_same_site() -> None:
    links = [
        "https://acme.test/en/about-us",
        "https://acme.test/company/history/1990/spring",
        "https://acme.test/impressum",
        "https://other.test/about",
        "https://acme.test/blog/what-about-it",
        "https://acme.test/about",
        "https://acme.test/products",
    ]

    chosen = informative_links(links, "https://www.acme.test/", most=3)

    assert chosen == ["https://acme.test/about", "https://acme.test/impressum", "https://acme.test/products"]


def test_every_mistake_in_a_website_config_is_reported_at_once() -> None:
    config = {"business": {"name": "", "colour": "red", "aliases": "ACME"}, "prompts": ["ok?", 7]}

    _, mistakes = parse_website_config(config)

    assert {mistake.field for mistake in mistakes} == {
        "config.business.colour",
        "config.business.name",
        "config.business.aliases",
        "config.prompts[1]",
    }


def test_a_website_config_is_parsed() -> None:
    config, mistakes = parse_website_config({"business": {"name": "Acme", "aliases": ["ACME"]}, "prompts": ["Who?"]})

    assert mistakes == []
    assert (config.name, config.aliases, config.prompts) == ("Acme", ("ACME",), ("Who?",))
    assert config.is_manual


ACME_NAMES = Names.of("Acme", url="https://acme.test")


@pytest.mark.parametrize(("text", "names"), CASES["competitors_are_found_in_comparisons"])
def test_competitors_are_found_in_comparisons(text: str, names: list[str]) -> None:
    assert list(named_competitors([text], [], ACME_NAMES, most=5)) == names


def test_competitors_are_found_in_urls_of_comparison_pages() -> None:
    links = ["https://acme.test/vs/globex", "https://acme.test/acme-vs-initech", "/about"]

    assert named_competitors([], links, ACME_NAMES, most=5) == ("Globex", "Initech")


def test_the_most_frequent_competitors_come_first_up_to_a_limit() -> None:
    texts = ["alternative to Globex", "Acme vs Initech", "unlike Initech"]

    assert named_competitors(texts, [], ACME_NAMES, most=1) == ("Initech",)
