"""The dynamic partition sets: one per kind, and one of all sources; they mirror the store."""

from collections.abc import Collection, Iterable

import dagster as dg
from sqlalchemy.exc import IntegrityError

from ingestion_pipeline.registry import kind_specs
from ingestion_pipeline.sources import Kind

SOURCES = dg.DynamicPartitionsDefinition(name="sources")
# The set of each kind, besides `sources`.
SETS: dict[Kind, dg.DynamicPartitionsDefinition] = {
    kind: dg.DynamicPartitionsDefinition(name=spec.partitions) for kind, spec in kind_specs().items()
}


def set_names(kind: Kind) -> list[str]:
    """Return the names of the sets that a source of this kind belongs to."""
    sets = [SOURCES, *([SETS[kind]] if kind in SETS else [])]
    return [definition.name for definition in sets if definition.name]


def register_keys(instance: dg.DagsterInstance, name: str, keys: Iterable[str]) -> None:
    """Add the keys that the instance does not have; a temporary instance starts without any."""
    missing = _unknown(instance, name, keys)
    while missing:
        try:
            instance.add_dynamic_partitions(name, missing)
        except IntegrityError:
            # On SQLite Dagster selects, then inserts: another run registered one in between.
            if (still := _unknown(instance, name, missing)) == missing:
                raise
            missing = still
        else:
            return


def _unknown(instance: dg.DagsterInstance, name: str, keys: Iterable[str]) -> list[str]:
    registered = set(instance.get_dynamic_partitions(name))  # one query, however many keys
    return [key for key in dict.fromkeys(keys) if key not in registered]


def differences(expected: Collection[str], registered: Collection[str]) -> tuple[list[str], list[str]]:
    """Return which keys to add and which to remove."""
    expected, registered = set(expected), set(registered)
    return sorted(expected - registered), sorted(registered - expected)
