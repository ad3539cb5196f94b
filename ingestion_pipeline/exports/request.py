"""Export requests: what can be exported, by name, and with which options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType, entity_type, entity_types
from ingestion_pipeline.exports.tables import TABLES

ITEMS = "data_items"  # of every entity type; an entity type's own name gives its items alone


class UnknownExport(LookupError):
    """A name that nothing is exported under."""

    def __init__(self, name: str, names: Sequence[str]) -> None:
        super().__init__(f"there is no export {name!r}; there are: {', '.join(names)}")


class BadRequest(ValueError):
    """Options that contradict each other; the message says what to use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """What to export: a table's rows, or the items of datasets.

    Items are those of the newest published dataset of each source, or of one source; `version` or
    `dataset_id` selects another, whatever its state. `entities` is the folder of your own schema
    files. `since` limits to what was written from then on: rows of a table, or whole datasets that
    were published. `newest` limits to so many rows of a table, the last written first.
    """

    name: str
    source_id: str | None = None
    version: int | None = None
    dataset_id: int | None = None
    evidence: bool = False
    with_flagged: bool = False
    entities: Path | None = None
    since: datetime | None = None
    newest: int | None = None

    @property
    def is_items(self) -> bool:
        """Return whether items are requested, and not the rows of a table."""
        return self.name not in TABLES

    def check(self) -> None:
        """Raise one of this module's errors if the options are contradictory."""
        names = known_names(self.entities)
        if self.name not in names:
            raise UnknownExport(self.name, names)
        of_items = (self.version, self.dataset_id, self.evidence or None, self.with_flagged or None)
        if not self.is_items and any(option is not None for option in of_items):
            problem = f"{self.name} has no versions, evidence or flagged rows: only items have"
            raise BadRequest(f"{problem} ({', '.join(item_names(self.entities))})")
        if self.version is not None and self.source_id is None:
            raise BadRequest("a version belongs to a source: name the source too")
        if self.version is not None and self.dataset_id is not None:
            raise BadRequest("either a version of a source or the id of a dataset, not both")

    def kind(self, name: str) -> EntityType:
        """Return the entity type of that name, of the package or your own."""
        return entity_type(name, folder=self.entities)


def known_names(entities: Path | None = None) -> list[str]:
    """Return every name, tables first."""
    return [*TABLES, *item_names(entities)]


def item_names(entities: Path | None = None) -> list[str]:
    """Return the names that give items of datasets."""
    return [ITEMS, *entity_types(entities)]
