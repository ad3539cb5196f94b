"""The published tables as a source of dlt: merged by key, deletions included, from where the last load ended."""

# dlt has types for few of its decorators' results.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime
from typing import Any

from ingestion_pipeline.engine.system_spec import ColumnType, ExportColumn
from ingestion_pipeline.exports.changed_rows import columns_of, key_of, open_changed_rows
from ingestion_pipeline.exports.export_request import ExportRequest
from ingestion_pipeline.exports.formats import DECIMAL_DIGITS, DECIMAL_PLACES, json_text

DELETED = "is_deleted"  # the column that tells dlt to delete the row
_TYPES: dict[ColumnType, dict[str, Any]] = {
    ColumnType.TEXT: {"data_type": "text"},
    ColumnType.WHOLE: {"data_type": "bigint"},
    ColumnType.DECIMAL: {"data_type": "decimal", "precision": DECIMAL_DIGITS, "scale": DECIMAL_PLACES},
    ColumnType.FLOAT: {"data_type": "double"},
    ColumnType.FLAG: {"data_type": "bool"},
    ColumnType.TIME: {"data_type": "timestamp"},
    ColumnType.JSON: {"data_type": "text"},  # as in every other export
}


def dlt_source(names: Sequence[str] | None = None) -> Any:  # noqa: ANN401 - a DltSource
    """Return a source with a resource for each of these exports, by default for all whose deletions are known.

    The database is the one that the environment names. A resource merges by its primary key, deletes rows that are
    gone, and goes on from where its last load ended: dlt keeps that with the load.
    """
    import dlt

    from ingestion_pipeline.catalogs.extraction.source_selectors import entity_folder
    from ingestion_pipeline.exports.change_history import recorded_names
    from ingestion_pipeline.settings import load_settings

    settings = load_settings()
    entities = entity_folder(settings)
    requests = [ExportRequest(name=name, entities=entities) for name in names or recorded_names(entities)]
    for request in requests:
        request.check()

    @dlt.source(name="ingestion_pipeline", max_table_nesting=0)
    def ingestion_pipeline() -> Any:  # noqa: ANN401
        for request in requests:
            key = key_of(request)
            hints: dict[str, Any] = {
                str(column.name): _TYPES[column.holds] | {"nullable": column.name not in key}
                for column in columns_of(request)
            }
            yield dlt.resource(
                _load,
                name=request.name,
                primary_key=key,
                write_disposition="merge",
                columns={**hints, DELETED: {"data_type": "bool", "hard_delete": True}},
            )(settings.store_url, request)

    return ingestion_pipeline()


def _load(url: str, request: ExportRequest) -> Iterator[Any]:
    """Yield the rows that changed since the last load, and those that are gone."""
    import dlt

    from ingestion_pipeline.store import open_store

    state = dlt.current.resource_state()
    since = datetime.fromisoformat(state["since"]) if "since" in state else None
    with closing(open_store(url)) as store, open_changed_rows(store, request, since) as changed:
        if since is None:
            yield dlt.mark.materialize_table_schema()  # also of a table without rows
        for batch in changed.rows:
            yield [_record(changed.columns, row) for row in batch]
        for keys in changed.deleted:
            yield [dict(zip(changed.key, key, strict=True)) | {DELETED: True} for key in keys]
        state["since"] = changed.until.isoformat()


def _record(columns: Sequence[ExportColumn], row: Sequence[Any]) -> dict[str, Any]:
    values = {
        str(column.name): json_text(value) if column.holds is ColumnType.JSON and value is not None else value
        for column, value in zip(columns, row, strict=True)
    }
    return values | {DELETED: False}
