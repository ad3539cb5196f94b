"""What a source's configuration says about its records: `entity` and `selectors`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingestion_pipeline.catalogs.extraction.entity_type import (
    BadEntityType,
    EntityType,
    UnknownEntityType,
    entity_type,
    entity_types,
)
from ingestion_pipeline.catalogs.extraction.item_keys import read_as
from ingestion_pipeline.catalogs.extraction.rule_pipeline import COURSE
from ingestion_pipeline.catalogs.extraction.selectors import BadSelectors, Selectors, selectors_of
from ingestion_pipeline.settings import Settings

ENTITIES = "entities"  # the folder of schema files beside the sources


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityConfig:
    """What a source's pages are read for, and where on them its parts are, as given or learned."""

    kind: EntityType
    selectors: Selectors | None
    learned: Selectors | None = None

    def read_as(self, settings: Settings) -> str:
        """By what a reading for this is known: an unchanged page read as that is not read again.

        What was learned is no reason to read it again.
        """
        return read_as(self.kind, settings, selectors=self.selectors)


def declared(
    config: Mapping[str, Any], settings: Settings, *, entity: str | None = None
) -> EntityConfig:
    """What the configuration asks for; `entity` is what was asked for when an extraction began.

    Raises:
        UnknownEntityType: no schema file of the package or of `entities/` has that name.
        BadEntityType: a schema file describes no type.
        BadSelectors: the selectors cannot be used.
    """
    kind = entity_type(entity or entity_name(config), folder=entity_folder(settings))
    return EntityConfig(kind=kind, selectors=selectors_of(config, kind))


def entity_name(config: Mapping[str, Any]) -> str:
    """The name that the configuration gives; courses if none."""
    return str(config.get("entity") or COURSE)


def entity_folder(settings: Settings) -> Path:
    """Where schema files of one's own are: the folder `entities` beside the source files."""
    return settings.sources / ENTITIES


def bad_reading(config: Mapping[str, Any], folder: Path | None = None) -> Iterator[str]:
    """Every problem of `entity` and `selectors`; types of one's own are in the folder."""
    name = config.get("entity")
    if name is not None and not isinstance(name, str):
        there_are = ", ".join(entity_types(folder))
        yield f"entity: must be the name of an entity, not {name!r}; there are: {there_are}"
        return
    try:
        kind = entity_type(entity_name(config), folder=folder)
        selectors_of(config, kind)
    except (UnknownEntityType, BadEntityType) as error:
        yield f"entity: {error}"
    except BadSelectors as error:
        yield from error.problems
