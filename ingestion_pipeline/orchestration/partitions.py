"""The dynamic partition sets: one per kind, and one of all sources. The store is the truth."""

from collections.abc import Collection, Iterable

import dagster as dg
from sqlalchemy.exc import IntegrityError

from ingestion_pipeline.sources import Kind

SOURCES = dg.DynamicPartitionsDefinition(name="sources")
SERIES_SOURCES = dg.DynamicPartitionsDefinition(name="series_sources")
CATALOGS = dg.DynamicPartitionsDefinition(name="catalogs")
WEBSITES = dg.DynamicPartitionsDefinition(name="websites")
COMPANIES = dg.DynamicPartitionsDefinition(name="companies")
JOB_BOARDS = dg.DynamicPartitionsDefinition(name="job_boards")

# The set beside `sources` that a kind's partitions are in.
SETS: dict[Kind, dg.DynamicPartitionsDefinition] = {
    Kind.SERIES: SERIES_SOURCES,
    Kind.CATALOG: CATALOGS,
    Kind.WEBSITE: WEBSITES,
    Kind.COMPANY: COMPANIES,
    Kind.JOB_BOARD: JOB_BOARDS,
}


def set_names(kind: Kind) -> list[str]:
    """The names of the sets that a source of this kind belongs to."""
    sets = [SOURCES, *([SETS[kind]] if kind in SETS else [])]
    return [one.name for one in sets if one.name]


def register_keys(instance: dg.DagsterInstance, name: str, keys: Iterable[str]) -> None:
    """The instance knows these keys; a temporary one knows none until it is told."""
    missing = _unknown(instance, name, keys)
    while missing:
        try:
            instance.add_dynamic_partitions(name, missing)
        except IntegrityError:
            # On SQLite Dagster looks, then inserts: another run registered one of them in between.
            if (still := _unknown(instance, name, missing)) == missing:
                raise
            missing = still
        else:
            return


def _unknown(instance: dg.DagsterInstance, name: str, keys: Iterable[str]) -> list[str]:
    known = set(instance.get_dynamic_partitions(name))  # one question, however many keys
    return [key for key in dict.fromkeys(keys) if key not in known]


def differences(wanted: Collection[str], known: Collection[str]) -> tuple[list[str], list[str]]:
    """Which keys are to be added, and which removed."""
    wanted, known = set(wanted), set(known)
    return sorted(wanted - known), sorted(known - wanted)
