"""What a catalogue is read for: entity types as data, the rules that find them, and records.

Without a model: data that a page has for machines, then the layouts of known vendors, then layout
alone. Which pages are read, and where records are kept, is not decided here.
"""

from ingestion_pipeline.catalogs.entities.entity_type import EntityType, entity_type
from ingestion_pipeline.catalogs.entities.record import Record, Rung

__all__ = ["EntityType", "Record", "Rung", "entity_type"]
