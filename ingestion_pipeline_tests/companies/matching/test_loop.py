"""Listings as work: claimed, judged, written once, whatever happens in between."""

from __future__ import annotations

from ingestion_pipeline.store.tables import companies, job_listings, job_matches, outbox, tasks
from ingestion_pipeline_tests.companies.matching.listings import Listings


def test_a_listing_that_fits_is_a_match_with_its_reason_and_is_told(some: Listings) -> None:
    id_ = some.add()

    done = some.run()

    assert (done.counts.matched, done.counts.told, done.problem) == (1, 1, None)
    [match] = some.rows(job_matches)
    assert (match.listing_id, match.status, match.priority, match.method) == (
        id_,
        "new",
        "high",
        "rules",
    )
    assert match.skills_matched == ["Python", "PostgreSQL"]
    assert "names Python, PostgreSQL" in match.reason
    listing = some.row(job_listings, id_)
    assert (listing.verdict, listing.company_id) == ("matched", "northwind")
    assert listing.filter_result["passed"] is True
    [told] = some.rows(outbox)
    assert (told.subject_kind, told.subject_id) == ("job_match", str(id_))
    [task] = some.rows(tasks)[-1:]
    assert (task.status, task.stage) == ("SUCCESS", "SAVE")
    [company] = some.rows(companies)
    assert (company.id, company.name, company.status) == ("northwind", "Northwind", "pending")
