"""The demo's companies over the wire, and what the demo's profile makes of their jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ingestion_pipeline.cli.demo import demo_profile
from ingestion_pipeline.companies.listing import Listing
from ingestion_pipeline.companies.matching.filtering import filter_listing, stopped
from ingestion_pipeline.companies.matching.listed_job import ListedJob
from ingestion_pipeline.companies.matching.profile import Profile, load_profile
from ingestion_pipeline.companies.matching.scoring import match_result, rule_score
from ingestion_pipeline.companies.names import fingerprint
from ingestion_pipeline.companies.platforms import platform
from ingestion_pipeline.companies.salary import salary_as_dict
from ingestion_pipeline.demo.expected import DRIFTWOOD_BOARD, KESTREL_BOARD, ExpectedJobs, expected_jobs
from ingestion_pipeline.demo.job_openings import (
    ADDED,
    API_PATH,
    BOARDS_HOST,
    CHANGED,
    GONE,
    KESTREL_HOST,
    PRIORITIES,
    SKIPPED,
    Opening,
    driftwood_openings,
    kestrel_openings,
    repeated,
)
from ingestion_pipeline.demo.model_script import opinion
from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline.demo.state import DemoState, break_site, mutate, write_state
from ingestion_pipeline.settings import Settings
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.demo.site_requests import get

API, CAREERS = f"http://{BOARDS_HOST}{API_PATH}", f"http://{KESTREL_HOST}/careers"
SHIPPED, MUTATED = DemoState(), mutate(DemoState())


def listings(site: DemoSite, url: str, name: str) -> Sequence[Listing]:
    reply = get(site, url)
    config: dict[str, Any] = {"board_token": "driftwood"} if name == "greenhouse" else {}
    board = platform(name).configure(url, config)
    kind = reply.headers["Content-Type"]
    return board.read([reply.body], content_types=[kind], urls=[url], now=NOON).records


def judged(listing: Listing) -> str:
    """By the demo's profile: the reason of the filter, `skipped`, or the priority of a match."""
    profile, settings = load_profile(demo_profile()), Settings()
    assert isinstance(profile, Profile)
    salary = listing.salary
    it = ListedJob(
        title=listing.title,
        url=listing.url,
        company=listing.company,
        locations=(listing.location,) if listing.location else (),
        remote=listing.remote,
        description=listing.description,
        employment_type=listing.employment_type,
        salary=salary_as_dict(salary) if salary else None,
        posted_at=listing.posted_at,
    )
    if stopped(profile, title=it.title, url=it.url, company=it.company):
        return SKIPPED
    if reason := filter_listing(it, profile, settings.filter, at=NOON).rejected_by:
        return reason
    found = match_result(it, profile, rule_score(it, profile), settings.match, at=NOON)
    return found.priority.value if found.is_match else SKIPPED


@pytest.mark.parametrize("state", [SHIPPED, MUTATED], ids=["shipped", "mutated"])
def test_the_profile_makes_of_each_job_what_is_said_of_it(site: DemoSite, state: DemoState) -> None:
    write_state(site.home, state)
    openings = driftwood_openings(state)

    found = listings(site, API, "greenhouse")

    assert [one.external_id for one in found] == [str(one.id) for one in openings]
    assert {one.title: judged(one) for one in found} == {one.title: one.outcome for one in openings}


def test_every_outcome_is_there(site: DemoSite) -> None:
    reasons = ("job_type", "seniority", "keyword", "salary", "commission", "work_mode", "age")
    wanted = {*PRIORITIES, SKIPPED, "strikes", "technology", *reasons}

    assert {judged(one) for one in listings(site, API, "greenhouse")} == wanted


def test_four_strikes_pass_and_five_filter(site: DemoSite) -> None:
    profile, limits = load_profile(demo_profile()), Settings().filter
    assert isinstance(profile, Profile)
    found = {one.external_id: one for one in listings(site, API, "greenhouse")}

    def strikes(key: str) -> tuple[int, bool]:
        one = found[key]
        it = ListedJob(title=one.title, description=one.description)
        result = filter_listing(it, profile, limits, at=NOON)
        return result.strikes, result.passed

    assert (strikes("106"), strikes("107")) == ((4, True), (5, False))


def test_a_posting_of_both_boards_is_known_by_its_words(site: DemoSite) -> None:
    own = listings(site, CAREERS, "jsonld")
    both = {
        fingerprint(one.title, one.company, one.description)
        for one in (*own, *listings(site, API, "greenhouse"))
        if one.title == repeated().title
    }

    assert [one.external_id for one in own] == ["201", "202", "102"]
    assert [judged(one) for one in own[:2]] == [one.outcome for one in kestrel_openings()]
    assert len(both) == 1


def test_each_of_kestrels_own_jobs_leads_back_to_its_site(site: DemoSite) -> None:
    sites = [one.company_website for one in listings(site, CAREERS, "jsonld")]

    assert sites == [f"http://{KESTREL_HOST}/", f"http://{KESTREL_HOST}/", None]


def test_a_mutation_adds_changes_and_takes_away_a_job() -> None:
    before = {one.id: one for one in driftwood_openings(SHIPPED)}
    after = {one.id: one for one in driftwood_openings(MUTATED)}

    assert (after.keys() - before.keys(), before.keys() - after.keys()) == ({ADDED.id}, {GONE})
    assert [key for key in after.keys() & before.keys() if after[key] != before[key]] == [CHANGED]


def test_on_a_bad_day_the_api_has_other_names_for_its_fields(site: DemoSite) -> None:
    write_state(site.home, break_site(SHIPPED))

    found = listings(site, API, "greenhouse")

    assert {(one.description, one.location) for one in found} == {(None, None)}
    assert [one.title for one in found] == [one.title for one in driftwood_openings(SHIPPED)]


def test_what_every_board_comes_to_is_known() -> None:
    kestrel = ExpectedJobs(filtered=1, skipped=0, matched=2, repeats=1)
    driftwood = ExpectedJobs(filtered=9, skipped=3, matched=4)
    missing_once = ExpectedJobs(filtered=8, skipped=3, matched=6)

    assert expected_jobs(SHIPPED) == {DRIFTWOOD_BOARD: driftwood, KESTREL_BOARD: kestrel}
    assert expected_jobs(MUTATED, is_removal_confirmed=False)[DRIFTWOOD_BOARD] == missing_once
    assert expected_jobs(MUTATED)[DRIFTWOOD_BOARD] == replace(missing_once, matched=5)


@pytest.mark.parametrize("job", [*driftwood_openings(MUTATED), *kestrel_openings()])
def test_the_model_quotes_what_the_job_says(job: Opening) -> None:
    said = opinion(f"{job.title}\n{job.text}")

    assert said is not None
    quotes = [one["quote"] for key in ("skills_matched", "skills_missing") for one in said[key]]
    assert [one for one in quotes if one not in job.text] == []
    assert opinion("Gardener\nRoses.") is None
