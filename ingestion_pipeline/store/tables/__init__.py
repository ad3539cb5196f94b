"""The tables, in the order of the data's path; alembic's migrations create exactly these.

Columns, keys and indexes are stated here; statements on them do not belong here.
"""

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
from ingestion_pipeline.store.tables.hosts_and_snapshots import hosts, snapshots
from ingestion_pipeline.store.tables.jobs import LISTED, companies, job_listings, job_matches, listing_sources
from ingestion_pipeline.store.tables.metadata import comment_shared_columns, metadata
from ingestion_pipeline.store.tables.model_calls import model_answers, model_calls, model_endpoints, model_spending
from ingestion_pipeline.store.tables.notifications import (
    GIVEN_UP,
    UNHANDLED,
    UNSENT,
    follows,
    notices,
    outbox,
    recipients,
)
from ingestion_pipeline.store.tables.operations import (
    audit_log,
    observed_health,
    service_heartbeats,
    settings,
    source_health,
)
from ingestion_pipeline.store.tables.series import chapter_sources, chapters, series
from ingestion_pipeline.store.tables.sources_and_tasks import (
    ACTIVE,
    ENDED,
    FRONTIER,
    OPEN,
    SPAWNED,
    batch_items,
    dead_letters,
    export_cursors,
    ingestions,
    measurements,
    runs,
    source_versions,
    sources,
    task_totals,
    tasks,
)
from ingestion_pipeline.store.tables.websites import (
    UNFINISHED,
    businesses,
    website_analyses,
    website_answers,
    website_rankings,
)

__all__ = [
    "ACTIVE",
    "CRAWLING",
    "ENDED",
    "FRONTIER",
    "GIVEN_UP",
    "LISTED",
    "OPEN",
    "SPAWNED",
    "UNFINISHED",
    "UNHANDLED",
    "UNSENT",
    "audit_log",
    "batch_items",
    "businesses",
    "chapter_sources",
    "chapters",
    "companies",
    "crawl_steps",
    "data_items",
    "datasets",
    "dead_letters",
    "export_cursors",
    "extractions",
    "follows",
    "hosts",
    "ingestions",
    "job_listings",
    "job_matches",
    "learned_selectors",
    "listing_sources",
    "measurements",
    "metadata",
    "model_answers",
    "model_calls",
    "model_endpoints",
    "model_spending",
    "notices",
    "observed_health",
    "outbox",
    "pages",
    "recipes",
    "recipients",
    "runs",
    "series",
    "service_heartbeats",
    "settings",
    "snapshots",
    "source_health",
    "source_versions",
    "sources",
    "task_totals",
    "tasks",
    "website_analyses",
    "website_answers",
    "website_rankings",
]

comment_shared_columns()
