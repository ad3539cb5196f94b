"""Define entity types by schema files that name the fields, the required ones and the rules."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import yaml
from pydantic import Field

from ingestion_pipeline.sources.declarations import BadField, FileModel, as_mapping, quoted, validated
from ingestion_pipeline.sources.files import compose, construct, located

# Names with another meaning in a source's `selectors` and in exported rows.
RESERVED = frozenset({"record", "evidence", "extraction_method", "confidence"})
COURSE = "course"  # the one type with rules of its own in `rules`
EVIDENCE = "_evidence"  # suffix of the quote that a model gives beside a derived field
_FOLDER = resources.files("ingestion_pipeline.catalogs.extraction") / "types"


class FieldKind(StrEnum):
    """The type of a field's value."""

    TEXT = "text"
    NUMBER = "number"
    FLAG = "flag"
    CHOICE = "choice"
    LANGUAGE = "language"


class EntityField(FileModel):
    """A field of an entity type; a derived one is inferred from words that are not its value."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,60}$")
    kind: FieldKind
    required: bool = False
    derived: bool = False
    choices: tuple[str, ...] = ()
    about: str = ""

    @classmethod
    def mistakes(cls, values: Mapping[str, Any]) -> Iterator[BadField]:
        """Yield the problem of choices that are missing or have no use."""
        if bool(values.get("choices")) != (values.get("kind") == FieldKind.CHOICE):
            yield BadField("choices", "are required for kind choice, and for no other kind")


class SingleGoesToMax(FileModel):
    """Rule: a single value is the upper bound of a range."""

    rule: Literal["single_goes_to_max"]
    field: str
    to: str


class DefaultsTo(FileModel):
    """Rule: an absent field takes the value of another."""

    rule: Literal["defaults_to"]
    field: str
    to: str


class Excludes(FileModel):
    """Rule: a field has no meaning where a flag is set."""

    rule: Literal["excludes"]
    when: str
    drops: str


Rule = Annotated[SingleGoesToMax | DefaultsTo | Excludes, Field(discriminator="rule")]


class Embedded(FileModel):
    """Mapping of embedded data: schema.org types, and the properties of each field."""

    types: tuple[str, ...]
    fields: Mapping[str, tuple[str, ...]]


class Titled(FileModel):
    """Rule for a page about one entity: the title names it, the first paragraphs describe it.

    It applies only if the title has one of the phrases, or the URL has one of the path segments.
    The phrases of `choices` also select the choice: the first that matches.
    """

    name: str
    text: str
    phrases: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    choice: str | None = None
    choices: Mapping[str, tuple[str, ...]] = {}


class ListedRule(FileModel):
    """Rule for lists: items below a heading that has a phrase, each phrase with its choice."""

    field: str
    choice: str
    under: Mapping[str, tuple[str, ...]]


class Repeated(FileModel):
    """Rule for a list of records in any layout: which fields are a record's title, its date and its address.

    `examples` are values of fields on some such list, best three: they tell titles from other texts, and other fields
    are found by the form of theirs.
    """

    title: str
    date: str | None = None
    url: str | None = None
    examples: Mapping[str, tuple[str, ...]] = {}


class EntityType(FileModel):
    """An entity that catalogues are read for.

    `key` names the fields that identify a record (default: the required ones), `announced_as` the
    words with which a page counts its records, `link_phrases` the words of links to explore.
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
    repeated: Repeated | None = None
    explores: bool = False
    screenshot: bool = True
    presence_check: bool = False

    @classmethod
    def mistakes(cls, values: Mapping[str, Any]) -> Iterator[BadField]:
        """Yield the reserved names of fields, and the names that no field has."""
        names = [as_mapping(field).get("name") for field in _list(values.get("fields"))]
        for number, name in enumerate(names):
            if name in RESERVED or str(name).endswith(EVIDENCE):
                yield BadField(f"fields[{number}].name", f"{name} is reserved; choose another name")
        for place, name in _field_references(values):
            if name is not None and name not in names:
                yield BadField(place, f"no field is called {quoted(name)}")

    def __hash__(self) -> int:
        """Hash the hashable fields; two types of equal hash may still differ."""
        return hash((self.name, self.fields, self.rules))

    @property
    def key_fields(self) -> tuple[str, ...]:
        """The fields that identify a record."""
        return self.key or self.required or tuple(field.name for field in self.fields)

    @property
    def required(self) -> tuple[str, ...]:
        """The fields that every record must have."""
        return tuple(field.name for field in self.fields if field.required)

    @property
    def name_field(self) -> str:
        """The field that holds a record's display name."""
        return self.titled.name if self.titled is not None else self.key_fields[-1]

    @property
    def has_rules(self) -> bool:
        """Whether the schema describes how to extract the entity without a model."""
        return any(rule is not None for rule in (self.embedded, self.titled, self.listed, self.repeated))

    def field(self, name: str) -> EntityField:
        """Return the field of that name."""
        return next(field for field in self.fields if field.name == name)


_OF_REPEATED = ("title", "date", "url")


def _field_references(values: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield each place of an unchecked type that names a field, with the name."""
    for number, name in enumerate(_list(values.get("key"))):
        yield f"key[{number}]", name
    for number, rule in enumerate(_list(values.get("rules"))):
        yield from ((f"rules[{number}].{key}", name) for key, name in as_mapping(rule).items() if key != "rule")
    yield from (("embedded.fields", name) for name in as_mapping(as_mapping(values.get("embedded")).get("fields")))
    repeated = as_mapping(values.get("repeated"))
    yield from (("repeated.examples", name) for name in as_mapping(repeated.get("examples")))
    parts = (("titled", ("name", "text", "choice")), ("listed", ("field", "choice")), ("repeated", _OF_REPEATED))
    for part, keys in parts:
        yield from ((f"{part}.{key}", as_mapping(values.get(part)).get(key)) for key in keys)


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


class UnknownEntityType(ValueError):
    """Error: no schema file has that name."""


class BadEntityType(ValueError):
    """Error: a schema file describes no valid type; the message names the file and the problem."""


def entity_type(name: str, *, folder: Path | None = None) -> EntityType:
    """Return the type of that name, from the package or from the files of the folder.

    Raises:
        UnknownEntityType: no type has that name; the message lists the known ones.
        BadEntityType: a file of the folder describes no valid type.
    """
    types = entity_types(folder)
    if name not in types:
        raise UnknownEntityType(f"no entity is called {name!r}; there are: {', '.join(types)}")
    return types[name]


def entity_types(folder: Path | None = None) -> Mapping[str, EntityType]:
    """Return every type that a schema file of the package or of the folder describes, by name.

    Raises:
        BadEntityType: a file of the folder describes no valid type, or one that the package has.
    """
    if folder is None or not folder.is_dir():
        return _packaged()
    own = {type_.name: type_ for type_ in map(_read, sorted(folder.glob("*.yaml")))}
    if taken := sorted(own.keys() & _packaged().keys()):
        raise BadEntityType(f"{folder}: {', '.join(taken)} is built in; choose another name")
    return dict(sorted({**_packaged(), **own}.items()))


@lru_cache(maxsize=1)
def _packaged() -> Mapping[str, EntityType]:
    files = sorted((file for file in _FOLDER.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    return {type_.name: type_ for type_ in map(_read, files)}


def _read(file: Traversable) -> EntityType:
    try:
        body = file.read_bytes()
        root = compose(body) or yaml.MappingNode("", [])
        raw: object = construct(root)
    except (OSError, yaml.YAMLError, ValueError, TypeError) as error:
        raise BadEntityType(f"{file}: {error}") from None
    kind, bad = validated(EntityType, raw)
    if kind is None:
        raise BadEntityType("; ".join(map(str, located(str(file), root, bad))))
    return kind
