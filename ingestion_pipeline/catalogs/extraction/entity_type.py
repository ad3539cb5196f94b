"""Entity types as data: a schema file names the fields, what is required, and the rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

# What a source's `selectors` and an exported row call something else.
RESERVED = frozenset({"record", "evidence", "rung", "confidence"})
EVIDENCE = "_evidence"  # ends what a model is asked for beside a derived field
_FOLDER = resources.files("ingestion_pipeline.catalogs.extraction") / "types"


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


class Embedded(_Data):
    """How data for machines states it: schema.org's types, and for each field its properties."""

    types: tuple[str, ...]
    fields: Mapping[str, tuple[str, ...]]


class Titled(_Data):
    """A page of its own: the title names it, the first paragraphs describe it.

    Without one of the phrases in the title (or a part of the path in its URL) it is not evident;
    those of `choices` also say which choice is meant, the first that is found.
    """

    name: str
    text: str
    phrases: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    choice: str | None = None
    choices: Mapping[str, tuple[str, ...]] = {}


class ListedRule(_Data):
    """Items of the lists under headings that say one of the phrases, by what they say."""

    field: str
    choice: str
    under: Mapping[str, tuple[str, ...]]


class EntityType(_Data):
    """What a catalogue is read for.

    `key` names the fields that tell two records apart (default: those required), `announced_as` the
    words with which a page counts its records, `link_phrases` those of links worth exploring.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,59}$")
    about: str = ""
    fields: tuple[EntityField, ...]
    key: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    announced_as: tuple[str, ...] = ()
    link_phrases: tuple[str, ...] = ()
    embedded: Embedded | None = None
    titled: Titled | None = None
    listed: ListedRule | None = None
    explores: bool = False
    screenshot: bool = True
    presence_check: bool = False

    @model_validator(mode="after")
    def _only_fields_are_named(self) -> EntityType:
        names = {field.name for field in self.fields}
        if taken := {name for name in names if name in RESERVED or name.endswith(EVIDENCE)}:
            raise ValueError(f"{self.name}: no field may be called {', '.join(sorted(taken))}")
        for what, named in self._named():
            if unknown := named - names:
                raise ValueError(f"{self.name}: {what} names {sorted(unknown)}, which is no field")
        return self

    def __hash__(self) -> int:
        """By what is hashable; two types of equal hash may still differ."""
        return hash((self.name, self.fields, self.rules))

    def _named(self) -> Iterator[tuple[str, set[str]]]:
        """What names fields, and which."""
        yield "key", set(self.key)
        for rule in self.rules:
            yield "a rule", set(rule.model_dump(exclude={"rule"}).values())
        if self.embedded is not None:
            yield "embedded", set(self.embedded.fields)
        if self.titled is not None:
            chosen = {self.titled.choice} if self.titled.choice else set[str]()
            yield "titled", {self.titled.name, self.titled.text} | chosen
        if self.listed is not None:
            yield "listed", {self.listed.field, self.listed.choice}

    @property
    def key_fields(self) -> tuple[str, ...]:
        """The fields that tell two records apart."""
        return self.key or self.required or tuple(field.name for field in self.fields)

    @property
    def required(self) -> tuple[str, ...]:
        """The fields without which there is no record."""
        return tuple(field.name for field in self.fields if field.required)

    @property
    def name_field(self) -> str:
        """The field that people know a record by."""
        return self.titled.name if self.titled is not None else self.key_fields[-1]

    @property
    def has_rules(self) -> bool:
        """Whether its schema says how to read it without a model."""
        return not (self.embedded is None and self.titled is None and self.listed is None)

    def field(self, name: str) -> EntityField:
        """The field of that name."""
        return next(field for field in self.fields if field.name == name)


class UnknownEntityType(ValueError):
    """No schema file has that name."""


class BadEntityType(ValueError):
    """A schema file that describes no type; the message names the file and what is wrong."""


def entity_type(name: str, *, folder: Path | None = None) -> EntityType:
    """The type of that name, from the package or from the files of a folder of one's own.

    Raises:
        UnknownEntityType: there is none; the message names those there are.
        BadEntityType: a file of the folder describes none.
    """
    types = entity_types(folder)
    if name not in types:
        raise UnknownEntityType(f"no entity is called {name!r}; there are: {', '.join(types)}")
    return types[name]


def entity_types(folder: Path | None = None) -> Mapping[str, EntityType]:
    """Every type that a schema file of the package or of the folder describes.

    Raises:
        BadEntityType: a file of the folder describes none, or one that the package has.
    """
    if folder is None or not folder.is_dir():
        return _packaged()
    own = {one.name: one for one in map(_read, sorted(folder.glob("*.yaml")))}
    if taken := sorted(own.keys() & _packaged().keys()):
        raise BadEntityType(f"{folder}: {', '.join(taken)} is the package's own; choose a new name")
    return dict(sorted({**_packaged(), **own}.items()))


@lru_cache(maxsize=1)
def _packaged() -> Mapping[str, EntityType]:
    files = sorted(
        (file for file in _FOLDER.iterdir() if file.name.endswith(".yaml")),
        key=lambda file: file.name,
    )
    return {one.name: one for one in map(_read, files)}


def _read(file: Traversable) -> EntityType:
    try:
        return EntityType.model_validate(yaml.safe_load(file.read_text("utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValidationError) as error:
        raise BadEntityType(f"{file}: {error}") from None
