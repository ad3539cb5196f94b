"""The tables, in the order of the data's path; alembic's migrations create exactly these.

Columns, keys and indexes are stated here; statements on them do not belong here.
"""

# pyright: reportUnusedImport=false

from ingestion_pipeline.store.tables.catalogs import (
    CRAWLING,
    crawl_steps,
    data_items,
    datasets,
    extractions,
    learned_selectors,
    pages,
    recipes,
)
from ingestion_pipeline.store.tables.companies_and_websites import (
    LISTED,
    UNFINISHED,
    businesses,
    companies,
    job_listings,
    job_matches,
    listing_sources,
    website_analyses,
    website_answers,
    website_rankings,
)
from ingestion_pipeline.store.tables.metadata import comment_shared_columns, metadata
from ingestion_pipeline.store.tables.operations import (
    audit_log,
    changes,
    freshness_days,
    model_answers,
    model_batch_lines,
    model_batches,
    model_calls,
    model_endpoints,
    model_spending,
    observed_health,
    service_heartbeats,
    settings,
    source_health,
)
from ingestion_pipeline.store.tables.series_and_notices import (
    GIVEN_UP,
    UNHANDLED,
    UNSENT,
    change_follows,
    chapter_sources,
    chapters,
    follows,
    notices,
    outbox,
    recipients,
    series,
)
from ingestion_pipeline.store.tables.sources_and_tasks import (
    ACTIVE,
    ENDED,
    FRONTIER,
    OPEN,
    SPAWNED,
    batch_items,
    dead_letters,
    export_cursors,
    hosts,
    ingestions,
    measurements,
    runs,
    snapshots,
    source_versions,
    sources,
    task_totals,
    tasks,
)

comment_shared_columns()
