"""Meanings of the columns of extractions, pages, datasets and items."""

from __future__ import annotations

from collections.abc import Mapping

ITEMS = "data_items"

MEANINGS: Mapping[str, Mapping[str, str]] = {
    "extractions": {
        "status": "WAITING, IN_PROGRESS, or how it ended: COMPLETE, STALE, CANCELLED",
        "tracking_id": "UUID that all its tasks have in logs",
        "page_count": "pages found so far",
        "too_deep": "links that were not followed because they lie too deep",
        "over_budget": "pages that were not taken because the crawl's budget was used up",
        "failure": "why it ended without being complete, as JSON; null: it is running or complete",
        "kind": "how pages are obtained: crawl, api, or rerun of stored pages",
        "entity_type": "type of the records that pages are read for",
        "rerun_of": "the extraction whose snapshots are read again; null: it fetches its own",
        "base_dataset_id": "dataset that was published when it began, which unchanged pages come"
        " from; null: there was none",
        "dataset_id": "dataset that it built or found to be unchanged; null: none so far",
        "summary": "as JSON: pages by step and state, items, cost; null: nothing was counted yet",
        "changed_at": "when the summary last changed, UTC; null: nothing was counted yet",
        "notified_at": "when its end was notified, UTC; null: it was not",
        "updated_at": "when one of its pages last changed, UTC",
        "finished_at": "when it ended, UTC; null: it is running",
    },
    "pages": {
        "extraction_id": "the extraction that found it (`extractions.id`)",
        "step_id": "the step of the recipe that led to it (`crawl_steps.id`)",
        "url": "absolute address of the page",
        "key": "canonical address without a slash at the end: what makes it one page of its crawl",
        "host": "server that it is fetched from",
        "status": "how far it is: waiting, downloaded, read with or without records, failed",
        "page_type": "type that the recipe gives it, such as DETAIL",
        "position": "place in a list of pages, counted from the first; null: it is in none",
        "snapshot_id": "body that was last fetched; null: none was",
        "outcome": "whether the last visit found it new or same; null: it was not visited",
        "failure": "as JSON: class, code and message of what failed; null: nothing did",
        "size_bytes": "length of the body in bytes; null: none was fetched",
        "elapsed_ms": "duration of the last visit in milliseconds, without waiting for the host;"
        " null: it was not visited",
        "item_count": "records it states; null: not read yet",
        "rung": "extraction method of its records, from embedded data to a model; null: not read",
        "read_as": "hash of the schema and the reader it was read by; null: not read yet",
        "carried_from": "the unchanged page whose items are its own; null: it was read itself",
        "reading_at": "when its extraction began, UTC; null: it did not",
        "read_at": "when it was read, UTC; null: not yet",
        "visited_at": "when it was last requested, UTC; null: never",
        "run_id": "the Dagster run that read it last; null: not read, by a command, or before"
        " lineage was recorded",
    },
    "datasets": {
        "extraction_id": "the extraction that built it (`extractions.id`)",
        "version": "which of its source's datasets it is, counted from 1",
        "entity_type": "what its items are, such as course: the schema that names their fields",
        "read_as": "hash of the schema and the reader its items were read by",
        "status": "how far it is; the newest that is published is shown",
        "item_count": "items in it, each record once",
        "flagged_count": "items with a required field that nothing proves; they are not exported",
        "findings": "what the quality gates found, as JSON; null: not checked yet",
        "published_at": "when it was published, UTC; null: it was not",
        "confirmed_at": "when an extraction last found it unchanged, UTC; null: none did since",
    },
    ITEMS: {
        "row_type": "whether the row is an item or the framework that items belong to",
        "grounded_percent": "how many of a hundred stated fields are proved; null: none is stated",
        "grounded_fields": "names of the fields that a text or the source proves",
        "ungrounded_fields": "names of the fields that nothing proves; they are blank",
        "is_flagged": "whether a required field of it is not proved",
        "is_repeat": "whether another page states it too",
        "entity_type": "type of the item, which names its fields",
        "dataset_id": "the version of its source's items that it belongs to (`datasets.id`)",
        "dataset_version": "which of its source's datasets that is, counted from 1",
        "dataset_status": "state of that dataset; published, unless another was requested",
        "item_id": "number of the item: what `ingest explain data_items:ID` takes",
        "item_key": "natural key that is unique in its dataset, readable for people",
        "page_id": "the page that states it (`pages.id`)",
        "page_url": "absolute address of the page that states it",
        "snapshot_id": "body that states it; null: it was deleted",
        "fetched_at": "when that body was fetched, UTC; null: never visited",
        "read_at": "when the item was read from it, UTC",
        "run_id": "the Dagster run that read it; null: a command did, or it is older than lineage",
        "rung": "method that extracted it: embedded data, selectors, layouts, a model",
        "model": "name of the model that read it; null: rules did",
        "confidence": "how sure the reader is of the whole item, 0 to 1",
    },
}
