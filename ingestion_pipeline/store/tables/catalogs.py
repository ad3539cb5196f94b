"""Tables of catalogues: recipes, extractions with their steps and pages, datasets and items."""

from sqlalchemy import Boolean, Column, Float, ForeignKey, Index, Integer, String, Table, Text, UniqueConstraint, text

from ingestion_pipeline.store.tables.metadata import metadata
from ingestion_pipeline.store.types import Id, Json, UtcDateTime, count, modified_at, optional, required

# The same condition is in the partial indexes and in the statements that use them: SQLite uses a
# partial index only if the query repeats its condition literally.
CRAWLING = text("status IN ('WAITING', 'IN_PROGRESS')")

recipes = Table(
    "recipes",
    metadata,
    Column("source_id", String(120), ForeignKey("sources.id"), primary_key=True),
    required("status", String(12), "WAITING, IN_PROGRESS, SUCCESS or ERROR"),
    optional("recipe", Json, "the last detected recipe that was accepted"),
    optional("message", Text, "how it was detected, or why not"),
    optional("evidence", Json, "platform, rules and votes that decided"),
    optional("detected_for", String(64), "hash of the URL and configuration it was detected for"),
    optional("notified_at", UtcDateTime, "when the result was notified, UTC"),
    required("created_at", UtcDateTime),
    required("updated_at", UtcDateTime),
)

learned_selectors = Table(
    "learned_selectors",
    metadata,
    Column("source_id", String(120), ForeignKey("sources.id"), primary_key=True),
    Column("entity_type", String(60), primary_key=True, comment="entity type that they extract"),
    required("schema_hash", String(64), "hash of the entity type's schema"),
    required("selectors", Json, "CSS selectors by field, and of the surrounding record"),
    required("learned_from", Integer, "training pages"),
    count("confirmed", "pages they extracted records from"),
    count("failed", "pages they failed on"),
    count("failed_in_row", "failures since the last success"),
    required("created_at", UtcDateTime),
    required("updated_at", UtcDateTime),
)

extractions = Table(
    "extractions",
    metadata,
    Column("id", Id, primary_key=True),
    required("source_id", String(120), references="sources.id"),
    required("status", String(12), "WAITING, IN_PROGRESS, or how it ended: COMPLETE, STALE, CANCELLED"),
    required("recipe", Json, "recipe at the start of the extraction"),
    required("tracking_id", String(36), "UUID that all its tasks have in logs"),
    count("page_count", "pages found so far"),
    count("too_deep", "links that were not followed because they lie too deep"),
    count("over_budget", "pages that were not taken because the crawl's budget was used up"),
    optional("failure", Json, "why it ended without being complete, as JSON; null: it is running or complete"),
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
    optional("rerun_of", Id, "the extraction whose snapshots are read again; null: it fetches its own"),
    optional(
        "base_dataset_id",
        Id,
        "dataset that was published when it began, which unchanged pages come from; null: there was none",
    ),
    optional("dataset_id", Id, "dataset that it built or found to be unchanged; null: none so far"),
    optional("summary", Json, "as JSON: pages by step and state, items, cost; null: nothing was counted yet"),
    optional("changed_at", UtcDateTime, "when the summary last changed, UTC; null: nothing was counted yet"),
    optional("notified_at", UtcDateTime, "when its end was notified, UTC; null: it was not"),
    required("created_at", UtcDateTime),
    required("updated_at", UtcDateTime, "when one of its pages last changed, UTC"),
    optional("finished_at", UtcDateTime, "when it ended, UTC; null: it is running"),
    optional("config_version", Integer),
    modified_at(),
    Index(None, "source_id", "id"),
    Index("uq_extractions_crawling", "source_id", unique=True, postgresql_where=CRAWLING, sqlite_where=CRAWLING),
)

crawl_steps = Table(
    "crawl_steps",
    metadata,
    Column("id", Id, primary_key=True),
    required("extraction_id", Id, "the extraction", references="extractions.id"),
    optional("parent_id", Id, "the step before; null: the start page"),
    required("kind", String(20), "kind of step in the recipe"),
    required("key", Text, "path of the step in the recipe: root/pages/links"),
    required("page_type", String(20), "type of the pages it leads to"),
    required("created_at", UtcDateTime),
    UniqueConstraint("extraction_id", "key"),
)

pages = Table(
    "pages",
    metadata,
    Column("id", Id, primary_key=True),
    required("extraction_id", Id, "the extraction that found it (`extractions.id`)", references="extractions.id"),
    required("step_id", Id, "the step of the recipe that led to it (`crawl_steps.id`)", references="crawl_steps.id"),
    required("url", Text, "absolute address of the page"),
    required("key", Text, "canonical address without a slash at the end: what makes it one page of its crawl"),
    required("host", Text, "server that it is fetched from"),
    required("status", String(20), "how far it is: waiting, downloaded, read with or without records, failed"),
    required("page_type", String(20), "type that the recipe gives it, such as DETAIL"),
    optional("position", Integer, "place in a list of pages, counted from the first; null: it is in none"),
    optional("snapshot_id", Id, "body that was last fetched; null: none was"),
    optional("outcome", String(10), "whether the last visit found it new or same; null: it was not visited"),
    optional("failure", Json, "as JSON: class, code and message of what failed; null: nothing did"),
    optional("size_bytes", Integer, "length of the body in bytes; null: none was fetched"),
    optional(
        "elapsed_ms",
        Integer,
        "duration of the last visit in milliseconds, without waiting for the host; null: it was not visited",
    ),
    optional("item_count", Integer, "records it states; null: not read yet"),
    optional(
        "extraction_method",
        String(20),
        "extraction method of its records, from embedded data to a model; null: not read",
    ),
    optional("reader_hash", String(64), "hash of the schema and the reader it was read by; null: not read yet"),
    optional("carried_from", Id, "the unchanged page whose items are its own; null: it was read itself"),
    optional("read_started_at", UtcDateTime, "when its extraction began, UTC; null: it did not"),
    optional("read_at", UtcDateTime, "when it was read, UTC; null: not yet"),
    required("created_at", UtcDateTime),
    optional("visited_at", UtcDateTime, "when it was last requested, UTC; null: never"),
    optional(
        "run_id",
        String(64),
        "the Dagster run that read it last; null: not read, by a command, or before lineage was recorded",
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
    required("source_id", String(120), references="sources.id"),
    required("extraction_id", Id, "the extraction that built it (`extractions.id`)", references="extractions.id"),
    required("version", Integer, "which of its source's datasets it is, counted from 1"),
    required("entity_type", String(60), "what its items are, such as course: the schema that names their fields"),
    required("reader_hash", String(64), "hash of the schema and the reader its items were read by"),
    required("status", String(12), "how far it is; the newest that is published is shown"),
    count("item_count", "items in it, each record once"),
    count("flagged_count", "items with a required field that nothing proves; they are not exported"),
    optional("findings", Json, "what the quality gates found, as JSON; null: not checked yet"),
    required("created_at", UtcDateTime),
    optional("published_at", UtcDateTime, "when it was published, UTC; null: it was not"),
    optional("confirmed_at", UtcDateTime, "when an extraction last found it unchanged, UTC; null: none did since"),
    modified_at(),
    UniqueConstraint("source_id", "version"),
    Index(None, "extraction_id"),
)

data_items = Table(
    "data_items",
    metadata,
    Column("id", Id, primary_key=True),
    required(
        "dataset_id",
        Id,
        "the version of its source's items that it belongs to (`datasets.id`)",
        references="datasets.id",
    ),
    required("page_id", Id, "the page that states it (`pages.id`)", references="pages.id"),
    optional("snapshot_id", Id, "body that states it; null: it was deleted"),
    required("entity_type", String(60), "type of the item, which names its fields"),
    required("item_key", Text, "natural key that is unique in its dataset, readable for people"),
    required("position", Integer, "position on its page"),
    required("data", Json, "extracted fields, as JSON"),
    required("grounding", Json, "evidence by field: status, start and end in the text"),
    required("extraction_method", String(20), "method that extracted it: embedded data, selectors, layouts, a model"),
    optional("model", Text, "name of the model that read it; null: rules did"),
    required("confidence", Float, "how sure the reader is of the whole item, 0 to 1"),
    required("is_flagged", Boolean, "whether a required field of it is not proved"),
    required("is_repeat", Boolean, "whether another page states it too"),
    required("created_at", UtcDateTime),
    UniqueConstraint("dataset_id", "page_id", "item_key"),
    Index(None, "dataset_id", "item_key"),
    Index(None, "page_id"),
)
