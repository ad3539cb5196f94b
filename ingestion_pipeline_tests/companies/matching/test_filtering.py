"""The filter: rejections in order, strikes with their points; missing data never counts against a listing."""

from datetime import timedelta
from typing import Any

import pytest

from ingestion_pipeline.companies.job_listing import Remote
from ingestion_pipeline.companies.matching.listed_job import ListedJob
from ingestion_pipeline.companies.matching.listing_rules import FilterResult, filter_listing, stopped, years_required
from ingestion_pipeline.companies.matching.profile import EMPTY_PROFILE, Profile, Seniority, StopLists, Technologies
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.companies.matching.listings import MATCHING_TEXT, a_listing, a_profile

LIMITS = load_settings({}).filter
LONG = "A" + " word" * 60


def apply_filter(listing: ListedJob, profile: Profile | None = None) -> FilterResult:
    return filter_listing(listing, profile or a_profile(), LIMITS, at=NOON)


def salary(most: int, **changes: Any) -> dict[str, Any]:
    return {"minimum": None, "maximum": str(most), "currency": "USD", "period": "year", **changes}


def test_a_listing_without_data_passes_the_filter() -> None:
    filter_result = apply_filter(ListedJob(title=""), strict_profile())

    assert (filter_result.passed, filter_result.strikes, filter_result.items) == (True, 0, ())


def strict_profile() -> Profile:
    """Return a profile that rejects almost every listing."""
    return a_profile(
        job_types_unwanted=("contract", "gig"),
        seniority=Seniority(unwanted=("junior",), strikes={"associate": 2, "mid-level": 1}),
        stop=StopLists(companies=("Spamco",)),
        reject_keywords=("security clearance", "unpaid"),
        technologies=Technologies(required=("Python",), undesired={"PHP": 2, "Perl": 1}, forbidden=("COBOL",)),
    )


REJECTED: list[tuple[str, dict[str, Any]]] = [
    ("job_type", {"title": "Contract Engineer"}),
    ("job_type", {"employment_type": "CONTRACT"}),
    ("job_type", {"description": f"{LONG} This is a contract position for a year. {LONG}"}),
    ("seniority", {"title": "Junior Engineer"}),
    ("company", {"company": "The Spamco Group"}),
    ("keyword", {"description": f"{MATCHING_TEXT} An active security clearance is needed."}),
    ("keyword", {"title": "Unpaid Engineer"}),
    ("salary", {"salary": salary(99_999)}),
    ("salary", {"salary": salary(45, period="hour")}),
    ("commission", {"description": f"{MATCHING_TEXT} 100% commission."}),
    ("work_mode", {"remote": Remote.ON_SITE}),
    ("work_mode", {"remote": Remote.HYBRID, "locations": ("Berlin",)}),
    ("expired", {"valid_until": NOON - timedelta(minutes=1)}),
    ("age", {"posted_at": NOON - timedelta(days=7, minutes=1)}),
    ("technology", {"description": f"{MATCHING_TEXT} COBOL."}),
]


@pytest.mark.parametrize(("name", "changes"), REJECTED, ids=lambda value: str(value)[:40])
def test_each_hard_rejection_rejects_with_its_reason(name: str, changes: dict[str, Any]) -> None:
    filter_result = apply_filter(a_listing(**changes), strict_profile())

    assert (filter_result.passed, filter_result.rejected_by) == (False, name)
    assert filter_result.items[0].reason


def test_the_first_rejection_in_order_is_reported() -> None:
    merged: dict[str, Any] = {}
    order: list[str] = []
    for _, changes in reversed(REJECTED):
        merged |= {"title": merged.get("title", "Engineer")} | changes
        order.insert(0, str(apply_filter(a_listing(**merged), strict_profile()).rejected_by))

    assert order == [name for name, _ in REJECTED]


@pytest.mark.parametrize(
    "changes",
    [
        {"description": f"{MATCHING_TEXT} You will write contracts with our customers. {LONG}"},
        {"description": f"{MATCHING_TEXT} gig role"},
        {"company": None},
        {"description": f"{MATCHING_TEXT} prepaid cards"},
        {"salary": salary(100_000)},
        {"salary": salary(60_000, currency="EUR")},
        {"salary": salary(50, period=None)},
        {"salary": {"minimum": None, "maximum": None}},
        {"description": f"{MATCHING_TEXT} Base salary plus commission."},
        {"remote": Remote.REMOTE},
        {"remote": Remote.HYBRID, "locations": ("Portland, Oregon",)},
        {"remote": Remote.HYBRID},
        {"remote": None, "locations": ("Berlin",)},
        {"posted_at": NOON - timedelta(days=7)},
        {"posted_at": NOON + timedelta(days=2)},
        {"valid_until": NOON + timedelta(minutes=1)},
        {"valid_until": NOON.replace(hour=0, minute=0, second=0, microsecond=0)},
        {"description": f"{MATCHING_TEXT} cobolt mines"},
    ],
    ids=lambda changes: str(changes)[-40:],
)
def test_similar_wording_is_not_rejected(changes: dict[str, Any]) -> None:
    assert apply_filter(a_listing(**changes), strict_profile()).rejected_by is None


@pytest.mark.parametrize(("gap", "name"), [(49, "job_type"), (50, "job_type"), (51, None), (200, None)])
@pytest.mark.parametrize("words", [("contract", "position"), ("position", "contract")])
def test_a_job_type_must_be_within_50_characters_of_the_role(
    words: tuple[str, str], gap: int, name: str | None
) -> None:
    between = f" {'x' * (gap - 2)} "

    listing = a_listing(description=f"{LONG}\n{words[0]}{between}{words[1]}\n{LONG}")

    assert apply_filter(listing, strict_profile()).rejected_by == name


def test_a_partial_word_at_the_edge_of_the_window_is_not_the_role() -> None:
    between = f" {'x' * 45} "
    listing = a_listing(description=f"{LONG}\ncontract{between}jobless people\n{LONG}")

    assert apply_filter(listing, strict_profile()).rejected_by is None


STRIKES: list[tuple[str, int, dict[str, Any]]] = [
    ("salary", 2, {"salary": salary(149_999)}),
    ("experience", 1, {"description": f"{MATCHING_TEXT.replace('8 years', '5 years')}"}),
    ("seniority", 2, {"title": "Associate Engineer, mid-level"}),
    ("technology", 2, {"description": f"{MATCHING_TEXT} PHP"}),
    ("required_technology", 1, {"title": "Engineer", "description": LONG}),
    ("description", 1, {"description": "Python, and little else"}),
    ("buzzword", 1, {"description": f"{MATCHING_TEXT} A rockstar, a ninja."}),
    ("age", 1, {"posted_at": NOON - timedelta(days=1, minutes=1)}),
]


@pytest.mark.parametrize(("name", "points", "changes"), STRIKES, ids=[strike[0] for strike in STRIKES])
def test_each_strike_has_its_points(name: str, points: int, changes: dict[str, Any]) -> None:
    filter_result = apply_filter(a_listing(**changes), strict_profile())

    assert [(strike.category, strike.name, strike.points) for strike in filter_result.items] == [
        ("strike", name, points)
    ]
    assert (filter_result.passed, filter_result.strikes) == (True, points)


@pytest.mark.parametrize(("undesired", "passes"), [(1, True), (2, False)], ids=["4 passes", "5 filters"])
def test_a_total_of_four_passes_and_five_is_filtered(undesired: int, *, passes: bool) -> None:
    profile = a_profile(technologies=Technologies(undesired={"PHP": undesired}))
    listing = a_listing(salary=salary(120_000), posted_at=NOON - timedelta(days=3), description=f"{MATCHING_TEXT} PHP")

    filter_result = apply_filter(listing, profile)

    assert (filter_result.strikes, filter_result.passed) == (3 + undesired, passes)
    assert filter_result.rejected_by == (None if passes else "strikes")


def test_every_undesired_technology_counts_and_only_the_first_buzzword() -> None:
    filter_result = apply_filter(a_listing(description=f"{MATCHING_TEXT} PHP, Perl; guru, ninja"), strict_profile())

    assert [(strike.name, strike.points) for strike in filter_result.items] == [
        ("technology", 2),
        ("technology", 1),
        ("buzzword", 1),
    ]


@pytest.mark.parametrize(
    ("text", "years"),
    [
        ("5+ years of experience", 5),
        ("3-5 years' professional experience", 3),
        ("2 years of SQL experience and 7 years of hands-on work", 7),
        ("we have been in business for 30 years", None),
        ("a company of 12 years, growing", None),
        ("10 or more years of relevant experience", 10),
        ("experience", None),
        (None, None),
    ],
)
def test_the_required_years_of_experience_are_parsed(text: str | None, years: int | None) -> None:
    assert years_required(a_listing(description=text)) == years


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"company": "SPAMCO Inc."}, "stop_company"),
        ({"url": "https://jobs.spam.test/1"}, "stop_domain"),
        ({"url": "https://a.test/jobs/blockchain-engineer"}, "stop_keyword"),
        ({"title": "Blockchain Engineer"}, "stop_keyword"),
        ({"url": "https://notspam.test/1"}, None),
        ({"title": "Engineer of blockchains"}, None),
        ({"url": "nonsense", "company": None}, None),
    ],
)
def test_stop_lists_check_company_domain_url_and_title(changes: dict[str, Any], name: str | None) -> None:
    stop = StopLists(companies=("spamco",), domains=("spam.test",), keywords=("blockchain",))
    listing = {"title": "Engineer", "url": "https://a.test/1", "company": "Acme"} | changes

    stop_item = stopped(a_profile(stop=stop), **listing)

    assert (stop_item.name if stop_item else None) == name


def test_without_a_profile_only_the_limits_of_the_settings_filter() -> None:
    plain = a_listing(remote=Remote.ON_SITE, title="Junior Contract Engineer")

    assert apply_filter(plain, EMPTY_PROFILE).passed
    assert apply_filter(a_listing(salary=salary(50_000)), EMPTY_PROFILE).rejected_by == "salary"


def test_a_result_is_stored_item_by_item() -> None:
    stored = apply_filter(a_listing(title="Junior"), strict_profile()).as_dict()

    assert stored["items"] == [
        {
            "category": "rejection",
            "name": "seniority",
            "reason": "you do not want junior",
            "detail": "Junior",
            "points": 0,
        }
    ]
