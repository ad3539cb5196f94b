"""`ingest listings`, `ingest matches` and `ingest profile`."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from ingestion_pipeline.companies.matching.profile import example_profile
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import job_listings
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
    assert ingest.json("matches", "explain", "2")["judgement"]["filter_result"]["passed"] is False
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


def test_matches_of_an_unknown_source_are_refused(ingest: Ingest, profile: Path) -> None:
    assert "no source 'job_board:no'" in ingest.refused("matches", "list", "--source", "job_board:no")


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
    ingest: Ingest,
    evaluated_listings: Listings,
    options: tuple[str, ...],
    titles: list[str],
) -> None:
    assert [row["title"] for row in ingest.json("listings", "list", *options)] == titles


def test_a_listing_is_shown_with_its_boards_and_why_it_is_closed(
    ingest: Ingest,
    evaluated_listings: Listings,
) -> None:
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
