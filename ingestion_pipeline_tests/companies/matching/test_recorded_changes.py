"""Changes of decisions and matches are recorded with their cause: the listing, the profile, or a first sync."""

import pytest
from sqlalchemy import delete

from ingestion_pipeline.store.tables import changes, job_listings
from ingestion_pipeline_tests.companies.matching.listings import PROFILE, Listings
from ingestion_pipeline_tests.folding import check_fold

pytestmark = pytest.mark.both_databases


def causes(listings: Listings) -> set[tuple[str, str, str]]:
    """Return what was recorded, and forget it."""
    with listings.ctx.store.begin() as connection:
        found = {(row.table_name, row.op, row.cause) for row in listings.rows(changes)}
        connection.execute(delete(changes))
    return found


def test_a_match_has_the_cause_of_its_listing_and_another_profile_changes_it(listings: Listings) -> None:
    id_ = listings.add()
    listings.run()
    with listings.ctx.store.read() as connection:
        check_fold(connection)
    assert causes(listings) >= {
        ("job_matches", "insert", "source_changed"),
        ("job_listings", "update", "source_changed"),
        ("companies", "insert", "source_changed"),
    }

    listings.run_with(PROFILE.replace("Go: 7", "Go: 7, Rust: 6"))
    assert causes(listings) == {
        ("job_matches", "update", "profile_changed"),
        ("job_listings", "update", "profile_changed"),
    }

    listings.update(job_listings, id_, content_hash="a" * 64, rules_hash=None)
    causes(listings)
    listings.requeue(id_)
    listings.run()
    assert {cause for _, _, cause in causes(listings)} == {"source_changed"}


def test_what_comes_with_a_first_sync_has_that_cause(listings: Listings) -> None:
    listings.add(payload={"is_first_sync": True})
    listings.run()

    assert {("job_matches", "insert", "first_sync"), ("job_listings", "update", "first_sync")} <= causes(listings)
