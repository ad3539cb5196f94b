"""What a catalogue is read for: entity types as data, the rules that find them, and records.

The ladder (`read_page`): data that a page has for machines, selectors that a source gives, layouts
of known vendors, layout alone, then a cheap model, then a strong one. Which pages are read, and
where records are kept, is not decided here.
"""

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType, entity_type
from ingestion_pipeline.catalogs.extraction.item_keys import item_key, item_keys, read_as
from ingestion_pipeline.catalogs.extraction.page_result import (
    ExtractionOverBudget,
    PageContent,
    PageReading,
)
from ingestion_pipeline.catalogs.extraction.pipeline import read_page
from ingestion_pipeline.catalogs.extraction.record import ExtractionMethod, Record
from ingestion_pipeline.catalogs.extraction.selectors import BadSelectors, Selectors, selectors_of

__all__ = [
    "BadSelectors",
    "EntityType",
    "ExtractionMethod",
    "ExtractionOverBudget",
    "PageContent",
    "PageReading",
    "Record",
    "Selectors",
    "entity_type",
    "item_key",
    "item_keys",
    "read_as",
    "read_page",
    "selectors_of",
]
