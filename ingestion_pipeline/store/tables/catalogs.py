"""Tables of catalogues: recipes, extractions with their steps and pages, datasets and items."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Float, ForeignKey, Index, Integer, String, Table, Text, UniqueConstraint, text

from ingestion_pipeline.store.tables.metadata import metadata
from ingestion_pipeline.store.types import Id, Json, UtcDateTime, count, modified_at

# The same condition is in the partial indexes and in the statements that use them: SQLite uses a
# partial index only if the query repeats its condition literally.
CRAWLING = text("status IN ('WAITING', 'IN_PROGRESS')")

recipes = Table(
    "recipes",
    metadata,
    Column("source_id", String(120), ForeignKey("sources.id"), primary_key=True),
    Column("status", String(12), nullable=False, comment="WAITING, IN_PROGRESS, SUCCESS or ERROR"),
    Column("recipe", Json, comment="the last detected recipe that was accepted"),
    Column("message", Text, comment="how it was detected, or why not"),
    Column("evidence", Json, comment="platform, rules and votes that decided"),
    Column("detected_for", String(64), comment="hash of the URL and configuration it was detected for"),
    Column("notified_at", UtcDateTime, comment="when the result was notified, UTC"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
)

learned_selectors = Table(
    "learned_selectors",
    metadata,
    Column("source_id", String(120), ForeignKey("sources.id"), primary_key=True),
    Column("entity_type", String(60), primary_key=True, comment="entity type that they extract"),
    Column("schema_hash", String(64), nullable=False, comment="hash of the entity type's schema"),
    Column("selectors", Json, nullable=False, comment="CSS selectors by field, and of the surrounding record"),
    Column("learned_from", Integer, nullable=False, comment="training pages"),
    count("confirmed", "pages they extracted records from"),
    count("failed", "pages they failed on"),
    count("failed_in_row", "failures since the last success"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
)

extractions = Table(
    "extractions",
    metadata,
    Column("id", Id, primary_key=True),
    Column("source_id", String(120), ForeignKey("sources.id"), nullable=False),
    Column(
        "status",
        String(12),
        nullable=False,
        comment="WAITING, IN_PROGRESS, or how it ended: COMPLETE, STALE, CANCELLED",
    ),
    Column("recipe", Json, nullable=False, comment="recipe at the start of the extraction"),
    Column("tracking_id", String(36), nullable=False, comment="UUID that all its tasks have in logs"),
    count("page_count", "pages found so far"),
    count("too_deep", "links that were not followed because they lie too deep"),
    count("over_budget", "pages that were not taken because the crawl's budget was used up"),
    Column("failure", Json, comment="why it ended without being complete, as JSON; null: it is running or complete"),
    Column(
        "kind",
        String(10),
        nullable=False,
        server_default="crawl",
        comment="how pages are obtained: crawl, api, or rerun of stored pages",
    ),
    Column(
        "entity_type",
        String(60),
        nullable=False,
        server_default="course",
        comment="type of the records that pages are read for",
    ),
    Column("rerun_of", Id, comment="the extraction whose snapshots are read again; null: it fetches its own"),
    Column(
        "base_dataset_id",
        Id,
        comment="dataset that was published when it began, which unchanged pages come from; null: there was none",
    ),
    Column("dataset_id", Id, comment="dataset that it built or found to be unchanged; null: none so far"),
    Column("summary", Json, comment="as JSON: pages by step and state, items, cost; null: nothing was counted yet"),
    Column("changed_at", UtcDateTime, comment="when the summary last changed, UTC; null: nothing was counted yet"),
    Column("notified_at", UtcDateTime, comment="when its end was notified, UTC; null: it was not"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False, comment="when one of its pages last changed, UTC"),
    Column("finished_at", UtcDateTime, comment="when it ended, UTC; null: it is running"),
    Column("config_version", Integer),
    modified_at(),
    Index(None, "source_id", "id"),
    Index("uq_extractions_crawling", "source_id", unique=True, postgresql_where=CRAWLING, sqlite_where=CRAWLING),
)

crawl_steps = Table(
    "crawl_steps",
    metadata,
    Column("id", Id, primary_key=True),
    Column("extraction_id", Id, ForeignKey("extractions.id"), nullable=False, comment="the extraction"),
    Column("parent_id", Id, comment="the step before; null: the start page"),
    Column("kind", String(20), nullable=False, comment="kind of step in the recipe"),
    Column("key", Text, nullable=False, comment="path of the step in the recipe: root/pages/links"),
    Column("page_type", String(20), nullable=False, comment="type of the pages it leads to"),
    Column("created_at", UtcDateTime, nullable=False),
    UniqueConstraint("extraction_id", "key"),
)

pages = Table(
    "pages",
    metadata,
    Column("id", Id, primary_key=True),
    Column(
        "extraction_id",
        Id,
        ForeignKey("extractions.id"),
        nullable=False,
        comment="the extraction that found it (`extractions.id`)",
    ),
    Column(
        "step_id",
        Id,
        ForeignKey("crawl_steps.id"),
        nullable=False,
        comment="the step of the recipe that led to it (`crawl_steps.id`)",
    ),
    Column("url", Text, nullable=False, comment="absolute address of the page"),
    Column(
        "key",
        Text,
        nullable=False,
        comment="canonical address without a slash at the end: what makes it one page of its crawl",
    ),
    Column("host", Text, nullable=False, comment="server that it is fetched from"),
    Column(
        "status",
        String(20),
        nullable=False,
        comment="how far it is: waiting, downloaded, read with or without records, failed",
    ),
    Column("page_type", String(20), nullable=False, comment="type that the recipe gives it, such as DETAIL"),
    Column("position", Integer, comment="place in a list of pages, counted from the first; null: it is in none"),
    Column("snapshot_id", Id, comment="body that was last fetched; null: none was"),
    Column("outcome", String(10), comment="whether the last visit found it new or same; null: it was not visited"),
    Column("failure", Json, comment="as JSON: class, code and message of what failed; null: nothing did"),
    Column("size_bytes", Integer, comment="length of the body in bytes; null: none was fetched"),
    Column(
        "elapsed_ms",
        Integer,
        comment="duration of the last visit in milliseconds, without waiting for the host; null: it was not visited",
    ),
    Column("item_count", Integer, comment="records it states; null: not read yet"),
    Column(
        "extraction_method",
        String(20),
        comment="extraction method of its records, from embedded data to a model; null: not read",
    ),
    Column("reader_hash", String(64), comment="hash of the schema and the reader it was read by; null: not read yet"),
    Column("carried_from", Id, comment="the unchanged page whose items are its own; null: it was read itself"),
    Column("read_started_at", UtcDateTime, comment="when its extraction began, UTC; null: it did not"),
    Column("read_at", UtcDateTime, comment="when it was read, UTC; null: not yet"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("visited_at", UtcDateTime, comment="when it was last requested, UTC; null: never"),
    Column(
        "run_id",
        String(64),
        comment="the Dagster run that read it last; null: not read, by a command, or before lineage was recorded",
    ),
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
    Column(
        "extraction_id",
        Id,
        ForeignKey("extractions.id"),
        nullable=False,
        comment="the extraction that built it (`extractions.id`)",
    ),
    Column("version", Integer, nullable=False, comment="which of its source's datasets it is, counted from 1"),
    Column(
        "entity_type",
        String(60),
        nullable=False,
        comment="what its items are, such as course: the schema that names their fields",
    ),
    Column(
        "reader_hash", String(64), nullable=False, comment="hash of the schema and the reader its items were read by"
    ),
    Column("status", String(12), nullable=False, comment="how far it is; the newest that is published is shown"),
    count("item_count", "items in it, each record once"),
    count("flagged_count", "items with a required field that nothing proves; they are not exported"),
    Column("findings", Json, comment="what the quality gates found, as JSON; null: not checked yet"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("published_at", UtcDateTime, comment="when it was published, UTC; null: it was not"),
    Column(
        "confirmed_at", UtcDateTime, comment="when an extraction last found it unchanged, UTC; null: none did since"
    ),
    modified_at(),
    UniqueConstraint("source_id", "version"),
    Index(None, "extraction_id"),
)

data_items = Table(
    "data_items",
    metadata,
    Column("id", Id, primary_key=True),
    Column(
        "dataset_id",
        Id,
        ForeignKey("datasets.id"),
        nullable=False,
        comment="the version of its source's items that it belongs to (`datasets.id`)",
    ),
    Column("page_id", Id, ForeignKey("pages.id"), nullable=False, comment="the page that states it (`pages.id`)"),
    Column("snapshot_id", Id, comment="body that states it; null: it was deleted"),
    Column("entity_type", String(60), nullable=False, comment="type of the item, which names its fields"),
    Column("item_key", Text, nullable=False, comment="natural key that is unique in its dataset, readable for people"),
    Column("position", Integer, nullable=False, comment="position on its page"),
    Column("data", Json, nullable=False, comment="extracted fields, as JSON"),
    Column("grounding", Json, nullable=False, comment="evidence by field: status, start and end in the text"),
    Column(
        "extraction_method",
        String(20),
        nullable=False,
        comment="method that extracted it: embedded data, selectors, layouts, a model",
    ),
    Column("model", Text, comment="name of the model that read it; null: rules did"),
    Column("confidence", Float, nullable=False, comment="how sure the reader is of the whole item, 0 to 1"),
    Column("is_flagged", Boolean, nullable=False, comment="whether a required field of it is not proved"),
    Column("is_repeat", Boolean, nullable=False, comment="whether another page states it too"),
    Column("created_at", UtcDateTime, nullable=False),
    UniqueConstraint("dataset_id", "page_id", "item_key"),
    Index(None, "dataset_id", "item_key"),
    Index(None, "page_id"),
)
