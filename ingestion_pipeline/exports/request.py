"""What can be exported, by name, and what is wanted of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType, entity_type, entity_types
from ingestion_pipeline.exports.tables import TABLES

ITEMS = "data_items"  # of every entity type; an entity type's own name gives its items alone


class UnknownExport(LookupError):
    """Nothing is exported under that name."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"there is no export {name!r}; there are: {', '.join(known)}")


class BadRequest(ValueError):
    """What is wanted does not fit together; the message says what would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """What is exported: a table's rows, or the items of datasets.

    Items are those of the newest published dataset of each source, or of one source; `version` or
    `dataset_id` names another, whatever its state. `entities` is the folder of schema files of
    one's own: items of those types are exported as all others. With `since` only what was written
    from then on: rows of a table, or whole datasets that were published; with `newest` only so many
    rows of a table, those that were written last.
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
        """Whether items are wanted, and not the rows of a table."""
        return self.name not in TABLES

    def check(self) -> None:
        """Nothing is contradictory, or one of this module's errors says what is."""
        known = known_names(self.entities)
        if self.name not in known:
            raise UnknownExport(self.name, known)
        of_items = (self.version, self.dataset_id, self.evidence or None, self.with_flagged or None)
        if not self.is_items and any(one is not None for one in of_items):
            said = f"{self.name} has no versions, evidence or flagged rows: only items have"
            raise BadRequest(f"{said} ({', '.join(item_names(self.entities))})")
        if self.version is not None and self.source_id is None:
            raise BadRequest("a version is one of a source's: name the source, too")
        if self.version is not None and self.dataset_id is not None:
            raise BadRequest("either a version of a source or the id of a dataset, not both")

    def kind(self, name: str) -> EntityType:
        """The entity type of that name, of the package or of one's own."""
        return entity_type(name, folder=self.entities)


def known_names(entities: Path | None = None) -> list[str]:
    """Every name, tables first."""
    return [*TABLES, *item_names(entities)]


def item_names(entities: Path | None = None) -> list[str]:
    """The names that give items of datasets."""
    return [ITEMS, *entity_types(entities)]
