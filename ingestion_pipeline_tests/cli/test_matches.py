"""`ingest matches` and `ingest profile`: what fits, why, and whether the profile can be used."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from ingestion_pipeline.companies.matching.profile import example_profile
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store import Store
from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.companies.matching.listings import PROFILE, Listings
from ingestion_pipeline_tests.pollers import a_run_context, settings_of


@pytest.fixture
def profile(tmp_path: Path, ingest: Ingest) -> Path:
    path = tmp_path / "profile.yaml"
    path.write_text(PROFILE)
    ingest.environment["INGESTION_MATCH__PROFILE"] = str(path)
    return path


@pytest.fixture
def judged(database: Store, home: Path, profile: Path) -> Listings:
    """A listing that fits and one that does not."""
    settings = settings_of(home, "", match__profile=str(profile))
    ctx: RunContext = a_run_context(database, settings)
    some = Listings(ctx=ctx, profile=profile)
    some.board()
    posted_at = database.now() - timedelta(hours=1)
    some.add(url="http://jobs.test/1", posted_at=posted_at)
    some.add(url="http://jobs.test/2", posted_at=posted_at, title="Junior Engineer")
    some.run()
    return some


def test_matches_are_listed_with_score_priority_and_reason(ingest: Ingest, judged: Listings) -> None:
    [found] = ingest.json("matches", "list")
    said = " ".join(ingest.done("matches", "list").split())

    assert (found["title"], found["company"], found["priority"]) == ("Senior Python Engineer", "Northwind", "high")
    assert found["reason"].startswith(f"{found['score']} of 100: names Python")
    assert "Northwind" in said


def test_no_match_says_what_to_do(ingest: Ingest, profile: Path) -> None:
    assert "process_listings" in ingest.done("matches", "list")

    profile.unlink()

    assert "ingest profile example" in ingest.done("matches", "list")


def test_a_listing_is_explained_point_by_point(ingest: Ingest, judged: Listings) -> None:
    fits, junior = ingest.done("matches", "explain", "1"), ingest.done("matches", "explain", "2")

    assert fits == ingest.done("explain", "job_listings:1")
    assert "a match (from 80 on)" in fits
    assert "-> configuration:" in fits
    assert "+15 freshness" in fits
    assert "rejected by seniority" in junior
    assert "you do not want junior" in " ".join(junior.split())
    assert ingest.json("matches", "explain", "2")["judgement"]["filter_result"]["passed"] is False
    assert "there is no row job_listings:99; `ingest listings list`" in ingest.refused("matches", "explain", "99")


def test_every_mistake_of_a_profile_is_listed(ingest: Ingest, profile: Path) -> None:
    profile.write_text("skills: {Python: 99}\ncolour: red\nsalary_floor: lots\n")

    said = ingest.refused("profile", "check")

    assert "profile.yaml:1: skills.Python" in said
    assert "profile.yaml:2: colour" in said
    assert "profile.yaml:3: salary_floor" in said


def test_a_good_profile_is_said_to_be(ingest: Ingest, profile: Path) -> None:
    assert "is in order: 3 skills" in ingest.done("profile", "check")
    assert ingest.json("profile", "check")["is_usable"] is True


def test_the_example_can_be_saved_and_used(ingest: Ingest, profile: Path) -> None:
    profile.write_text(ingest.done("profile", "example"))

    assert profile.read_text().strip() == example_profile().strip()
    assert "is in order" in ingest.done("profile", "check")


def test_doctor_says_whether_a_profile_is_found_and_valid(ingest: Ingest, judged: Listings, profile: Path) -> None:
    def found() -> tuple[str, str]:
        result = ingest("doctor", "--json")
        checks = {one["name"]: one for one in json.loads(result.stdout)["checks"]}
        return checks["profile"]["state"], checks["profile"]["found"]

    good = found()
    profile.write_text("skills: {Python: 99}\ncolour: red\n")
    bad = found()
    profile.unlink()
    none = found()

    assert (good[0], bad[0], none[0]) == ("ok", "failed", "warning")
    assert "skills.Python" in bad[1]
    assert "colour" in bad[1]
    assert "job_board:northwind" in none[1]


def test_matches_of_a_source_that_is_not_there_are_refused(ingest: Ingest, profile: Path) -> None:
    assert "no source 'job_board:no'" in ingest.refused("matches", "list", "--source", "job_board:no")
