"""Facts and job boards on the pages of a company, and its size, completeness, points and tier."""

import json
from typing import Any

import pytest

from ingestion_pipeline.companies.analysis.company_analysis import (
    Employees,
    Findings,
    collect_findings,
    completeness,
    employees_in,
    is_remote_first,
    rank_points,
    score,
    size_category,
    tech_alignment,
    tier_of,
)
from ingestion_pipeline.companies.analysis.company_pages import CompanyPage, Role, parse_company_page
from ingestion_pipeline.companies.board_discovery import boards_in
from ingestion_pipeline.settings.groups import Company
from ingestion_pipeline_tests.companies.cases import with_cases
from ingestion_pipeline_tests.samples import sample

HOME = "https://www.acme.test/"
LONG = "Acme makes machines that sort parcels, and has done so for longer than most can remember."


def company_page(body: str, *, role: Role = Role.ABOUT, head: str = "", path: str = "about") -> CompanyPage:
    html = f"<html><head>{head}</head><body><main>{body}</main></body></html>"
    return parse_company_page(html, url=f"{HOME}{path}", role=role)


def facts_of(body: str, **more: Any) -> dict[str, object]:
    findings = collect_findings([company_page(body, **more)], website=HOME)
    return {name: fact.value for name, fact in findings.facts.items()}


def findings_with_data(**organization: Any) -> Findings:
    data = {"@type": "Organization", "name": "Acme", "url": HOME} | organization
    script = f'<script type="application/ld+json">{json.dumps(data)}</script>'
    return collect_findings([company_page(f"<p>{LONG}</p>", head=script)], website=HOME)


@with_cases("sentence", "field", "value")
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
def test_a_sentence_without_a_statement_gives_no_fact(sentence: str) -> None:
    assert set(facts_of(f"<p>{sentence}</p>")) <= set()


def test_sections_are_classified_by_their_headings() -> None:
    body = f"<h1>About us</h1><p>{LONG}</p><h2>Our values</h2><p>{LONG[::-1]}</p><h2>Mission</h2>"
    body += "<p>To sort every parcel of this world before anybody has to ask where it is.</p>"

    facts = facts_of(body)

    assert (facts["about"], facts["culture"]) == (LONG, LONG[::-1])
    assert str(facts["mission"]).startswith("To sort every parcel")


def test_structured_data_takes_precedence_over_text() -> None:
    findings = findings_with_data(foundingDate="2001", numberOfEmployees=42, industry="Robots", description="d" * 60)

    assert findings.value("about") == "d" * 60
    assert (findings.value("founded"), findings.value("size")) == (2001, "42")
    assert {fact.method for fact in findings.facts.values()} == {"embedded"}
    assert findings.facts["industry"].grounding.status == "source"


@pytest.mark.parametrize("word", ["Unknown", "N/A", "-", " "])
def test_a_placeholder_value_is_missing(word: str) -> None:
    findings = findings_with_data(industry=word)

    assert findings.value("industry") is None
    assert "industry" in findings.missing


def test_data_of_another_organization_is_ignored() -> None:
    findings = findings_with_data(url="https://partner.test/", foundingDate="1950", name="Partner")

    assert (findings.name, findings.value("founded")) == (None, None)


PARTNER = {"@type": "Organization", "name": "Globex", "sameAs": "https://globex.test/"}


def company_name(*objects: dict[str, Any], head: str = "", path: str = "") -> str | None:
    """Return the company name from a home page with these JSON-LD objects."""
    script = f'<script type="application/ld+json">{json.dumps(objects)}</script>'
    home = company_page("<h1>Welcome</h1>", role=Role.HOME, head=head + script, path=path)
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

    assert company_name(partner) is None
    assert company_name(partner, head='<meta property="og:site_name" content="Acme">') == "Acme"
    assert company_name(partner, own) == "Acme Robotics"


def test_the_organization_named_like_the_site_names_the_company() -> None:
    partner = {"@type": "Organization", "name": "Globex"}
    own = {"@type": "Organization", "name": "Acme Robotics"}

    assert company_name(partner, own) == "Acme Robotics"
    assert company_name(partner | {"url": HOME}, own | {"url": HOME}) == "Acme Robotics"
    assert company_name({"@type": "Review", "author": partner, "itemReviewed": own}) == "Acme Robotics"


def test_profiles_on_other_sites_do_not_make_the_company_a_partner() -> None:
    profiles = ["https://www.linkedin.com/company/acme", "https://x.com/acme"]
    own = {"@type": "Organization", "name": "Acme Robotics"}

    assert company_name(own | {"sameAs": profiles}) == "Acme Robotics"
    assert company_name(own | {"sameAs": "https://directory.test/acme"}) == "Acme Robotics"
    own_name = own | {"name": "Robotics of Graz"}
    assert company_name(own_name | {"sameAs": profiles}) == "Robotics of Graz"
    assert company_name(own_name | {"sameAs": "https://r.test/", "url": HOME}) == "Robotics of Graz"


@pytest.mark.parametrize("word", ["Unknown", "N/A", "Confidential"])
def test_a_placeholder_does_not_name_the_company(word: str) -> None:
    assert company_name({"@type": "Organization", "name": word, "url": HOME}) is None


def test_microdata_is_parsed_like_json_ld() -> None:
    body = (
        '<div itemscope itemtype="https://schema.org/Organization"><span itemprop=name>Acme'
        " GmbH</span><span itemprop=foundingDate>1999</span></div>"
    )
    findings = collect_findings([company_page(body)], website=HOME)

    assert (findings.name, findings.value("founded")) == ("Acme", 1999)


def test_every_fact_of_the_rules_appears_in_the_text() -> None:
    page = company_page(f"<p>{LONG}</p><p>Founded in 2011 in Graz.</p>")
    findings = collect_findings([page], website=HOME)

    for fact in findings.facts.values():
        span = page.text[fact.grounding.start : fact.grounding.end]
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
def test_remote_first_is_stated_or_unknown(text: str, expected: bool | None) -> None:
    assert is_remote_first(text) is expected


def test_a_real_page_gives_a_description_of_the_company() -> None:
    html = sample("company_pages/fairkom.eu.about.html").read_text()
    page = parse_company_page(html, url="https://www.fairkom.eu/about", role=Role.ABOUT)

    findings = collect_findings([page], website="https://www.fairkom.eu/")

    assert len(str(findings.value("about"))) > 100
    assert findings.facts["about"].grounding.is_proof


# Job boards on the pages


def boards_on_page(body: str, role: Role = Role.CAREERS) -> list[tuple[str, str | None]]:
    boards = boards_in([company_page(body, role=role, path="careers")], home=HOME, names=["Acme"])
    return [(board.platform, board.token) for board in boards]


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
def test_a_board_is_found_in_links_frames_and_scripts(body: str) -> None:
    assert boards_on_page(body) == [("greenhouse", "acme")]


def test_the_board_of_a_customer_is_ignored() -> None:
    body = '<p>Our customer <a href="https://jobs.lever.co/bigcorp">BigCorp</a> is happy.</p>'

    assert boards_on_page(body, Role.HOME) == []
    assert boards_on_page('<a href="https://jobs.lever.co/acme">us</a>', Role.HOME) == [("lever", "acme")]


@pytest.mark.parametrize("words", ["hiring", "We're hiring", "Careers", "Jobs"])
def test_a_board_linked_on_the_home_page_must_be_named_like_the_company(words: str) -> None:
    link = '<p>Globex is <a href="https://jobs.lever.co/{}">{}</a></p>'

    assert boards_on_page(link.format("globex", words), Role.HOME) == []
    for token in ("acme", "acme-inc", "getacme"):
        assert boards_on_page(link.format(token, words), Role.HOME) == [("lever", token)]
    assert boards_on_page(link.format("globex", words)) == [("lever", "globex")]


@pytest.mark.parametrize("token", ["acmelogistics", "acm", "acmi", "north"])
def test_a_board_whose_token_only_starts_like_the_name_is_ignored(token: str) -> None:
    link = f'<a href="https://jobs.lever.co/{token}">hiring</a>'

    assert boards_on_page(link, Role.HOME) == []
    boards = boards_in([company_page(link, role=Role.HOME, path="")], home="https://northwind.test/")
    assert boards == []


def test_a_board_belongs_to_the_company_by_the_first_words_of_its_name() -> None:
    for token, name in (("acme", "Acme Robotics"), ("acme-robotics-eu", "Acme Robotics")):
        link = company_page(f'<a href="https://jobs.lever.co/{token}">x</a>', role=Role.HOME, path="")
        [board] = boards_in([link], home="https://ar.test/", names=[name])
        assert board.token == token


def test_a_board_mentioned_in_a_script_of_the_home_page_is_ignored() -> None:
    address = "https://boards.greenhouse.io/globex"

    assert boards_on_page(f'<script>story("{address}/jobs/1")</script>', Role.HOME) == []
    frame = '<iframe src="https://boards.greenhouse.io/embed/job_board?for=globex"></iframe>'
    assert boards_on_page(frame, Role.HOME) == [("greenhouse", "globex")]


def test_a_job_feed_is_a_board_and_a_blog_feed_is_not() -> None:
    assert boards_on_page('<a href="/careers/jobs.rss">feed</a>') == [("rss", None)]
    assert boards_on_page('<a href="/blog/feed">feed</a>') == [("generic", None)]


def test_several_boards_of_one_tenant_are_all_boards() -> None:
    host = "https://acme.wd3.myworkdayjobs.com"
    links = "".join(
        f'<a href="{host}{path}">x</a>' for path in ("/Careers", "/en-US/Graduates", "/Careers/job/a_1", "/")
    )

    boards = boards_in([company_page(links, role=Role.CAREERS)], home=HOME)

    assert [board.url for board in boards] == [f"{host}/Careers", f"{host}/en-US/Graduates"]


def test_an_unsupported_platform_is_noted() -> None:
    [board] = boards_in([company_page('<a href="https://jobs.jobvite.com/acme">x</a>', role=Role.CAREERS)], home=HOME)

    assert (board.platform, board.has_reader, board.note) == ("jobvite", False, "nothing reads jobvite yet")


def test_a_careers_page_is_a_board_where_no_platform_is_linked() -> None:
    assert boards_on_page("<h1>Careers</h1>") == [("generic", None)]
    assert boards_on_page("<h1>About</h1>", Role.ABOUT) == []


RULES = Company()


@pytest.mark.parametrize(
    ("points", "tier"), [(150, "S"), (149, "A"), (100, "A"), (99, "B"), (70, "B"), (69, "C"), (50, "C"), (49, "D")]
)
def test_a_tier_starts_at_its_minimum(points: int, tier: str) -> None:
    assert tier_of(points) == tier


def test_technologies_of_130_points_count_100() -> None:
    stack = {"languages": ["python", "go"], "databases": ["redis"]}

    assert tech_alignment(stack, {"Python": 60, "Go": 60, "redis": 10, "java": 50}, cap=100) == 100
    assert tech_alignment(stack, {"java": 50}, cap=100) == 0


def test_a_skill_counts_once_however_it_is_spelt() -> None:
    stack = {"languages": ["go"], "infrastructure": ["kubernetes"]}

    assert tech_alignment(stack, {"Golang": 20, "Go": 30, "K8s": 5}, cap=100) == 35


def test_the_best_two_skills_reach_the_cap() -> None:
    assert rank_points({"python": 10, "go": 10, "css": 1}) == {"python": 50, "go": 50, "css": 5}


def test_149_is_a_and_150_is_s() -> None:
    def tier(points: int) -> str:
        company_score = score(
            tech_stack={"languages": ["python"]},
            is_remote_first=None,
            places=["Offices in Portland, OR"],
            ranks={"python": points},
            rules=RULES,
        )
        return f"{company_score.points} {company_score.tier}"

    assert (tier(99), tier(100), tier(130)) == ("149 A", "150 S", "150 S")


def test_missing_information_neither_adds_nor_subtracts_points() -> None:
    company_score = score(tech_stack={}, is_remote_first=None, places=[], ranks={"go": 90}, rules=RULES)

    assert (company_score.points, company_score.tier) == (0, "D")


def test_the_bonus_city_is_a_setting_and_matches_whole_words() -> None:
    def points(city: str, place: str) -> int:
        rules = Company(bonus_city=city)
        return score(tech_stack={}, is_remote_first=None, places=[place], ranks={}, rules=rules).points

    assert points("Portland", "portland, Oregon") == 50
    assert points("Portland", "Portlandia") == 0
    assert points("Graz", "Büro in Graz") == 50
    assert points("", "anywhere") == 0


@with_cases("about", "culture", "level")
def test_completeness_follows_from_the_length_of_the_texts(about: int, culture: int, level: str) -> None:
    texts = {"about": "a" * about or None, "culture": "c" * culture or None}

    assert completeness(name="A", website="https://a.test", **texts) == level
    assert completeness(name=None, website="https://a.test", **texts) == "thin"


@with_cases("text", "expected")
def test_a_head_count_is_parsed_in_any_format(text: str, expected: list[int | None] | None) -> None:
    employees = employees_in(text)

    assert (employees and [employees.low, employees.high]) == expected


@with_cases("low", "high", "category")
def test_large_starts_at_ten_thousand_and_small_ends_below_a_hundred(low: int, high: int | None, category: str) -> None:
    assert size_category(Employees(low=low, high=high)) == category
    assert size_category(None) is None
