"""Job boards told by the URL alone: every platform's shapes, and what only looks like one."""

from __future__ import annotations

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.sources.platforms import Platform, platforms, recognize_platform
from ingestion_pipeline_tests.samples import sample

JOB = "3f1b1c9e-6f0e-4f61-9d6e-2b1f7f0d5a11"
ORACLE = "https://fa-evxy-saasfaprod1.fa.ocs.oraclecloud.com"

# By platform: the token, and URLs that all name it.
BOARDS: dict[str, list[tuple[str | None, list[str]]]] = {
    "greenhouse": [
        (
            "northwind",
            [
                "https://boards.greenhouse.io/northwind",
                "http://boards.greenhouse.io/northwind/",
                "https://job-boards.greenhouse.io/northwind/jobs/4012345007?gh_src=abc",
                "https://job-boards.eu.greenhouse.io/northwind/jobs/4012345007",
                "https://boards.eu.greenhouse.io/northwind#jobs",
                "https://boards.greenhouse.io/embed/job_board?for=northwind&b=https%3A%2F%2Fx.test",
                "https://boards.greenhouse.io/embed/job_board/js?for=northwind",
                "https://boards.greenhouse.io/embed/job_app?for=northwind&token=4012345007",
                "https://job-boards.greenhouse.io/embed/job_board?for=northwind",
                "https://boards-api.greenhouse.io/v1/boards/northwind/jobs?content=true",
                "https://api.greenhouse.io/v1/boards/northwind",
                "https://BOARDS.Greenhouse.io:443/northwind",
                "https://boards.greenhouse.io./northwind",
                "https://boards.greenhouse.io//northwind//jobs",
            ],
        ),
        (
            None,
            [
                "https://northwind.test/careers/job?gh_jid=4012345007",
                "https://boards.greenhouse.io/embed/job_app?token=4012345007",
                "https://grnh.se/abc123",
            ],
        ),
    ],
    "lever": [
        (
            "Acme-Rockets",
            [
                "https://jobs.lever.co/Acme-Rockets",
                f"https://jobs.lever.co/Acme-Rockets/{JOB}/apply?lever-source=x",
                "https://jobs.eu.lever.co/Acme-Rockets/?team=Design",
                "https://api.lever.co/v0/postings/Acme-Rockets?mode=json",
                "https://api.eu.lever.co/v0/postings/Acme-Rockets",
            ],
        )
    ],
    "ashby": [
        (
            "Open Space Labs",
            [
                "https://jobs.ashbyhq.com/Open%20Space%20Labs",
                f"https://jobs.ashbyhq.com/Open%20Space%20Labs/{JOB}/application",
                "https://jobs.ashbyhq.com/Open%20Space%20Labs/embed?version=2",
                "https://api.ashbyhq.com/posting-api/job-board/Open%20Space%20Labs?x=1",
            ],
        ),
        ("crème&co.", ["https://jobs.ashbyhq.com/cr%C3%A8me%26co.", "https://jobs.ashbyhq.com/crème&co."]),
        (None, [f"https://acme.test/jobs?ashby_jid={JOB}"]),
    ],
    "workday": [
        (
            "globex",
            [
                "https://globex.wd5.myworkdayjobs.com/Careers",
                "https://globex.wd103.myworkdayjobs.com/en-US/Careers/job/Oslo/Welder_R-1",
                "https://globex.wd3.myworkdayjobs.com/fr-CA/Careers?locations=1",
                "https://globex.wd3.myworkdayjobs.com/wday/cxs/globex/Careers/jobs",
                "https://globex.myworkdayjobs.com/Careers",
                "https://wd5.myworkdaysite.com/recruiting/globex/Careers",
                "https://wd5.myworkdaysite.com/de-DE/recruiting/globex/Careers/job/x_R-1",
                "https://wd5.myworkdaysite.com/wday/cxs/globex/Careers/jobs",
            ],
        )
    ],
    "smartrecruiters": [
        (
            "InitechLLC",
            [
                "https://jobs.smartrecruiters.com/InitechLLC",
                "https://jobs.smartrecruiters.com/InitechLLC/743999671674844-printer-engineer",
                "https://careers.smartrecruiters.com/InitechLLC/germany",
                f"https://jobs.smartrecruiters.com/oneclick-ui/company/InitechLLC/publication/{JOB}",
                "https://jobs.smartrecruiters.com/?company=InitechLLC",
                "https://jobs.smartrecruiters.com/sr-jobs/search?company=InitechLLC",
                f"https://jobs.smartrecruiters.com/ni/InitechLLC/{JOB}-welder",
                "https://www.smartrecruiters.com/InitechLLC/743999776502570",
                "https://api.smartrecruiters.com/v1/companies/InitechLLC/postings?offset=100",
            ],
        )
    ],
    "recruitee": [
        (
            "hooli",
            [
                "https://hooli.recruitee.com",
                "https://hooli.recruitee.com/api/offers/",
                "https://hooli.recruitee.com/nl/o/welder",
            ],
        ),
        (None, ["https://careers.hooli.test/api/offers/"]),
    ],
    "workable": [
        (
            "vandelay-1",
            [
                "https://apply.workable.com/vandelay-1/",
                "https://apply.workable.com/vandelay-1/j/DD136DD7E7/?lng=de",
                "https://apply.workable.com/api/v1/widget/accounts/vandelay-1?details=true",
                "https://apply.workable.com/api/v3/accounts/vandelay-1/jobs",
                "https://www.workable.com/api/accounts/vandelay-1?details=true",
                "https://vandelay-1.workable.com/",
                "https://vandelay-1.workable.com/jobs/123",
            ],
        ),
        (None, ["https://apply.workable.com/j/DD136DD7E7", "https://www.workable.com/j/DD136DD7E7"]),
    ],
    "personio": [
        (
            "tyrell",
            [
                "https://tyrell.jobs.personio.de",
                "https://tyrell.jobs.personio.com/job/1834171?language=en",
                "https://tyrell.jobs.personio.de/xml?language=de",
            ],
        )
    ],
    "jobvite": [
        (
            "soylent",
            [
                "https://jobs.jobvite.com/soylent",
                "https://jobs.jobvite.com/soylent/job/octxAfww",
                "https://jobs.jobvite.com/careers/soylent/jobs",
                "https://hire.jobvite.com/CompanyJobs/Careers.aspx?c=soylent",
                "https://jobs.jobvite.com/api/job?c=soylent",
            ],
        )
    ],
    "bamboohr": [
        (
            "umbrella",
            [
                "https://umbrella.bamboohr.com/careers/42",
                "https://umbrella.bamboohr.com/jobs/embed2.php",
                "https://umbrella.bamboohr.com/jobs/view.php?id=7",
                "https://umbrella.bamboohr.com/js/embed.js",
                "https://umbrella.bamboohr.com/",
            ],
        )
    ],
    "breezy": [
        ("wonka", ["https://wonka.breezy.hr", "https://wonka.breezy.hr/p/ab12-taster", "https://wonka.breezy.hr/json"])
    ],
    "teamtailor": [
        (
            "cyberdyne",
            ["https://cyberdyne.teamtailor.com/jobs", "https://cyberdyne.na.teamtailor.com/sv/jobs/12-welder"],
        )
    ],
    "icims": [
        (
            "careers-oscorp",
            [
                "https://careers-oscorp.icims.com/jobs/search?ss=1",
                "https://careers-oscorp.icims.com/jobs/8214/welder/job?in_iframe=1",
                "https://careers-oscorp.icims.com/",
                "https://careers-oscorp.icims.com/sitemap.xml",
                "https://careers-oscorp.icims.eu/jobs/search",
            ],
        )
    ],
    "rippling": [
        (
            "ai",
            [
                "https://ats.rippling.com/ai/jobs",
                f"https://ats.rippling.com/ai/jobs/{JOB}",
                "https://ats.rippling.com/en-GB/ai/jobs",
                f"https://ats.rippling.com/fr-CA/ai/jobs/{JOB}",
                "https://api.rippling.com/platform/api/ats/v1/board/ai/jobs",
                "https://ats.rippling.com/ai",
                "https://ats.rippling.com/api/v2/board/ai/jobs",
                "https://ats.us1.rippling.com/en-GB/ai/jobs",
            ],
        )
    ],
    "gem": [
        (
            "massive-dynamic",
            [
                "https://jobs.gem.com/massive-dynamic",
                "https://jobs.gem.com/api/public/job-board/massive-dynamic/jobs",
                "https://jobs.gem.com/massive-dynamic/am9icG9zdDo",
                "https://api.gem.com/job_board/v0/massive-dynamic/job_posts/",
            ],
        )
    ],
    "pinpoint": [
        (
            "aperture",
            [
                "https://aperture.pinpointhq.com",
                "https://aperture.pinpointhq.com/en/postings/1",
                "https://aperture.pinpointhq.com/postings.json",
            ],
        )
    ],
    "join": [
        (
            "monsters-inc",
            [
                "https://join.com/companies/monsters-inc",
                "https://join.com/companies/monsters-inc/123-scarer",
                "https://www.join.com/de/companies/monsters-inc",
                "https://monsters-inc.join.com/",
            ],
        )
    ],
    "oracle_hcm": [
        (
            "fa-evxy-saasfaprod1",
            [
                f"{ORACLE}/hcmUI/CandidateExperience/en/sites/CX_1",
                f"{ORACLE}/hcmUI/CandidateExperience/pt-BR/sites/CX/job/300001?x=1",
                f"{ORACLE}/hcmRestApi/resources/latest/recruitingCEJobRequisitions?onlyData=true",
            ],
        ),
        (
            "evxy",
            [
                "https://evxy.fa.us2.oraclecloud.com/hcmUI/CandidateExperience/en/sites/CX_1/jobs",
                "https://evxy.fa.oraclecloud.com/hcmUI/CandidateExperience/en/sites/CX_1001",
                "https://evxy.fa.ocs.oraclecloud.eu/hcmUI/CandidateExperience/de/sites/CX_1",
                "https://evxy.fa.ocs.oraclecloud26.com/hcmUI/CandidateExperience/en/sites/CX_1",
            ],
        ),
        (None, ["https://careers.evxy.test/hcmUI/CandidateExperience/en/sites/careers/jobs"]),
    ],
}

NO_BOARDS = [
    "https://www.greenhouse.io/careers",
    "https://boards.greenhouse.io/",
    "https://boards.greenhouse.io/embed/job_board",
    "https://boards.greenhouse.io/robots.txt",
    "https://app.greenhouse.io/users/sign_in",
    "https://boards.greenhouse.io.evil.test/northwind",
    "https://notgreenhouse.io/northwind",
    "https://evil.test/boards.greenhouse.io/northwind",
    "https://evil.test/?next=https://boards.greenhouse.io/northwind",
    "https://boards.greenhouse.io@evil.test/northwind",
    "https://boards-greenhouse.io/northwind",
    "https://www.lever.co/",
    "https://lever.co/jobs",
    "https://jobs.lever.co",
    "https://clever.co/acme",
    "https://hire.lever.co/login",
    "https://jobs.lever.co.test/acme",
    "https://www.ashbyhq.com/customers",
    "https://ashbyhq.com/careers",
    "https://jobs.ashbyhq.com/%2F%2Fevil.test",
    "https://jobs.ashbyhq.com/%00",
    "https://jobs.ashbyhq.com/...",
    "https://www.myworkdayjobs.com/",
    "https://www.workday.com/en-us/company/careers.html",
    "https://a.b.wd5.myworkdayjobs.com/x",
    "https://wd5.myworkdaysite.com/en-US/login",
    "https://www.smartrecruiters.com/recruiting-software/",
    "https://jobs.smartrecruiters.com/",
    "https://recruitee.com/pricing",
    "https://www.recruitee.com",
    "https://support.recruitee.com/en/",
    "https://www.workable.com/pricing",
    "https://help.workable.com/hc/en-us",
    "https://jobs.workable.com/search?query=x",
    "https://jobs.workable.com/",
    "https://careers.icims.com/jobs",
    "https://www.smartrecruiters.com/blog/hiring",
    "https://acme.test/api/offers/7",
    "https://resources.workable.com/",
    "https://www.personio.de/",
    "https://jobs.personio.de",
    "https://support.personio.de/hc",
    "https://www.jobvite.com/company/",
    "https://www.bamboohr.com/careers/",
    "https://umbrella.bamboohr.com/login.php",
    "https://help.bamboohr.com/jobs",
    "https://breezy.hr/pricing",
    "https://app.breezy.hr/signin",
    "https://www.teamtailor.com/en/",
    "https://support.teamtailor.com/jobs",
    "https://www.icims.com/jobs",
    "https://developer.icims.com/",
    "https://www.rippling.com/careers",
    "https://app.rippling.com/acme/jobs",
    "https://www.gem.com/blog",
    "https://gem.com/acme",
    "https://www.pinpointhq.com/",
    "https://join.com/pricing",
    "https://join.com/companies",
    "https://fa-evxy-saasfaprod1.fa.ocs.oraclecloud.com/fscmUI/faces/FuseWelcome",
    "https://www.oracle.com/careers",
    "ftp://jobs.lever.co/acme",
    "jobs.lever.co/acme",
    "//jobs.lever.co/acme",
    "https://",
    "https:///acme",
    "https://jobs.lever.co:99999/acme",
    "http://[jobs.lever.co]/acme",
    "https://xn--\udc80.lever.co/a",
]


@pytest.mark.parametrize(
    ("url", "platform"),
    [(url, Platform(name, token)) for name, groups in BOARDS.items() for token, urls in groups for url in urls],
)
def test_a_board_is_recognised_with_its_token(url: str, platform: Platform) -> None:
    assert recognize_platform(url) == platform


@pytest.mark.parametrize("url", NO_BOARDS)
def test_a_vendors_own_page_or_a_look_alike_is_no_board(url: str) -> None:
    assert recognize_platform(url) is None


def test_every_platform_of_the_table_is_tried_here() -> None:
    assert set(BOARDS) == set(platforms())


@given(
    host=st.sampled_from(["jobs.lever.co", "boards.greenhouse.io", "a.wd1.myworkdayjobs.com", "ats.rippling.com"]),
    rest=st.text(max_size=60),
)
def test_whatever_follows_a_boards_host_is_never_an_error(host: str, rest: str) -> None:
    recognized = recognize_platform(f"https://{host}/{rest}")

    assert recognized is None or recognized.token is None or "/" not in recognized.token


def test_every_board_of_the_sample_is_recognised_with_a_token() -> None:
    with sample("jobs/board_urls/ats_urls.csv").open() as file:
        rows = list(csv.DictReader(file))

    recognized = [(row, recognize_platform(row["url"])) for row in rows]

    missed = [row["url"] for row, platform in recognized if platform is None or platform.name != row["platform"]]
    assert (len(rows), missed) == (480, [])
    assert all(platform is not None and platform.token for _, platform in recognized)
