"""The rules of an export of items: ids once each, real ranges, whole addresses, proved values."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from typing import Any
from urllib.parse import urljoin

from ingestion_pipeline.catalogs.entities.entity_type import (
    EntityField,
    EntityType,
    FieldKind,
    SingleGoesToMax,
)
from ingestion_pipeline.exports.columns import exact
from ingestion_pipeline.reading.grounding import PROVED

Value = str | bool | Decimal | None
Evidence = Mapping[str, Any]  # status, start, end

PROVED_NAMES = frozenset(str(status) for status in PROVED)
_SUFFIXED = re.compile(r"(.+)-[0-9]+", re.DOTALL)


class Ids:
    """Gives each row of a dataset an id of its own: the first keeps it, others get -2, -3, ...

    `repeated` are the ids that occur more than once, `taken` those that a suffix might run into:
    an id that a page states is never given to another row.
    """

    def __init__(self, repeated: Collection[str], taken: Collection[str]) -> None:
        self._repeated = frozenset(repeated)
        self._given = set(taken)
        self._last: dict[str, int] = {}

    def unique(self, given: str) -> str:
        """The id as it is exported; asked in the order of the rows."""
        if given not in self._repeated:
            return given
        if given not in self._last:
            self._last[given] = 1
            return given
        for number in count(self._last[given] + 1):
            suffixed = f"{given}-{number}"
            if suffixed not in self._given:
                self._last[given] = number
                self._given.add(suffixed)
                return suffixed
        raise AssertionError("numbers do not end")


def could_be_taken(given: str, repeated: Collection[str]) -> bool:
    """Whether the id looks like one that a suffix could make of a repeated id."""
    found = _SUFFIXED.fullmatch(given)
    return found is not None and found[1] in repeated


def id_field(kind: EntityType) -> str | None:
    """The field that is the type's own id; None for a type without one."""
    name = f"{kind.name}_id"
    return name if any(one.name == name for one in kind.fields) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportValues:
    """What leaves of an item: its values, and which of those it states are proved."""

    values: dict[str, Value]
    proved: list[str]
    unproved: list[str]


def shown(
    fields: Iterable[EntityField],
    data: Mapping[str, Any],
    grounding: Mapping[str, Evidence],
    *,
    review: bool,
) -> ExportValues:
    """The values that may leave the house: those that a text or the source itself proves.

    Under `review` the required ones do in any case: it is they that are looked at.
    """
    values: dict[str, Value] = {}
    proved: list[str] = []
    unproved: list[str] = []
    for field in fields:
        name = field.name
        value = data.get(name)
        if value is None:
            values[name] = None
            continue
        evidence = grounding.get(name)
        is_proved = evidence is not None and evidence.get("status") in PROVED_NAMES
        (proved if is_proved else unproved).append(name)
        may_leave = is_proved or (review and field.required)
        values[name] = _AS_VALUE[field.kind](value) if may_leave else None
    return ExportValues(values=values, proved=proved, unproved=unproved)


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: object) -> str | None:
    """The text; half a character, which no format can hold, is a question mark."""
    text = str(value)
    return (text if text.isascii() else text.encode("utf-8", "replace").decode()) or None


_AS_VALUE: Mapping[FieldKind, Callable[[object], Value]] = {
    FieldKind.TEXT: _text,
    FieldKind.CHOICE: _text,
    FieldKind.LANGUAGE: _text,
    FieldKind.NUMBER: exact,
    FieldKind.FLAG: _flag,
}


def write_ranges(kind: EntityType, values: dict[str, Value], evidence: dict[str, Evidence]) -> None:
    """A maximum stays only beside a minimum that differs; a single value becomes the minimum."""
    for rule in kind.rules:
        if not isinstance(rule, SingleGoesToMax):
            continue
        low, high = rule.field, rule.to
        if values[high] is None or (values[low] is not None and values[low] != values[high]):
            continue
        if values[low] is None:
            values[low] = values[high]
            evidence[low] = evidence.get(high, {})
        values[high] = None
        evidence.pop(high, None)


def is_address(field: str) -> bool:
    """Whether a field of that name holds a URL."""
    return field == "url" or field.endswith("_url")


def absolute(address: str | None, source_url: str) -> str | None:
    """The address, a relative one against the source's; one that is none is left as it is."""
    if address is None or address.startswith(("https://", "http://")):
        return address
    try:
        return urljoin(source_url, address)
    except ValueError:
        return address


def percent(shown: ExportValues) -> float | None:
    """How many of a hundred values that the item states are proved, to a tenth."""
    stated = len(shown.proved) + len(shown.unproved)
    return round(100 * len(shown.proved) / stated, 1) if stated else None
