"""Records as they are kept: each with its natural key, its evidence, and whether it may leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from ingestion_pipeline.catalogs.entities.entity_type import EntityType
from ingestion_pipeline.catalogs.entities.record import Record, Rung
from ingestion_pipeline.catalogs.reader import PageReading

BETWEEN = " | "
LONGEST_KEY = 300  # characters; PostgreSQL's indexes take 2,700 bytes, of up to four a character
_MODELS = frozenset({Rung.CHEAP_MODEL, Rung.STRONG_MODEL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A record of one page, in plain values; `is_flagged` if a required field is not proved."""

    key: str
    position: int
    data: Mapping[str, Any]
    grounding: Mapping[str, Any]
    rung: str
    model: str | None
    confidence: float
    is_flagged: bool


def items_of(kind: EntityType, reading: PageReading) -> list[Item]:
    """The page's records that have all they must have, in page order, each under its own key."""
    whole = [record for record in reading.records if not record.lacks]
    keys = numbered([natural_key(kind, record) for record in whole])
    return [
        _item(kind, record, key=key, position=position, model=reading.model)
        for position, (key, record) in enumerate(zip(keys, whole, strict=True), start=1)
    ]


def _item(kind: EntityType, record: Record, *, key: str, position: int, model: str | None) -> Item:
    data = record.as_dict()
    grounding = data.pop("evidence")
    for name in ("rung", "confidence"):
        del data[name]
    proofs = [record.evidence.get(name) for name in kind.required]
    return Item(
        key=key,
        position=position,
        data=data,
        grounding=grounding,
        rung=record.rung.value,
        model=model if record.rung in _MODELS else None,
        confidence=record.confidence,
        is_flagged=not all(proof is not None and proof.is_proof for proof in proofs),
    )


def natural_key(kind: EntityType, record: Record) -> str:
    """What tells the record apart, for people to read: the same on every page and in every run."""
    values = [record.fields.get(name) for name in kind.key_fields]
    parts = [" ".join(str(value).casefold().split()) for value in values if value is not None]
    key = BETWEEN.join(parts)
    if len(key) <= LONGEST_KEY:
        return key
    return f"{key[:LONGEST_KEY]}… {sha256(key.encode()).hexdigest()[:16]}"


def numbered(keys: Sequence[str]) -> list[str]:
    """The keys, the second of two equal ones with "#2" and so on."""
    seen: Counter[str] = Counter()
    found: list[str] = []
    for key in keys:
        seen[key] += 1
        found.append(key if seen[key] == 1 else f"{key} #{seen[key]}")
    return found
