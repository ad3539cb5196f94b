"""Extract records from catalogue pages: entity types as data, extraction rules and records.

`read_page` tries the extraction methods from the cheapest to the costliest: embedded data,
configured selectors, layouts of known vendors, generic layout, a cheap model, then a strong one.
Which pages are read, and where records are stored, is decided elsewhere.
"""

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType, entity_type
from ingestion_pipeline.catalogs.extraction.item_keys import item_key, item_keys, reader_hash
from ingestion_pipeline.catalogs.extraction.page_result import ExtractionOverBudget, ExtractionResult, PageContent
from ingestion_pipeline.catalogs.extraction.pipeline import read_page
from ingestion_pipeline.catalogs.extraction.record import ExtractionMethod, Record
from ingestion_pipeline.catalogs.extraction.selectors import BadSelectors, Selectors, selectors_of

__all__ = [
    "BadSelectors",
    "EntityType",
    "ExtractionMethod",
    "ExtractionOverBudget",
    "ExtractionResult",
    "PageContent",
    "Record",
    "Selectors",
    "entity_type",
    "item_key",
    "item_keys",
    "read_page",
    "reader_hash",
    "selectors_of",
]
