"""The rows of our assets as arguments of assets downstream, and what our own steps pass on to each other.

A partition's rows are what `ingest export` writes of the source: proved values only.
"""

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import dagster as dg

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.exports.contracts import CONTRACTS
from ingestion_pipeline.exports.export_request import ITEMS, NothingPublished, request_for
from ingestion_pipeline.exports.exporting import open_export_rows
from ingestion_pipeline.exports.formats import as_frame, private_folder, to_arrow
from ingestion_pipeline.extras import missing_extra
from ingestion_pipeline.orchestration.mount import Mount, own_asset

NOT_EXPORTED = frozenset({"notices", "source_health"})


def exported_as(asset: str) -> str:
    """Return the name of the asset's export: of `datasets` the items, of others the table of its contract."""
    return ITEMS if asset == "datasets" else CONTRACTS[asset].export


def on_changed_rows(*, needs_all: bool = True) -> dg.AutomationCondition:
    """Return the condition of an eager asset that runs only for the partitions whose rows have changed.

    Unless it `needs_all`, a partition upstream that was never read does not hold it back.
    """
    changed = dg.AutomationCondition.data_version_changed()
    updated = dg.AutomationCondition.any_deps_updated().replace("newly_updated", changed)
    eager = dg.AutomationCondition.eager()
    eager = eager if needs_all else eager.without(~dg.AutomationCondition.any_deps_missing())
    return eager.replace("any_deps_updated", updated).with_label("on_changed_rows")


class RowsIOManager(dg.IOManager):
    """Loads rows of our assets from the store; assets of ours write none through it."""

    def __init__(self, ctx: RunContext) -> None:
        self._ctx = ctx

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        """Keep what a step passes on, for a next step that may run in another process: ids and counts."""
        if obj is not None:
            path = self._path(context)
            private_folder(path.parent)
            path.write_text(json.dumps(obj))

    def load_input(self, context: dg.InputContext) -> Any:  # noqa: ANN401 - of the type that the parameter has
        """Return the rows of the partitions of an asset, else what the step before passed on, once."""
        if context.has_asset_key:
            return self._rows(context)
        path = self._path(context.upstream_output or context)
        passed_on = json.loads(path.read_text())
        path.unlink()
        return passed_on

    def _path(self, context: dg.OutputContext | dg.InputContext) -> Path:
        return self._ctx.settings.home / "steps" / "-".join(context.get_identifier())

    def _rows(self, context: dg.InputContext) -> Any:  # noqa: ANN401
        asset = own_asset(self._ctx.names, context.asset_key)
        if asset is None or asset not in CONTRACTS or asset in NOT_EXPORTED:
            named = context.asset_key.to_user_string()
            raise dg.Failure(f"{named} has no rows to load: name it in `deps` instead", allow_retries=False)
        # A run without partitions takes all rows, also of sources beyond the limit of partitions.
        keys = list(context.asset_partition_keys) if context.step_context.has_partitions else [None]
        try:
            return self._converted(exported_as(asset), keys, context.dagster_type.typing_type)
        except ImportError as error:
            raise dg.Failure(missing_extra(error) or str(error), allow_retries=False) from error

    def _converted(self, name: str, keys: Sequence[str | None], kind: Any) -> Any:  # noqa: ANN401
        import pyarrow as pa

        tables = [table for key in keys if (table := self._table(name, key)) is not None]
        rows = pa.concat_tables(tables, promote_options="default") if tables else pa.table({})
        match str(getattr(kind, "__module__", "")).partition(".")[0]:
            case "pyarrow":
                return rows
            case "polars":
                return import_module("polars").from_arrow(rows)  # the user's own, or not installed
            case _:
                return as_frame(rows)

    def _table(self, name: str, source_id: str | None) -> Any:  # noqa: ANN401 - Arrow has no types
        request = request_for(self._ctx.settings, name, source_id=source_id)
        try:
            with open_export_rows(self._ctx.store, request) as (columns, _, batches):
                return to_arrow(columns, batches)
        except NothingPublished:
            return None


def rows_io_manager(mount: Mount) -> dg.IOManagerDefinition:
    """Return the I/O manager over the mount's store."""

    def rows(context: dg.InitResourceContext) -> RowsIOManager:
        return RowsIOManager(getattr(context.resources, mount.resource_key))

    about = "Rows of our assets for assets downstream, as pandas, Arrow or polars by the type of the parameter."
    return dg.io_manager(required_resource_keys={mount.resource_key}, description=about)(rows)
