"""Entity types as data: a schema file names the fields, what is required, and the rules."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from importlib import resources
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

_FOLDER = resources.files("ingestion_pipeline.catalogs.entities") / "types"


class FieldKind(StrEnum):
    """What a field's value is."""

    TEXT = "text"
    NUMBER = "number"
    FLAG = "flag"
    CHOICE = "choice"
    LANGUAGE = "language"


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EntityField(_Data):
    """A field of a type; a derived one is concluded from words that are not its value."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,60}$")
    kind: FieldKind
    required: bool = False
    derived: bool = False
    choices: tuple[str, ...] = ()
    about: str = ""

    @model_validator(mode="after")
    def _choices_belong_to_a_choice(self) -> EntityField:
        if bool(self.choices) != (self.kind is FieldKind.CHOICE):
            raise ValueError(f"{self.name}: a choice has choices, and nothing else has")
        return self


class SingleGoesToMax(_Data):
    """One value without another is the upper one."""

    rule: Literal["single_goes_to_max"]
    field: str
    to: str


class DefaultsTo(_Data):
    """A field that is absent takes another one's value."""

    rule: Literal["defaults_to"]
    field: str
    to: str


class Excludes(_Data):
    """Where a flag is set, a field has no meaning."""

    rule: Literal["excludes"]
    when: str
    drops: str


Rule = Annotated[SingleGoesToMax | DefaultsTo | Excludes, Field(discriminator="rule")]


class EntityType(_Data):
    """What a catalogue is read for."""

    name: str
    fields: tuple[EntityField, ...]
    key: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    explores: bool = False
    screenshot: bool = True
    presence_check: bool = False

    @model_validator(mode="after")
    def _rules_name_fields(self) -> EntityType:
        names = {field.name for field in self.fields}
        for rule in self.rules:
            unknown = set(rule.model_dump(exclude={"rule"}).values()) - names
            if unknown:
                raise ValueError(f"{self.name}: a rule names {sorted(unknown)}, which is no field")
        return self

    @property
    def key_fields(self) -> tuple[str, ...]:
        """The fields that tell two records apart."""
        return self.key or self.required or tuple(field.name for field in self.fields)

    @property
    def required(self) -> tuple[str, ...]:
        """The fields without which there is no record."""
        return tuple(field.name for field in self.fields if field.required)

    def field(self, name: str) -> EntityField:
        """The field of that name."""
        return next(field for field in self.fields if field.name == name)


class UnknownEntityType(ValueError):
    """No schema file has that name."""


def entity_type(name: str) -> EntityType:
    """The type of that name.

    Raises:
        UnknownEntityType: there is none; the message names those there are.
    """
    types = entity_types()
    if name not in types:
        raise UnknownEntityType(f"no entity is called {name!r}; there are: {', '.join(types)}")
    return types[name]


@lru_cache(maxsize=1)
def entity_types() -> Mapping[str, EntityType]:
    """Every type that a schema file of the package describes."""
    files = sorted(file.name for file in _FOLDER.iterdir() if file.name.endswith(".yaml"))
    found = [
        EntityType.model_validate(yaml.safe_load((_FOLDER / name).read_text())) for name in files
    ]
    return {one.name: one for one in found}
