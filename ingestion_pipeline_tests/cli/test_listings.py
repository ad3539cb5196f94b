"""`ingest companies`, `listings`, `matches` and `profile`, and sources that are job boards."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from ingestion_pipeline.companies.matching.profile import example_profile
from ingestion_pipeline.companies.records import analysis_task, ensure_company
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.settings import Work
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.sources.source import Definition, Kind
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import companies, job_listings, sources
from ingestion_pipeline.tasks.claims import tasks_by_id
from ingestion_pipeline.tasks.queue import insert_tasks, spawn
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.companies.matching.listings import BOARD, PROFILE, Listings
from ingestion_pipeline_tests.polling_runs import a_run_context, fast_settings


@pytest.fixture
def profile(tmp_path: Path, ingest: Ingest) -> Path:
    path = tmp_path / "profile.yaml"
    path.write_text(PROFILE)
    ingest.environment["INGESTION_MATCH__PROFILE"] = str(path)
    return path


@pytest.fixture
def evaluated_listings(home_store: Store, home: Path, profile: Path) -> Listings:
    """A matching listing and one that does not match, both evaluated."""
    settings = fast_settings(home, "", match__profile=str(profile))
    ctx: RunContext = a_run_context(home_store, settings)
    listings = Listings(ctx=ctx, profile=profile)
    listings.add_board()
    posted_at = home_store.now() - timedelta(hours=1)
    listings.add(url="http://jobs.test/1", posted_at=posted_at)
    listings.add(url="http://jobs.test/2", posted_at=posted_at, title="Junior Engineer")
    listings.run()
    return listings


def test_matches_are_listed_with_score_priority_and_reason(ingest: Ingest, evaluated_listings: Listings) -> None:
    [match] = ingest.json("matches", "list")
    output = " ".join(ingest.output("matches", "list").split())

    assert (match["title"], match["company"], match["priority"]) == ("Senior Python Engineer", "Northwind", "high")
    assert match["reason"].startswith(f"{match['score']} of 100: names Python")
    assert "Northwind" in output


def test_an_empty_list_of_matches_suggests_the_next_step(ingest: Ingest, profile: Path) -> None:
    assert "process_listings" in ingest.output("matches", "list")

    profile.unlink()

    assert "ingest profile example" in ingest.output("matches", "list")


def test_a_match_is_explained_with_its_points(ingest: Ingest, evaluated_listings: Listings) -> None:
    fits, junior = ingest.output("matches", "explain", "1"), ingest.output("matches", "explain", "2")

    assert fits == ingest.output("explain", "job_listings:1")
    assert "a match (from 80 on)" in fits
    assert "-> configuration:" in fits
    assert "+15 freshness" in fits
    assert "rejected by seniority" in junior
    assert "you do not want junior" in " ".join(junior.split())
    assert ingest.json("matches", "explain", "2")["evaluation"]["filter_result"]["passed"] is False
    assert "there is no row job_listings:99; `ingest listings list`" in ingest.refused("matches", "explain", "99")


def test_every_mistake_of_a_profile_is_listed(ingest: Ingest, profile: Path) -> None:
    profile.write_text("skills: {Python: 99}\ncolour: red\nsalary_floor: lots\n")

    message = ingest.refused("profile", "check")

    assert "profile.yaml:1: skills.Python" in message
    assert "profile.yaml:2: colour" in message
    assert "profile.yaml:3: salary_floor" in message


def test_a_valid_profile_is_reported_as_valid(ingest: Ingest, profile: Path) -> None:
    assert "is valid: 3 skills" in ingest.output("profile", "check")
    assert ingest.json("profile", "check")["is_usable"] is True


def test_the_example_can_be_saved_and_used(ingest: Ingest, profile: Path) -> None:
    profile.write_text(ingest.output("profile", "example"))

    assert profile.read_text().strip() == example_profile().strip()
    assert "is valid: " in ingest.output("profile", "check")


@pytest.mark.slow
def test_doctor_reports_whether_a_profile_exists_and_is_valid(
    ingest: Ingest, evaluated_listings: Listings, profile: Path
) -> None:
    def profile_check() -> tuple[str, str]:
        result = ingest("doctor", "--json")
        checks = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
        return checks["profile"]["state"], checks["profile"]["found"]

    valid = profile_check()
    profile.write_text("skills: {Python: 99}\ncolour: red\n")
    invalid = profile_check()
    profile.unlink()
    none = profile_check()

    assert (valid[0], invalid[0], none[0]) == ("ok", "failed", "warning")
    assert "skills.Python" in invalid[1]
    assert "colour" in invalid[1]
    assert "job_board:northwind" in none[1]


@pytest.mark.parametrize(
    ("options", "titles"),
    [
        ((), ["Junior Engineer", "Senior Python Engineer"]),
        (("--decision", "matched"), ["Senior Python Engineer"]),
        (("--decision", "waiting"), []),
        (("--title", "junior"), ["Junior Engineer"]),
        (("--company", "north"), ["Junior Engineer", "Senior Python Engineer"]),
        (("--company", "100%"), []),
        (("--source", BOARD, "--limit", "1"), ["Junior Engineer"]),
        (("--status", "closed"), []),
    ],
)
def test_listings_are_filtered_by_the_options(
    ingest: Ingest, evaluated_listings: Listings, options: tuple[str, ...], titles: list[str]
) -> None:
    assert [row["title"] for row in ingest.json("listings", "list", *options)] == titles


def test_a_listing_is_shown_with_its_boards_and_why_it_is_closed(ingest: Ingest, evaluated_listings: Listings) -> None:
    with evaluated_listings.ctx.store.begin() as connection:
        closed = {"status": "closed", "closed_reason": "its board lists it no more"}
        connection.execute(update(job_listings).values(**closed))

    output = " ".join(ingest.output("listings", "show", "1").split())
    row = ingest.json("listings", "show", "1")

    assert "its board lists it no more" in output
    assert BOARD in output
    assert [link["source_id"] for link in row["links"]] == [BOARD]
    assert row["match"]["reason"] in output or row["match"]["score"] > 80


def test_an_empty_list_of_listings_suggests_the_next_step(ingest: Ingest) -> None:
    assert "job_board" in ingest.output("listings", "list")
    assert "ingest listings list" in ingest.refused("listings", "show", "7")


AS_BOARD = ("--id", "job_board:acme", "--kind", "job_board")


def test_a_board_is_recognised_by_its_url(ingest: Ingest) -> None:
    ingest.output("sources", "add", "https://boards.greenhouse.io/acme", *AS_BOARD, "--company", "acme")

    (source,) = ingest.json("sources", "list", "--kind", "job_board")

    assert (source["platform"], source["company"]) == ("greenhouse", "acme")


def test_every_mistake_of_a_board_config_is_reported(ingest: Ingest) -> None:
    config = '{"api_base": "ftp://x", "banana": 1, "fields": {"title": "a"}}'
    line = ("sources", "add", "https://acme.test/jobs", *AS_BOARD, "--platform", "html")

    message = ingest.refused(*line, "--config", config)

    for part in ("api_base", "banana is no key", "title, and url", "items: needed"):
        assert part in message


def test_a_bad_board_of_a_file_is_reported_with_its_line(ingest: Ingest, tmp_path: Path) -> None:
    file = tmp_path / "boards.yaml"
    file.write_text('sources:\n  - {id: "job_board:a", kind: job_board, url: "https://a.test/", platform: lever}\n')

    message = ingest.refused("sources", "import", str(file))

    assert "boards.yaml" in message
    assert "board_token" in message


def test_boards_are_made_due_ahead_of_their_schedule_once(ingest: Ingest) -> None:
    ingest.output("sources", "add", "https://boards.greenhouse.io/acme", *AS_BOARD)

    assert "queued 1 boards" in ingest.output("sources", "scrape", "job_board:acme")
    assert "still waits" in ingest.refused("sources", "scrape", "job_board:acme")
    assert "a rotation" in ingest.output("sources", "scrape", "--max-sources", "3")
    assert "no source 'job_board:x'" in ingest.refused("sources", "scrape", "job_board:x")
    both = ("sources", "scrape", "job_board:acme", "--max-sources", "3")
    assert "belong to a rotation" in ingest.refused(*both)


def test_a_source_that_cannot_be_scraped_is_refused_with_the_reason(ingest: Ingest) -> None:
    ingest.output("sources", "add", "https://boards.greenhouse.io/acme", *AS_BOARD)
    ingest.output("sources", "add", "https://acme.test/", "--id", "company:acme", "--kind", "company")
    ingest.output("sources", "disable", "job_board:acme", "--reason", "we left")

    assert "we left" in ingest.refused("sources", "scrape", "job_board:acme")
    assert "no job board" in ingest.refused("sources", "scrape", "company:acme")


def add_unapproved_board(home_store: Store, platform: str, **config: Any) -> None:
    """Add a board as discovery stores an uncertain one."""
    board = Definition(
        id="job_board:acme",
        kind=Kind.JOB_BOARD,
        url="https://acme.test/jobs",
        platform=platform,
        config=config,
        enabled=False,
    )
    waits = {"status": "pending_validation", "status_reason": "confidence low"}
    with home_store.begin() as connection:
        register(connection, [board], now=home_store.clock.now(connection))
        connection.execute(update(sources).values(waits))


@pytest.mark.slow
def test_a_board_with_a_bad_config_is_not_approved_before_it_is_corrected(ingest: Ingest, home_store: Store) -> None:
    add_unapproved_board(home_store, "html")
    config = '{"items": "li", "fields": {"title": "a", "url": "a@href"}}'

    message = ingest.refused("sources", "enable", "job_board:acme")
    ingest.output("sources", "update", "job_board:acme", "--config", config)
    mended = ingest.json("sources", "show", "job_board:acme")
    ingest.output("sources", "enable", "job_board:acme")

    assert "items: needed" in message
    assert "ingest sources update job_board:acme --config" in message
    assert mended["status"] == "pending_validation"
    assert ingest.json("sources", "show", "job_board:acme")["status"] == "active"


WEBSITE = "https://acme.test/"


@pytest.fixture
def acme(home_store: Store) -> None:
    """A company with name and website, analysed, with one refusal because of a loop."""
    with home_store.begin() as connection:
        task = analysis_task("acme", WEBSITE, now=NOON)
        [task_id] = insert_tasks(connection, [task], now=NOON)
        parent = tasks_by_id(connection, [task_id])[task_id]
        ensure_company(
            connection,
            company_id="acme",
            name="Acme",
            website=WEBSITE,
            discovered_by="operator",
            tracking_id=parent.tracking_id,
            now=NOON,
        )
        spawn(connection, parent, task, now=NOON, policy=Work())
        board = {
            "platform": "greenhouse",
            "url": "https://boards.greenhouse.io/acme",
            "confidence": "medium",
            "source_id": "job_board:greenhouse-acme",
        }
        connection.execute(
            companies.update().values(
                score=75,
                score_parts={"city": 50, "tech": 25},
                tier="B",
                status="active",
                tech_stack={"languages": ["go"]},
                boards=[board],
                quality={"level": "minimal", "missing": ["industry"]},
                analyzed_at=NOON,
            )
        )


@pytest.mark.usefixtures("acme")
def test_companies_are_listed_with_tier_and_score(ingest: Ingest) -> None:
    result = ingest("companies", "list")

    assert result.exit_code == 0
    assert all(text in result.output for text in ("acme", "Acme", "active", "minimal", "B", "75"))
    assert json.loads(ingest("companies", "list", "--json").output)[0]["score"] == 75
    assert "no companies" in ingest("companies", "list", "--tier", "S").output


@pytest.mark.usefixtures("acme")
def test_a_company_is_shown_with_its_boards_and_refusals(ingest: Ingest) -> None:
    sources = " ".join(ingest("companies", "show", "acme").output.split())

    assert "75 (city 50, tech 25)" in sources
    assert "greenhouse https://boards.greenhouse.io/acme (medium)" in sources
    assert "refused: company https://acme.test/" in sources
    assert "in_ancestry" in sources
    company = json.loads(ingest("companies", "show", "acme", "--json").output)
    assert [refusal["reason"] for refusal in company["refusals"]] == ["in_ancestry"]


def test_a_company_is_added_by_its_website_alone(ingest: Ingest) -> None:
    result = ingest("sources", "add", WEBSITE, "--id", "company:acme", "--kind", "company")

    assert result.exit_code == 0, result.output
    sources = json.loads(ingest("sources", "list", "--json").output)
    assert [(source["id"], source["platform"]) for source in sources] == [("company:acme", "page")]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"board": {}}', "'board' means nothing here"),
        ('{"boards": {"monster": {}}}', "'monster' is no platform"),
        ('{"boards": {"lever": 1}}', "boards.lever must be a mapping"),
        ('{"boards": []}', "boards must be a mapping"),
    ],
)
def test_an_unknown_company_config_is_refused(ingest: Ingest, config: str, message: str) -> None:
    result = ingest(*("sources", "add", WEBSITE, "--id", "company:acme", "--kind", "company"), *("--config", config))

    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
