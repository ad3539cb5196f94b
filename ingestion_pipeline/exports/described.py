"""The columns of an export with what each holds and means: for people, before they have rows."""

from __future__ import annotations

from dataclasses import dataclass

from ingestion_pipeline.catalogs.entities.entity_type import EntityField, entity_types
from ingestion_pipeline.exports.datasets import Dataset
from ingestion_pipeline.exports.items import item_columns
from ingestion_pipeline.exports.meanings import meaning
from ingestion_pipeline.exports.names import ITEMS, ExportRequest
from ingestion_pipeline.exports.tables import table_columns

_UNSTATED = "null: the page does not state it, or nothing proves it"
_OF_FIELD = {
    "__evidence": "how {} is proved: exact, fuzzy, value or source; null: it is not stated",
    "__start": "where the proof of {} begins, in characters of the page's text; null: no span",
    "__end": "where the proof of {} ends, in characters of the page's text; null: no span",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A column, what its values are, and what they mean."""

    name: str
    holds: str
    meaning: str


def described(wanted: ExportRequest) -> list[Described]:
    """Every column of the file that would be written, in its order; no database is asked."""
    if not wanted.is_items:
        columns = table_columns(wanted.name)
        means = {one.name: meaning(wanted.name, one.name) for one in columns}
    else:
        kinds = entity_types(wanted.entities)
        names = list(kinds) if wanted.name == ITEMS else [wanted.name]
        columns = item_columns(wanted, [_any_of(name) for name in names])
        fields = {one.name: one for name in names for one in kinds[name].fields}
        means = {one.name: _of_item(one.name, fields) for one in columns}
    return [
        Described(name=one.name, holds=one.holds.value, meaning=means[one.name]) for one in columns
    ]


def _any_of(kind: str) -> Dataset:
    return Dataset(id=0, source_id="", source_url="", version=0, status="", entity_type=kind)


def _of_item(name: str, fields: dict[str, EntityField]) -> str:
    if name in fields:
        about = fields[name].about or "as its type's schema file has it"
        return f"{about}; {_UNSTATED}"
    for suffix, said in _OF_FIELD.items():
        if name.endswith(suffix):
            return said.format(name.removesuffix(suffix))
    return meaning(ITEMS, name)
