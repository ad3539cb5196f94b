"""Read the keys `entity` and `selectors` of a source's configuration, and hash what reads its pages."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingestion_pipeline.catalogs.extraction.entity_type import (
    COURSE,
    BadEntityType,
    EntityType,
    UnknownEntityType,
    entity_type,
    entity_types,
)
from ingestion_pipeline.catalogs.extraction.prompts import prompt_labels
from ingestion_pipeline.catalogs.extraction.record import READER_VERSION
from ingestion_pipeline.catalogs.extraction.selectors import BadSelectors, Selectors, selectors_of
from ingestion_pipeline.settings import Settings

ENTITIES = "entities"  # folder of schema files beside the source files


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityConfig:
    """The entity type that a source's pages are read for, with configured or learned selectors."""

    kind: EntityType
    selectors: Selectors | None = None
    learned: Selectors | None = None

    def reader_hash(self, settings: Settings) -> str:
        """Return the hash of all that determines a page's records: an equal hash needs no new reading.

        Model names count only where a model is configured: without a key they change nothing. Learned
        selectors are no reason to read a page again.
        """
        parts = [self.kind.model_dump_json(), f"reader {READER_VERSION}", repr(self.selectors)]
        if settings.has_model:
            parts += [settings.model_cheap, settings.model_strong, *prompt_labels(self.kind)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @property
    def can_finish_by_rules(self) -> bool:
        """Whether rules alone may decide without a model; else the pages wait for one."""
        return self.kind.name == COURSE or self.selectors is not None


def load_entity_config(config: Mapping[str, Any], settings: Settings, *, entity: str | None = None) -> EntityConfig:
    """Return the configured entity; `entity` is the name from the start of an extraction.

    Raises:
        UnknownEntityType: no schema file of the package or of `entities/` has that name.
        BadEntityType: a schema file describes no valid type.
        BadSelectors: the selectors cannot be used.
    """
    kind = entity_type(entity or entity_name(config), folder=entity_folder(settings))
    return EntityConfig(kind=kind, selectors=selectors_of(config, kind))


def entity_name(config: Mapping[str, Any]) -> str:
    """Return the configured entity name; courses if there is none."""
    return str(config.get("entity") or COURSE)


def entity_folder(settings: Settings) -> Path:
    """Return the folder of the user's schema files: `entities` beside the source files."""
    return settings.sources / ENTITIES


def entity_config_problems(config: Mapping[str, Any], folder: Path | None = None) -> Iterator[str]:
    """Yield every problem of `entity` and `selectors`; the folder has the user's own types."""
    name = config.get("entity")
    if name is not None and not isinstance(name, str):
        known_types = ", ".join(entity_types(folder))
        yield f"entity: must be the name of an entity, not {name!r}; there are: {known_types}"
        return
    try:
        kind = entity_type(entity_name(config), folder=folder)
        selectors_of(config, kind)
    except (UnknownEntityType, BadEntityType) as error:
        yield f"entity: {error}"
    except BadSelectors as error:
        yield from error.problems
