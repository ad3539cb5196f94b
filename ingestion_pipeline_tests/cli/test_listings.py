"""`ingest listings`: what boards list, chosen by board, company, state and verdict."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from ingestion_pipeline.store.tables import job_listings
from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.cli.test_matches import judged, profile  # noqa: F401 - fixtures
from ingestion_pipeline_tests.companies.matching.listings import BOARD, Listings


@pytest.mark.parametrize(
    ("options", "titles"),
    [
        ((), ["Junior Engineer", "Senior Python Engineer"]),
        (("--verdict", "matched"), ["Senior Python Engineer"]),
        (("--verdict", "waiting"), []),
        (("--title", "junior"), ["Junior Engineer"]),
        (("--company", "north"), ["Junior Engineer", "Senior Python Engineer"]),
        (("--company", "100%"), []),
        (("--source", BOARD, "--limit", "1"), ["Junior Engineer"]),
        (("--status", "closed"), []),
    ],
)
def test_listings_are_chosen_by_what_is_asked(
    ingest: Ingest,
    judged: Listings,  # noqa: F811 - the fixture
    options: tuple[str, ...],
    titles: list[str],
) -> None:
    assert [one["title"] for one in ingest.json("listings", "list", *options)] == titles


def test_a_listing_is_shown_with_its_boards_and_why_it_is_closed(
    ingest: Ingest,
    judged: Listings,  # noqa: F811 - the fixture
) -> None:
    with judged.ctx.store.begin() as connection:
        closed = {"status": "closed", "closed_reason": "its board lists it no more"}
        connection.execute(update(job_listings).values(**closed))

    said = " ".join(ingest.done("listings", "show", "1").split())
    row = ingest.json("listings", "show", "1")

    assert "its board lists it no more" in said
    assert BOARD in said
    assert [one["source_id"] for one in row["links"]] == [BOARD]
    assert row["match"]["reason"] in said or row["match"]["score"] > 80


def test_no_listing_says_what_to_do(ingest: Ingest) -> None:
    assert "job_board" in ingest.done("listings", "list")
    assert "ingest listings list" in ingest.refused("listings", "show", "7")
