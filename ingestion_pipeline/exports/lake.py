"""Tables of Delta Lake and Apache Iceberg that are kept up to date: merged by key, deletions applied.

The first export writes all rows, each later one what changed since, in versions that stay readable. The cursor moves
once the table is committed: a process killed in between applies the same rows again, which changes nothing.
"""

# Neither library has types for all of its own code.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from ingestion_pipeline.engine.system_spec import ExportColumn
from ingestion_pipeline.exports.changed_rows import ChangedRows, Key, open_changed_rows
from ingestion_pipeline.exports.export_request import ExportRequest
from ingestion_pipeline.exports.exporting import OnRows, read_cursor, save_cursor
from ingestion_pipeline.exports.formats import Row, arrow_batch, arrow_schema, private_folder
from ingestion_pipeline.store import Store

CATALOG = "catalog.db"  # of the Iceberg tables in a folder
NAMESPACE = "ingestion"


class TableFormat(StrEnum):
    """The format of a table that is kept up to date."""

    DELTA = "delta"
    ICEBERG = "iceberg"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableExport:
    """How many rows were merged into the table, and how many deleted."""

    path: Path
    rows: int
    deleted: int


class LakeTable(Protocol):
    """A table in a folder."""

    def create(self, columns: Sequence[ExportColumn], batches: Any) -> None:  # noqa: ANN401 - Arrow batches
        """Write the rows as the whole table."""
        ...

    def merge(self, rows: Any, key: Sequence[str]) -> None:  # noqa: ANN401 - an Arrow table
        """Insert the rows, or replace those with their keys."""
        ...

    def delete(self, keys: Any, key: Sequence[str]) -> None:  # noqa: ANN401 - an Arrow table
        """Delete the rows with these keys."""
        ...

    def exists(self) -> bool:
        """Return whether there is such a table."""
        ...


def export_to_table(
    store: Store, request: ExportRequest, form: TableFormat, folder: Path, *, on_rows: OnRows | None = None
) -> TableExport:
    """Bring the table in the folder up to date; a new one, or one whose cursor is lost, gets all rows."""
    target = private_folder(folder.absolute())
    table = _TABLES[form](target, request.name)
    name = f"{request.name}.{request.source_id or ''}.{form}"
    with store.read() as connection:
        since = read_cursor(connection, name, target) if table.exists() else None
    done = TableExport(path=target, rows=0, deleted=0)
    with open_changed_rows(store, request, since) as changed:
        done = _create(table, changed, done, on_rows) if since is None else _merge(table, changed, done, on_rows)
    save_cursor(store, name, target, changed.until, rows=done.rows)
    return done


def _create(table: LakeTable, changed: ChangedRows, done: TableExport, on_rows: OnRows | None) -> TableExport:
    count, schema = 0, arrow_schema(changed.columns)

    def batches() -> Any:  # noqa: ANN401 - Arrow batches, read lazily
        nonlocal count
        for rows in changed.rows:
            if rows:
                yield arrow_batch(schema, changed.columns, rows)
                count += len(rows)
                _report(on_rows, rows)

    table.create(changed.columns, batches())
    return replace(done, rows=count)


def _merge(table: LakeTable, changed: ChangedRows, done: TableExport, on_rows: OnRows | None) -> TableExport:
    import pyarrow as pa

    schema = arrow_schema(changed.columns)
    for rows in changed.rows:
        if rows:
            table.merge(pa.Table.from_batches([arrow_batch(schema, changed.columns, rows)]), changed.key)
            done = replace(done, rows=done.rows + len(rows))
            _report(on_rows, rows)
    for keys in changed.deleted:
        table.delete(_keys_table(schema, changed.key, keys), changed.key)
        done = replace(done, deleted=done.deleted + len(keys))
    return done


def _report(on_rows: OnRows | None, rows: Sequence[Row]) -> None:
    if on_rows is not None:
        on_rows(len(rows))


def _keys_table(schema: Any, key: Sequence[str], keys: Sequence[Key]) -> Any:  # noqa: ANN401 - of Arrow
    import pyarrow as pa

    values = zip(*keys, strict=True)
    return pa.table({name: pa.array(column, schema.field(name).type) for name, column in zip(key, values, strict=True)})


class _DeltaTable:
    def __init__(self, folder: Path, name: str) -> None:
        self._path = str(folder / f"{name}.delta")

    def exists(self) -> bool:
        from deltalake import DeltaTable

        return DeltaTable.is_deltatable(self._path)

    def create(self, columns: Sequence[ExportColumn], batches: Any) -> None:  # noqa: ANN401
        import pyarrow as pa
        from deltalake import write_deltalake

        reader = pa.RecordBatchReader.from_batches(arrow_schema(columns), batches)
        write_deltalake(self._path, reader, mode="overwrite", schema_mode="overwrite")

    def merge(self, rows: Any, key: Sequence[str]) -> None:  # noqa: ANN401
        self._merger(rows, key).when_matched_update_all().when_not_matched_insert_all().execute()

    def delete(self, keys: Any, key: Sequence[str]) -> None:  # noqa: ANN401
        self._merger(keys, key).when_matched_delete().execute()

    def _merger(self, rows: Any, key: Sequence[str]) -> Any:  # noqa: ANN401
        from deltalake import DeltaTable

        predicate = " AND ".join(f"t.{name} = s.{name}" for name in key)
        return DeltaTable(self._path).merge(rows, predicate=predicate, source_alias="s", target_alias="t")


class _IcebergTable:
    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, f"{NAMESPACE}.{name}"

    def exists(self) -> bool:
        return self._catalog().table_exists(self._name)

    def create(self, columns: Sequence[ExportColumn], batches: Any) -> None:  # noqa: ANN401
        catalog, schema = self._catalog(), arrow_schema(columns)
        catalog.create_namespace_if_not_exists(NAMESPACE)
        if catalog.table_exists(self._name):
            catalog.drop_table(self._name)
        table = catalog.create_table(self._name, schema=schema)
        import pyarrow as pa

        with table.transaction() as transaction:
            for batch in batches:
                transaction.append(pa.Table.from_batches([batch]))

    def merge(self, rows: Any, key: Sequence[str]) -> None:  # noqa: ANN401
        self._catalog().load_table(self._name).upsert(rows, join_cols=list(key))

    def delete(self, keys: Any, key: Sequence[str]) -> None:  # noqa: ANN401
        from pyiceberg.expressions import And, EqualTo, In, Or

        records: list[Mapping[str, Any]] = keys.to_pylist()
        if len(key) == 1:
            is_one: Any = In
            condition: Any = is_one(key[0], {record[key[0]] for record in records})
        else:
            is_equal: Any = EqualTo
            each: list[Any] = [And(*(is_equal(name, record[name]) for name in key)) for record in records]
            condition = each[0] if len(each) == 1 else Or(*each)
        self._catalog().load_table(self._name).delete(condition)

    def _catalog(self) -> Any:  # noqa: ANN401
        from pyiceberg.catalog.sql import SqlCatalog

        return SqlCatalog(NAMESPACE, uri=f"sqlite:///{self._folder / CATALOG}", warehouse=self._folder.as_uri())


_TABLES: Mapping[TableFormat, type[_DeltaTable] | type[_IcebergTable]] = {
    TableFormat.DELTA: _DeltaTable,
    TableFormat.ICEBERG: _IcebergTable,
}
