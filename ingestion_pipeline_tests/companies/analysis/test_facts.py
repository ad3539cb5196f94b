"""What pages state of their company: data first, then words, each with its proof."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ingestion_pipeline.companies.analysis.analysis import (
    Findings,
    collect_findings,
    is_remote_first,
    parse_company_page,
)
from ingestion_pipeline.companies.analysis.boards import boards_in
from ingestion_pipeline.companies.analysis.facts import CompanyPage
from ingestion_pipeline.companies.analysis.site import Role
from ingestion_pipeline_tests.samples import sample

HOME = "https://www.acme.test/"
LONG = "Acme makes machines that sort parcels, and has done so for longer than most can remember."


def page(body: str, *, role: Role = Role.ABOUT, head: str = "", path: str = "about") -> CompanyPage:
    html = f"<html><head>{head}</head><body><main>{body}</main></body></html>"
    return parse_company_page(html, url=f"{HOME}{path}", role=role)


def facts_of(body: str, **more: Any) -> dict[str, object]:
    found = collect_findings([page(body, **more)], website=HOME)
    return {name: fact.value for name, fact in found.facts.items()}


def with_data(**organization: Any) -> Findings:
    data = {"@type": "Organization", "name": "Acme", "url": HOME} | organization
    script = f'<script type="application/ld+json">{json.dumps(data)}</script>'
    return collect_findings([page(f"<p>{LONG}</p>", head=script)], website=HOME)


@pytest.mark.parametrize(
    ("sentence", "field", "value"),
    [
        ("We were founded in 2009 by two friends.", "founded", 2009),
        ("Founded by Ann Lee and Bob Ray in 2015, we grew.", "founded", 2015),
        ("Gegründet 1998 in Graz.", "founded", 1998),
        ("Our 250+ employees work everywhere.", "size", "250+ employees"),
        ("We are a team of 40 people.", "size", "team of 40 people"),
        ("Wir beschäftigen 1.200 Mitarbeiterinnen.", "size", "1.200 Mitarbeiterinnen"),
        ("Acme is headquartered in Portland, Oregon.", "headquarters", "Portland, Oregon"),
        ("We are based in New York City.", "headquarters", "New York City"),
        ("Headquarters: Graz, Austria", "headquarters", "Graz, Austria"),
        ("Acme is headquartered in Portland, Oregon. Our team is small.", "headquarters", "Portland, Oregon"),
        ("We are based in Berlin. Founders wanted a garden.", "headquarters", "Berlin"),
        ("Headquarters: Washington, D.C. Our doors are open.", "headquarters", "Washington, D.C."),
        ("We are headquartered in the U.S. Our team is small.", "headquarters", "the U.S."),
        ("Headquartered in St. Louis, Missouri! We hire.", "headquarters", "St. Louis, Missouri"),
        ("Headquartered in Portland, Oregon, Acme builds machines.", "headquarters", "Portland, Oregon"),
        ("We are headquartered in Graz, Austria with offices in Oslo.", "headquarters", "Graz, Austria"),
        ("Our head office: Stratford-upon-Avon, England. Visit us.", "headquarters", "Stratford-upon-Avon, England"),
        ("Industry: Logistics software", "industry", "Logistics software"),
        ("We are on a mission to make parcels happy.", "mission", "We are on a mission to make parcels happy."),
    ],
)  # fmt: skip
def test_a_sentence_states_its_fact(sentence: str, field: str, value: object) -> None:
    assert facts_of(f"<p>{sentence}</p>")[field] == value


@pytest.mark.parametrize(
    "sentence",
    [
        "In 2019 employees of our customers voted for us.",
        "Our app has 2,000,000 people talking.",
        "The city was founded long ago; room 2014 is free.",
        "Based on feedback, in Portland we opened nothing.",
        "Unknown",
    ],
)
def test_what_is_no_statement_gives_no_fact(sentence: str) -> None:
    assert set(facts_of(f"<p>{sentence}</p>")) <= set()


def test_parts_under_headings_are_what_their_headings_say() -> None:
    body = f"<h1>About us</h1><p>{LONG}</p><h2>Our values</h2><p>{LONG[::-1]}</p><h2>Mission</h2>"
    body += "<p>To sort every parcel of this world before anybody has to ask where it is.</p>"

    found = facts_of(body)

    assert (found["about"], found["culture"]) == (LONG, LONG[::-1])
    assert str(found["mission"]).startswith("To sort every parcel")


def test_data_for_machines_come_before_words() -> None:
    found = with_data(foundingDate="2001", numberOfEmployees=42, industry="Robots", description="d" * 60)

    assert found.value("about") == "d" * 60
    assert (found.value("founded"), found.value("size")) == (2001, "42")
    assert {fact.method for fact in found.facts.values()} == {"embedded"}
    assert found.facts["industry"].grounding.status == "source"


@pytest.mark.parametrize("word", ["Unknown", "N/A", "-", " "])
def test_a_word_for_nothing_is_nothing(word: str) -> None:
    found = with_data(industry=word)

    assert found.value("industry") is None
    assert "industry" in found.missing


def test_the_data_of_another_organization_are_not_ours() -> None:
    found = with_data(url="https://partner.test/", foundingDate="1950", name="Partner")

    assert (found.name, found.value("founded")) == (None, None)


PARTNER = {"@type": "Organization", "name": "Globex", "sameAs": "https://globex.test/"}


def named_by(*things: dict[str, Any], head: str = "", path: str = "") -> str | None:
    """Return the name that a home page with these things for machines gives the company."""
    script = f'<script type="application/ld+json">{json.dumps(things)}</script>'
    home = page("<h1>Welcome</h1>", role=Role.HOME, head=head + script, path=path)
    return collect_findings([home], website=HOME).name


@pytest.mark.parametrize(
    "partner",
    [
        PARTNER,
        PARTNER | {"url": f"{HOME}partners/globex"},
        PARTNER | {"sameAs": ["https://www.linkedin.com/company/globex", "https://globex.test/"]},
        PARTNER | {"@id": f"{HOME}#globex"},
        {"@type": "JobPosting", "title": "Welder", "hiringOrganization": PARTNER},
    ],
)
def test_a_partner_with_a_site_of_its_own_does_not_name_the_company(partner: dict[str, Any]) -> None:
    own = {"@type": "Organization", "name": "Acme Robotics"}

    assert named_by(partner) is None
    assert named_by(partner, head='<meta property="og:site_name" content="Acme">') == "Acme"
    assert named_by(partner, own) == "Acme Robotics"


def test_of_several_organizations_the_one_called_like_the_site_names_the_company() -> None:
    partner = {"@type": "Organization", "name": "Globex"}
    own = {"@type": "Organization", "name": "Acme Robotics"}

    assert named_by(partner, own) == "Acme Robotics"
    assert named_by(partner | {"url": HOME}, own | {"url": HOME}) == "Acme Robotics"
    assert named_by({"@type": "Review", "author": partner, "itemReviewed": own}) == "Acme Robotics"


def test_profiles_elsewhere_do_not_make_the_company_a_partner() -> None:
    profiles = ["https://www.linkedin.com/company/acme", "https://x.com/acme"]
    own = {"@type": "Organization", "name": "Acme Robotics"}

    assert named_by(own | {"sameAs": profiles}) == "Acme Robotics"
    assert named_by(own | {"sameAs": "https://directory.test/acme"}) == "Acme Robotics"
    called = own | {"name": "Robotics of Graz"}
    assert named_by(called | {"sameAs": profiles}) == "Robotics of Graz"
    assert named_by(called | {"sameAs": "https://r.test/", "url": HOME}) == "Robotics of Graz"


@pytest.mark.parametrize("word", ["Unknown", "N/A", "Confidential"])
def test_a_word_for_nothing_does_not_name_the_company(word: str) -> None:
    assert named_by({"@type": "Organization", "name": word, "url": HOME}) is None


def test_microdata_are_read_like_json_ld() -> None:
    body = (
        '<div itemscope itemtype="https://schema.org/Organization"><span itemprop=name>Acme'
        " GmbH</span><span itemprop=foundingDate>1999</span></div>"
    )
    found = collect_findings([page(body)], website=HOME)

    assert (found.name, found.value("founded")) == ("Acme", 1999)


def test_every_fact_of_rules_stands_in_the_text() -> None:
    one = page(f"<p>{LONG}</p><p>Founded in 2011 in Graz.</p>")
    found = collect_findings([one], website=HOME)

    for fact in found.facts.values():
        span = one.text[fact.grounding.start : fact.grounding.end]
        assert str(fact.value) in span or span in str(fact.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("We are remote-first.", True),
        ("A fully distributed team", True),
        ("We are not a remote-first company.", None),
        ("Remote control of machines", None),
        ("", None),
    ],
)
def test_remote_first_is_said_or_not_known(text: str, expected: bool | None) -> None:
    assert is_remote_first(text) is expected


def test_a_real_page_states_a_company() -> None:
    html = sample("company_pages/fairkom.eu.about.html").read_text()
    one = parse_company_page(html, url="https://www.fairkom.eu/about", role=Role.ABOUT)

    found = collect_findings([one], website="https://www.fairkom.eu/")

    assert len(str(found.value("about"))) > 100
    assert found.facts["about"].grounding.is_proof


# --- boards


def boards_of(body: str, role: Role = Role.CAREERS) -> list[tuple[str, str | None]]:
    found = boards_in([page(body, role=role, path="careers")], home=HOME, names=["Acme"])
    return [(one.platform, one.token) for one in found]


@pytest.mark.parametrize(
    "body",
    [
        '<a href="https://boards.greenhouse.io/acme">Jobs</a>',
        '<a href="https://boards.greenhouse.io/acme/jobs/123">Engineer</a>',
        '<script src="https://boards.greenhouse.io/embed/job_board/js?for=acme"></script>',
        '<iframe src="https://boards.greenhouse.io/embed/job_board?for=acme"></iframe>',
        '<script>load("https:\\/\\/boards-api.greenhouse.io\\/v1\\/boards\\/acme\\/jobs")</script>',
    ],
)
def test_a_board_is_found_as_a_link_inside_or_in_a_script(body: str) -> None:
    assert boards_of(body) == [("greenhouse", "acme")]


def test_the_board_of_a_customer_is_not_ours() -> None:
    body = '<p>Our customer <a href="https://jobs.lever.co/bigcorp">BigCorp</a> is happy.</p>'

    assert boards_of(body, Role.HOME) == []
    assert boards_of('<a href="https://jobs.lever.co/acme">us</a>', Role.HOME) == [("lever", "acme")]


@pytest.mark.parametrize("words", ["hiring", "We're hiring", "Careers", "Jobs"])
def test_a_link_on_the_home_page_makes_no_board_ours_that_is_not_called_like_us(words: str) -> None:
    link = '<p>Globex is <a href="https://jobs.lever.co/{}">{}</a></p>'

    assert boards_of(link.format("globex", words), Role.HOME) == []
    for token in ("acme", "acme-inc", "getacme"):
        assert boards_of(link.format(token, words), Role.HOME) == [("lever", token)]
    assert boards_of(link.format("globex", words)) == [("lever", "globex")]


@pytest.mark.parametrize("token", ["acmelogistics", "acm", "acmi", "north"])
def test_a_board_whose_token_only_begins_like_the_name_is_not_ours(token: str) -> None:
    link = f'<a href="https://jobs.lever.co/{token}">hiring</a>'

    assert boards_of(link, Role.HOME) == []
    found = boards_in([page(link, role=Role.HOME, path="")], home="https://northwind.test/")
    assert found == []


def test_a_board_is_ours_by_the_first_words_of_the_name() -> None:
    for token, name in (("acme", "Acme Robotics"), ("acme-robotics-eu", "Acme Robotics")):
        link = page(f'<a href="https://jobs.lever.co/{token}">x</a>', role=Role.HOME, path="")
        [board] = boards_in([link], home="https://ar.test/", names=[name])
        assert board.token == token


def test_a_board_that_a_script_of_the_home_page_mentions_is_not_ours() -> None:
    address = "https://boards.greenhouse.io/globex"

    assert boards_of(f'<script>story("{address}/jobs/1")</script>', Role.HOME) == []
    frame = '<iframe src="https://boards.greenhouse.io/embed/job_board?for=globex"></iframe>'
    assert boards_of(frame, Role.HOME) == [("greenhouse", "globex")]


def test_a_feed_of_jobs_is_a_board_and_a_blog_is_none() -> None:
    assert boards_of('<a href="/careers/jobs.rss">feed</a>') == [("rss", None)]
    assert boards_of('<a href="/blog/feed">feed</a>') == [("generic", None)]


def test_a_platform_that_nothing_reads_is_noted() -> None:
    [board] = boards_in([page('<a href="https://jobs.jobvite.com/acme">x</a>', role=Role.CAREERS)], home=HOME)

    assert (board.platform, board.has_reader, board.note) == ("jobvite", False, "nothing reads jobvite yet")


def test_a_page_for_applicants_is_itself_a_board_where_no_platform_is_named() -> None:
    assert boards_of("<h1>Careers</h1>") == [("generic", None)]
    assert boards_of("<h1>About</h1>", Role.ABOUT) == []
