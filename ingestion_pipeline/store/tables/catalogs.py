"""Tables of catalogues: recipes, extractions with their steps and pages, datasets and items."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Float, ForeignKey, Index, Integer, String, Table, Text, UniqueConstraint, text

from ingestion_pipeline.store.tables.metadata import metadata
from ingestion_pipeline.store.types import Id, Json, UtcDateTime, modified_at

# The same condition is in the partial indexes and in the statements that use them: SQLite uses a
# partial index only if the query repeats its condition literally.
CRAWLING = text("status IN ('WAITING', 'IN_PROGRESS')")

recipes = Table(
    "recipes",
    metadata,
    Column("source_id", String(120), ForeignKey("sources.id"), primary_key=True),
    Column("status", String(12), nullable=False, comment="WAITING to SUCCESS or ERROR"),
    Column("recipe", Json, comment="as detected: the last that was found to be right"),
    Column("message", Text, comment="for people: how it was found, or why not"),
    Column("evidence", Json, comment="platform, rules and votes that decided"),
    Column("detected_for", String(64), comment="hash of the URL and configuration it was for"),
    Column("notified_at", UtcDateTime),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
)

learned_selectors = Table(
    "learned_selectors",
    metadata,
    Column("source_id", String(120), ForeignKey("sources.id"), primary_key=True),
    Column("entity_type", String(60), primary_key=True),
    Column("schema_hash", String(64), nullable=False, comment="of the type they were learned for"),
    Column("selectors", Json, nullable=False, comment="CSS by field, and of what is around one"),
    Column("learned_from", Integer, nullable=False, comment="pages that a model had read"),
    Column("confirmed", Integer, nullable=False, server_default="0", comment="pages they read"),
    Column("failed", Integer, nullable=False, server_default="0", comment="pages they did not"),
    Column("failed_in_row", Integer, nullable=False, server_default="0"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
)

extractions = Table(
    "extractions",
    metadata,
    Column("id", Id, primary_key=True),
    Column("source_id", String(120), ForeignKey("sources.id"), nullable=False),
    Column("status", String(12), nullable=False),
    Column("recipe", Json, nullable=False, comment="as it was when the extraction began"),
    Column("tracking_id", String(36), nullable=False, comment="of all its tasks"),
    Column("page_count", Integer, nullable=False, server_default="0", comment="found so far"),
    Column("too_deep", Integer, nullable=False, server_default="0", comment="links not followed"),
    Column("over_budget", Integer, nullable=False, server_default="0", comment="pages not taken"),
    Column("failure", Json, comment="why it ended without being complete"),
    Column("kind", String(10), nullable=False, server_default="crawl", comment="crawl, api, rerun"),
    Column("entity_type", String(60), nullable=False, server_default="course"),
    Column("rerun_of", Id, comment="the extraction whose snapshots are read again"),
    Column("base_dataset_id", Id, comment="published when it began; unchanged pages come from it"),
    Column("dataset_id", Id, comment="what it built, or found to be unchanged"),
    Column("summary", Json, comment="pages by step and state, items, cost: as last changed"),
    Column("changed_at", UtcDateTime, comment="when the summary last changed"),
    Column("notified_at", UtcDateTime, comment="when its end was told; once"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False, comment="last time a page changed"),
    Column("finished_at", UtcDateTime),
    Column("config_version", Integer, comment="of the source, when it began"),
    modified_at(),
    Index(None, "source_id", "id"),
    Index("uq_extractions_crawling", "source_id", unique=True, postgresql_where=CRAWLING, sqlite_where=CRAWLING),
)

crawl_steps = Table(
    "crawl_steps",
    metadata,
    Column("id", Id, primary_key=True),
    Column("extraction_id", Id, ForeignKey("extractions.id"), nullable=False),
    Column("parent_id", Id),
    Column("kind", String(20), nullable=False),
    Column("key", Text, nullable=False, comment="the way to it in the recipe: root/pages/links"),
    Column("page_type", String(20), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    UniqueConstraint("extraction_id", "key"),
)

pages = Table(
    "pages",
    metadata,
    Column("id", Id, primary_key=True),
    Column("extraction_id", Id, ForeignKey("extractions.id"), nullable=False),
    Column("step_id", Id, ForeignKey("crawl_steps.id"), nullable=False),
    Column("url", Text, nullable=False),
    Column("key", Text, nullable=False, comment="canonical URL without a slash at its path's end"),
    Column("host", Text, nullable=False),
    Column("status", String(20), nullable=False),
    Column("page_type", String(20), nullable=False),
    Column("position", Integer, comment="in a list of pages"),
    Column("snapshot_id", Id),
    Column("outcome", String(10), comment="of the last visit: new or same"),
    Column("failure", Json, comment="class, code and message"),
    Column("size_bytes", Integer),
    Column("elapsed_ms", Integer, comment="of the last visit, without waiting for a turn"),
    Column("item_count", Integer, comment="records it states; none before it was read"),
    Column("rung", String(20), comment="how its records were come by"),
    Column("read_as", String(64), comment="hash of the entity's schema and of the reader"),
    Column("carried_from", Id, comment="the unchanged page whose items are its own"),
    Column("reading_at", UtcDateTime, comment="when its reading began"),
    Column("read_at", UtcDateTime),
    Column("created_at", UtcDateTime, nullable=False),
    Column("visited_at", UtcDateTime),
    Column("run_id", String(64), comment="the run that read it last"),
    modified_at(),
    UniqueConstraint("extraction_id", "key"),
    Index(None, "extraction_id", "status"),
    Index(None, "snapshot_id"),
)

datasets = Table(
    "datasets",
    metadata,
    Column("id", Id, primary_key=True),
    Column("source_id", String(120), ForeignKey("sources.id"), nullable=False),
    Column("extraction_id", Id, ForeignKey("extractions.id"), nullable=False),
    Column("version", Integer, nullable=False, comment="of the source, from 1"),
    Column("entity_type", String(60), nullable=False),
    Column("read_as", String(64), nullable=False, comment="hash of the schema and of the reader"),
    Column("status", String(12), nullable=False, comment="building, published, quarantined, ..."),
    Column("item_count", Integer, nullable=False, server_default="0", comment="each record once"),
    Column("flagged_count", Integer, nullable=False, server_default="0", comment="not exported"),
    Column("findings", Json, comment="what the quality gates found"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("published_at", UtcDateTime),
    Column("confirmed_at", UtcDateTime, comment="when an extraction last found it unchanged"),
    modified_at(),
    UniqueConstraint("source_id", "version"),
    Index(None, "extraction_id"),
)

data_items = Table(
    "data_items",
    metadata,
    Column("id", Id, primary_key=True),
    Column("dataset_id", Id, ForeignKey("datasets.id"), nullable=False),
    Column("page_id", Id, ForeignKey("pages.id"), nullable=False),
    Column("snapshot_id", Id, comment="the content that states it"),
    Column("entity_type", String(60), nullable=False),
    Column("item_key", Text, nullable=False, comment="its natural key, for people to read"),
    Column("position", Integer, nullable=False, comment="on its page"),
    Column("data", Json, nullable=False),
    Column("grounding", Json, nullable=False, comment="status, start and end by field"),
    Column("rung", String(20), nullable=False),
    Column("model", Text, comment="that read it, if one did"),
    Column("confidence", Float, nullable=False),
    Column("is_flagged", Boolean, nullable=False, comment="a required field is not proved"),
    Column("is_repeat", Boolean, nullable=False, comment="another page states it, too"),
    Column("created_at", UtcDateTime, nullable=False),
    UniqueConstraint("dataset_id", "page_id", "item_key"),
    Index(None, "dataset_id", "item_key"),
    Index(None, "page_id"),
)
