"""What companies and job boards publish: their tables, and the contracts of their assets."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from ingestion_pipeline.companies.states import CompanyStatus, ListingDecision, ListingStatus, Priority
from ingestion_pipeline.engine.published import (
    ADDRESS,
    POLL_ORIGIN,
    Contract,
    ContractRule,
    PublishedTable,
    Written,
    joined_to_poll,
    one_of,
    polls_of_run,
    required,
)
from ingestion_pipeline.store.tables import companies, ingestions, job_listings, job_matches, listing_sources


def _written_companies(source_ids: Sequence[str], run_id: str) -> Written:  # noqa: ARG001 - one row for each source
    return companies, [companies.c.source_id.in_(source_ids)]


def _written_listings(source_ids: Sequence[str], run_id: str) -> Written:
    listed = select(listing_sources.c.listing_id).where(listing_sources.c.source_id.in_(source_ids))
    is_written = job_listings.c.ingestion_id.in_(polls_of_run(source_ids, run_id))
    return job_listings, [job_listings.c.id.in_(listed), is_written]


def _written_matches(source_ids: Sequence[str], run_id: str) -> Written:
    return job_matches, [job_matches.c.source_id.in_(source_ids), job_matches.c.run_id == run_id]


_COMPANIES = PublishedTable(table=companies, source_id=companies.c.source_id)
_LISTINGS = PublishedTable(
    table=job_listings,
    without=frozenset({"url_key", "fingerprint", "origin_key", "content_hash", "rules_hash"}),
    source_id=job_listings.c.source_id,
    rows=joined_to_poll(job_listings),
    origin=POLL_ORIGIN,
)
_MATCHES = PublishedTable(
    table=job_matches,
    without=frozenset({"rules_hash"}),
    source_id=job_matches.c.source_id,
    rows=job_matches.outerjoin(job_listings, job_listings.c.id == job_matches.c.listing_id).outerjoin(
        ingestions, ingestions.c.id == job_listings.c.ingestion_id
    ),
    origin=(
        job_listings.c.snapshot_id,
        ingestions.c.snapshots.label("snapshot_ids"),
        ingestions.c.run_id.label("listing_run_id"),
        ingestions.c.config_version,
    ),
    meanings={
        "snapshot_id": "body of the list that states the job; null: the list has several pages, or it is older"
        " than lineage",
        "listing_run_id": "the Dagster run that wrote the listing; null: a command did, or it is older than lineage",
    },
)
TABLES = (
    _COMPANIES,
    _LISTINGS,
    PublishedTable(
        table=listing_sources,
        without=frozenset({"content_hash", "stated"}),
        source_id=listing_sources.c.source_id,
        rows=joined_to_poll(listing_sources),
        origin=POLL_ORIGIN,
    ),
    _MATCHES,
)
_AGAIN = "evaluate it again: touch the profile"
CONTRACTS = (
    Contract(
        asset="companies",
        table=_COMPANIES,
        rules={
            "website": [ADDRESS],
            "status": [one_of(*CompanyStatus)],
            "tier": [one_of("S", "A", "B", "C", "D")],
        },
        written=_written_companies,
    ),
    Contract(
        asset="job_listings",
        table=_LISTINGS,
        rules={
            "title": [required("`ingest explain` shows the body; the reader's selector may have moved")],
            "url": [ADDRESS],
            "remote": [one_of("remote", "hybrid", "on_site")],
            "status": [one_of(*ListingStatus)],
            "decision": [one_of(*ListingDecision)],
        },
        written=_written_listings,
    ),
    Contract(
        asset="job_matches",
        table=_MATCHES,
        rules={
            "score": [ContractRule(requirement="0 to 100", cure=_AGAIN, between=(0, 100))],
            "priority": [one_of(*Priority)],
            "reason": [required(_AGAIN)],
        },
        written=_written_matches,
    ),
)
