"""`ingest read` on every body of samples/jobs: the manifest's facts, or what the body is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.samples import sample

FETCHED = ("--fetched-at", "2026-11-16T12:00:00Z")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a file must be read into; without records the problem that must be said."""

    count: int = 0
    title: str | None = None
    id: str | None = None
    url: str | None = None
    platform: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    at: str = "https://example.com/board"
    posted_on: str | None = None
    codes: tuple[str | None, ...] = ()


def in_script(name: str, items: str, **fields: str) -> dict[str, Any]:
    return {"script": name, "items": items, "fields": fields}


def by_css(items: str, **fields: str) -> dict[str, Any]:
    return {"items": items, "fields": fields}


UNSUPPORTED = Facts(platform="jsonld", codes=("no_job_posting",))
FACTS = {
    "ashby/board_2a.json": Facts(
        count=2,
        title="Senior Technical Recruiter",
        id="90fb3621-899e-4b59-925d-25080ec91e18",
        url="https://jobs.ashbyhq.com/HighlightTA/90fb3621-899e-4b59-925d-25080ec91e18",
        posted_on="2026-04-20",
    ),
    "ashby/list_2b.json": Facts(
        count=2,
        title="Forward Deployed Engineer",
        id="287c3920-1c9c-4a84-95e2-2854abb47990",
        url="https://jobs.ashbyhq.com/comand-ai/287c3920-1c9c-4a84-95e2-2854abb47990",
    ),
    "ashby/list_2c.json": Facts(
        count=2,
        title="Senior Product Designer \u2013 Inventory",
        id="cf02c70a-be52-4b15-b4c2-466dba90a762",
        url="https://jobs.ashbyhq.com/nory/cf02c70a-be52-4b15-b4c2-466dba90a762",
    ),
    "ashby/ramp_4.json": Facts(
        count=4,
        title="Technical Consultant, Mid-Market",
        id="03e2d4e1-73ad-4f09-a058-2eb9ce34c2bc",
        url="https://jobs.ashbyhq.com/ramp/03e2d4e1-73ad-4f09-a058-2eb9ce34c2bc",
    ),
    "greenhouse/anthropic_4.json": Facts(
        count=4,
        title="Country Lead, Data Center Security",
        id="5311686008",
        url="https://job-boards.greenhouse.io/anthropic/jobs/5311686008",
        posted_on="2026-07-10",
    ),
    "greenhouse/list_2b.json": Facts(
        count=2,
        title="Accounts Payable Lead",
        id="4865187101",
        url="https://helsing.ai/jobs/4865187101?gh_jid=4865187101",
    ),
    "greenhouse/list_content_2.json": Facts(
        count=2,
        title="Customer Data Scientist - Experimentation",
        id="8636903002",
        url="https://job-boards.greenhouse.io/amplitude/jobs/8636903002",
    ),
    "lever/list_2a.json": Facts(
        count=2,
        title="(1099 Contract) Nonprofit Salesforce Consultant: Enterprise Project Manager",
        id="a24ec4e5-5caa-473d-abd4-b71f09a8167b",
        url="https://jobs.lever.co/idealistconsulting/a24ec4e5-5caa-473d-abd4-b71f09a8167b",
    ),
    "lever/spotify_4.json": Facts(
        count=4,
        title="Android Engineer I - Subscriptions",
        id="b4ad9572-e20f-4185-a284-99d9740d04f0",
        url="https://jobs.lever.co/spotify/b4ad9572-e20f-4185-a284-99d9740d04f0",
        posted_on="2026-06-30",
    ),
    "personio/feed_2.xml": Facts(
        count=2, title="Staff Software Engineer, Data Platform", id="1834171", posted_on="2024-11-13"
    ),
    "recruitee/offers_2.json": Facts(
        count=2,
        title="(Senior) Financial Accountant (f/m/d) - Berlin/Brandenburg Region, Germany",
        url="https://jobs.acme.com/o/senior-financial-accountant-fmd-berlinbrandenburg-region-germany",
        posted_on="2026-08-05",
    ),
    "rss/neogov_2.xml": Facts(count=2, title="Enterprise Applications Manager", posted_on="2026-08-19"),
    "smartrecruiters/list_1.json": Facts(
        count=1, title="CNA  / LPN - Consistent Hours. Start Next Week.", id="743999671674844", posted_on="2018-06-08"
    ),
    "workable/widget_2.json": Facts(
        count=2,
        title="Business Analyst - Spanish Speaking",
        id="DD136DD7E7",
        url="https://apply.workable.com/j/DD136DD7E7",
        posted_on="2026-08-05",
    ),
    "workday/gdit_detail.json": Facts(
        count=1,
        title="Data Engineer",
        id="RQ216675",
        url="https://gdit.wd5.myworkdayjobs.com/External_Career_Site/job/USA-DC-Washington/Data-Engineer_RQ216675",
        posted_on="2026-07-07",
    ),
    "workday/gdit_search_4.json": Facts(
        count=4,
        title="Data Engineer",
        id="RQ216675",
        at="https://gdit.wd5.myworkdayjobs.com/External_Career_Site",
        url="https://gdit.wd5.myworkdayjobs.com/External_Career_Site/job/USA-DC-Washington/Data-Engineer_RQ216675",
        posted_on="2026-11-08",
    ),
    "workday/search_2.json": Facts(
        count=2,
        title="Solution Architect / Senior Solution Architect - PubSec - SLED/NGO",
        id="JR354232",
        posted_on="2026-11-15",
    ),
    "html/jsonld_meta_software_engineer.html": Facts(
        platform="jsonld", count=1, title="Software Engineer, Infrastructure", posted_on="2025-06-10"
    ),
    "html/jsonld_neura_robotics_manager.html": Facts(
        platform="jsonld",
        count=1,
        title="Manager Ecosystem Integration & Certification (Human)",
        id="00df0928-b013-448c-b3dd-6c6fb80eadc2",
        posted_on="2025-11-05",
    ),
    "html/hrmdirect_board_trimmed.html": Facts(
        platform="html",
        config=by_css("tr.ReqRowClick", title=".posTitle", url=".posTitle a@href", external_id="@data-req-id"),
        count=2,
        title="CRM Product Owner",
        id="3762934",
    ),
    "html/icims_board_trimmed.html": Facts(
        platform="html",
        config=by_css("li.iCIMS_JobCardItem", title="h3", url="a.iCIMS_Anchor@href"),
        count=2,
        title="Payroll Tax Specialist",
        url="https://careers-wipfli.icims.com/jobs/8214/payroll-tax-specialist/job?in_iframe=1",
    ),
    "html/jobvite_board_trimmed.html": Facts(
        platform="html",
        config=by_css("tr", title="a", url="a@href", location=".jv-job-list-location"),
        at="https://jobs.jobvite.com/feedingamerica",
        count=2,
        title="Manager, Development (Chicago/Hybrid)",
        url="https://jobs.jobvite.com/feedingamerica/job/octxAfww",
    ),
    "html/jobylon_mcdonalds_se.html": Facts(
        platform="json",
        config=in_script("JBL.embed_v2['jobs']", "", title="title", url="url", external_id="id"),
        count=125,
        id="355795",
    ),
    "html/paylocity_board_trimmed.html": Facts(
        platform="json",
        config=in_script("window.pageData", "Jobs", title="JobTitle", external_id="JobId"),
        count=2,
        title="Engineer/Associate Engineer, Power Systems",
        id="4141169",
    ),
    "html/phenom_board_trimmed.html": Facts(
        platform="json",
        config=in_script(
            "phApp.ddo", "eagerLoadRefineSearch.data.jobs", title="title", external_id="jobId", posted_at="postedDate"
        ),
        count=2,
        title="Senior Project Manager(German Speaker)",
        id="P-104461",
        posted_on="2026-04-09",
    ),
    "html/peoplestrong_bajaj_finserv.html": Facts(
        platform="html",
        config=by_css("div.job-details-card", title="h2.title", external_id=".job-code"),
        count=1,
        id="JR00215399",
    ),
    "html/decathlon_talentclue_jobpage.html": UNSUPPORTED,
    "html/decathlon_talentclue_jobpage_taller.html": UNSUPPORTED,
    "aggregators/jobicy_small.json": Facts(
        platform="json",
        config=by_css("jobs", title="jobTitle", url="url", external_id="id"),
        count=2,
        title="Engineering Manager - Python and K8s",
        id="150121",
        url="https://jobicy.com/jobs/150121-engineering-manager-python-and-k8s",
    ),
    "aggregators/remoteok_small.json": Facts(
        platform="json",
        config={"fields": {"title": "position", "url": "url", "external_id": "id"}},
        count=2,
        title="Join Our Team",
        id="1136024",
        url="https://remoteOK.com/remote-jobs/remote-join-our-team-bay-plumbing-amp-drainage-1136024",
        codes=(None,),  # the first entry is a legal notice
    ),
    "aggregators/remotive_4.json": Facts(
        platform="json",
        config=by_css("jobs", title="title", url="url", external_id="id"),
        count=4,
        title="Assistant Account Payable",
        id="2090989",
    ),
}


def test_every_body_has_its_facts_and_every_fact_its_body() -> None:
    root = sample("jobs")
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}

    assert files - {"board_urls/ats_urls.csv"} == set(FACTS)


@pytest.mark.parametrize("name", FACTS)
def test_a_body_gives_its_facts(name: str) -> None:
    facts = FACTS[name]
    platform = facts.platform or name.partition("/")[0]
    options = ("--platform", platform, "--kind", "job_board", "--url", facts.at, *FETCHED)
    ingest = Ingest({"INGESTION_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"})

    path = str(sample(f"jobs/{name}"))
    result = ingest("read", path, *options, "--config", json.dumps(facts.config), "--json")

    answer = json.loads(result.stdout)
    assert result.exit_code == (0 if facts.count else 1)
    assert tuple(problem["code"] for problem in answer["problems"]) == facts.codes
    assert len(answer["records"]) == facts.count
    for record in answer["records"]:
        assert record["title"]
        assert record["url"] or platform in {"json", "html"}
        assert "unknown" not in {str(value).lower() for value in record.values()}
    if facts.count:
        first = answer["records"][0]
        assert facts.title in {None, first["title"]}
        assert facts.id in {None, first["external_id"]}
        assert facts.url in {None, first["url"]}
        assert (first["posted_at"] or "").startswith(facts.posted_on or "")


def test_descriptions_of_the_samples_are_text_and_not_markup() -> None:
    ingest = Ingest({"INGESTION_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"})
    for name in ("greenhouse/anthropic_4.json", "lever/spotify_4.json", "ashby/ramp_4.json"):
        options = ("--platform", name.partition("/")[0], "--json")
        records = json.loads(ingest("read", str(sample(f"jobs/{name}")), *options).stdout)["records"]
        for record in records:
            assert len(record["description"]) > 500
            assert not any(sign in record["description"] for sign in ("&lt;", "&amp;", "<p", "<div"))
