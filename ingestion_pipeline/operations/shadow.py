"""A shadow: another installation's declarations and snapshots, processed by this program, and what would differ.

It has a store of its own. Sources, recipes, settings and model answers are copied into it once; source files may change
the sources. Compared are published rows without what each store numbers and dates for itself.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from sqlalchemy import ColumnElement, Connection, Integer, Select, Table, exists, func, insert, inspect, select

from ingestion_pipeline.exports.export_request import ITEMS, NO_NEWS, TABLES, published_items
from ingestion_pipeline.operations.freshness import MONTH
from ingestion_pipeline.registry import declared, definition_check, systems
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.settings.loading import BadSetting
from ingestion_pipeline.sources.declarations import declaration, definition_of
from ingestion_pipeline.sources.lookup import list_sources
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.sources.source import SourceStatus
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.database import open_read_only
from ingestion_pipeline.store.statements import audit
from ingestion_pipeline.store.tables import audit_log, model_answers, model_calls, sources
from ingestion_pipeline.store.tables import settings as stored_settings
from ingestion_pipeline.store.types import UtcDateTime

UNSENT = "unsent"  # reading/llm/ledger.py
COPIED = "shadow.copied"  # in the audit log
ROWS_AT_ONCE = 1_000
SOURCES_AT_ONCE = 200
EXAMPLES = 10  # of each table
# Times that a site states; all others say when an installation did something.
_STATED_TIMES = frozenset({"posted_at", "published_at", "valid_until"})
_OURS = NO_NEWS | {"source_id", "unannounced", "origin_key", "discovered_by"}
# What a row keeps when other values of it change; the first that a table has.
_IDENTITIES = ("item_key", "source_chapter_id", "url", "job_listings.url", "name")


def shadowing(settings: Settings) -> Settings:
    """Return the settings of a shadow: no services to notify, no waits between requests; refuse one of itself."""
    if not settings.shadow_home:
        raise BadSetting("a shadow reads another installation: set INGESTION_SHADOW_HOME to its INGESTION_HOME")
    if settings.shadowed_url == settings.store_url or Path(settings.shadow_home).absolute() == settings.home.absolute():
        raise BadSetting(
            "a shadow needs a home and a database of its own: set INGESTION_HOME or INGESTION_DATABASE_URL"
        )
    no_waits = {"delay_seconds": 0.0}
    changes = {
        "hosts": settings.hosts.model_copy(update=no_waits),
        "crawl": settings.crawl.model_copy(update=no_waits),
        "notify_urls": type(settings.notify_urls)(""),
    }
    return settings.model_copy(update=changes)


def copy_declarations(store: Store, settings: Settings) -> None:
    """Copy what decides how sources are read from the shadowed installation, once."""
    was_copied = exists().where(audit_log.c.action == COPIED, audit_log.c.subject == settings.shadow_home)
    with store.read() as connection:
        if connection.execute(select(was_copied)).scalar():
            return
    production = open_read_only(settings.shadowed_url)
    try:
        with production.read() as origin, store.begin() as target:
            _copy(origin, target, stored_settings, model_answers)
            ids = _copy_sources(origin, target, settings, store)
            _copy(origin, target, *(table for system in systems() for table in system.learned), only=ids)
            now = store.clock.now(target)
            declared(target, ids, now=now)
            detail = {"sources": len(ids)}
            audit(target, actor="system", action=COPIED, subject=settings.shadow_home, now=now, detail=detail)
    finally:
        production.close()


def _copy_sources(origin: Connection, target: Connection, settings: Settings, store: Store) -> list[str]:
    """Register the sources that are polled and not declared here, due now; return their ids."""
    check = definition_check(settings.sources)
    polled = list_sources(origin, sources.c.status.in_([SourceStatus.ACTIVE.value, SourceStatus.OPEN.value]))
    definitions = [definition_of(declaration(source), check=check)[0] for source in polled]
    own = set(target.execute(select(sources.c.id)).scalars())
    good = [definition for definition in definitions if definition is not None and definition.id not in own]
    register(target, good, now=store.clock.now(target))
    return [definition.id for definition in good]


def _copy(origin: Connection, target: Connection, *tables: Table, only: Sequence[str] | None = None) -> None:
    for table in tables:
        query = select(*_present(origin, table.name, table.columns))
        if only is not None:
            query = query.where(table.c.source_id.in_(only))
        for rows in origin.execute(query).mappings().partitions(ROWS_AT_ONCE):
            target.execute(insert(table), [dict(row) for row in rows])


def _present(connection: Connection, table: str, columns: Any) -> list[ColumnElement[Any]]:  # noqa: ANN401
    """Return the columns that the table has there, which may be of another version."""
    present = {column["name"] for column in inspect(connection).get_columns(table)}
    return [column for column in columns if column.key in present]


@dataclass(slots=True)
class TableDifference:
    """How many rows of a table are alike, and what else there is."""

    same: int = 0
    added: int = 0
    changed: int = 0
    removed: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowReport:
    """What this program would publish in place of what is published, and what it would pay."""

    sources: int
    unread: Mapping[str, str]  # sources without a successful poll, with the outcome of the last
    tables: Mapping[str, TableDifference]
    model_calls: int
    model_cost_usd: Decimal
    production_cost_30d_usd: Decimal

    @property
    def is_equal(self) -> bool:
        """Return whether everything read is as it is published."""
        return not any(table.added or table.changed or table.removed for table in self.tables.values())


def difference(store: Store, settings: Settings) -> ShadowReport:
    """Compare the sources that the shadow has read with what the other installation publishes of them."""
    production = open_read_only(settings.shadowed_url)
    try:
        with store.read() as ours, production.read() as theirs:
            states = {row.id: row for row in ours.execute(select(sources.c.id, sources.c.last_success_at, _OUTCOME))}
            read = sorted(id_ for id_, row in states.items() if row.last_success_at is not None)
            tables = {name: _compared(ours, theirs, name, read) for name in (*_COMPARED, ITEMS)}
            calls, cost = ours.execute(_UNSENT_CALLS).one()
            now = store.clock.now(ours)
            spent = select(func.sum(model_calls.c.cost_usd)).where(model_calls.c.created_at > now - MONTH)
            return ShadowReport(
                sources=len(states),
                unread={id_: row.outcome or "not polled yet" for id_, row in states.items() if id_ not in set(read)},
                tables={name: table for name, table in tables.items() if table != TableDifference()},
                model_calls=calls,
                model_cost_usd=Decimal(str(cost or 0)),
                production_cost_30d_usd=Decimal(str(theirs.execute(spent).scalar() or 0)),
            )
    finally:
        production.close()


_OUTCOME = sources.c.last_outcome.label("outcome")
_COMPARED = [name for name, table in TABLES.items() if table.is_compared]
_ONCE = (
    select(model_calls.c.cache_key, func.max(model_calls.c.reserved_usd).label("usd"))
    .where(model_calls.c.status == UNSENT)
    .group_by(model_calls.c.cache_key)
    .subquery()
)
_UNSENT_CALLS = select(func.count(), func.sum(_ONCE.c.usd)).select_from(_ONCE)


def _compared(ours: Connection, theirs: Connection, name: str, ids: Sequence[str]) -> TableDifference:
    compared = TableDifference()
    in_theirs, in_ours = (_query(connection, name).selected_columns.keys() for connection in (theirs, ours))
    columns = [key for key in in_ours if key in set(in_theirs)]
    for start in range(0, len(ids), SOURCES_AT_ONCE):
        chunk = ids[start : start + SOURCES_AT_ONCE]
        mine, other = _rows(ours, name, columns, chunk), _rows(theirs, name, columns, chunk)
        compared.same += (mine & other).total()
        _pair(compared, mine - other, other - mine)
    return compared


def _pair(compared: TableDifference, added: Counter[str], removed: Counter[str]) -> None:
    """Count rows that only one side has; two of one identity are one that has changed."""
    gone: dict[str, list[dict[str, Any]]] = {}
    for row in map(json.loads, removed.elements()):
        gone.setdefault(_identity(row), []).append(row)
    for row in map(json.loads, added.elements()):
        before = gone.get(_identity(row))
        if not before:
            compared.added += 1
            _show(compared, row, "added", row)
            continue
        old = before.pop()
        compared.changed += 1
        _show(compared, row, "changed", {key: [old[key], row[key]] for key in row if row[key] != old[key]})
    for row in (row for rows in gone.values() for row in rows):
        compared.removed += 1
        _show(compared, row, "removed", row)


def _show(compared: TableDifference, row: Mapping[str, Any], change: str, values: Mapping[str, Any]) -> None:
    if len(compared.examples) < EXAMPLES:
        compared.examples.append({"change": change, "source": row["source"], "row": _identity(row), "values": values})


def _identity(row: Mapping[str, Any]) -> str:
    name = next((name for name in _IDENTITIES if row.get(name) is not None), None)
    return f"{row['source']} {row[name] if name else json.dumps(row, sort_keys=True)}"


def _query(connection: Connection, name: str) -> Select[Any]:
    """Select what the rows state, those of a row that they belong to as well; the source comes first."""
    if name == ITEMS:
        return published_items()
    table, source = TABLES[name].table, cast("ColumnElement[Any]", TABLES[name].source_id)
    query = select(source.label("source"), *_stated(connection, table)).select_from(table)
    for column in table.columns:
        for key in column.foreign_keys:
            parent = key.column.table
            if parent.name in TABLES and isinstance(column.type, Integer):
                labelled = [stated.label(f"{parent.name}.{stated.key}") for stated in _stated(connection, parent)]
                query = query.outerjoin(parent, column == key.column).add_columns(*labelled)
    return query


def _stated(connection: Connection, table: Any) -> list[ColumnElement[Any]]:  # noqa: ANN401 - a table
    return [column for column in _present(connection, table.name, table.columns) if _is_stated(column)]


def _is_stated(column: ColumnElement[Any]) -> bool:
    """Return whether the value comes from the site, not from the installation."""
    name = column.key or ""
    is_number_of_ours = isinstance(column.type, Integer) and (name == "id" or name.endswith("_id"))
    is_time_of_ours = isinstance(column.type, UtcDateTime) and name not in _STATED_TIMES
    return not (name in _OURS or name.endswith("_hash") or is_number_of_ours or is_time_of_ours)


def _rows(connection: Connection, name: str, columns: Sequence[str], ids: Sequence[str]) -> Counter[str]:
    query = _query(connection, name)
    source = next(iter(query.selected_columns))
    rows = connection.execute(query.where(source.in_(ids))).mappings()
    return Counter(
        json.dumps({key: row[key] for key in columns}, default=str, sort_keys=True, ensure_ascii=False) for row in rows
    )
