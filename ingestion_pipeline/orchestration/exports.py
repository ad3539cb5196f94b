"""The exports of `exports.yaml` as assets: each is written again when rows of what it exports have changed."""

from collections.abc import Generator
from typing import Any

import dagster as dg

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.exports.contracts import CONTRACTS
from ingestion_pipeline.exports.declared_exports import BadExports, DeclaredExport, read_exports
from ingestion_pipeline.exports.export_request import TABLES, NothingPublished
from ingestion_pipeline.exports.exporting import describe_columns, export
from ingestion_pipeline.exports.formats import private_folder
from ingestion_pipeline.orchestration.assets import KIND_OF_ASSET, MANY
from ingestion_pipeline.orchestration.checks import COLUMN_TYPES
from ingestion_pipeline.orchestration.mount import Mount, RunContextParam
from ingestion_pipeline.orchestration.rows import NOT_EXPORTED, exported_as, on_changed_rows
from ingestion_pipeline.orchestration.runs import OWN_ASSETS, whole_run
from ingestion_pipeline.registry import systems
from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.settings.loading import replaced_environment

AUTOMATION_SECONDS = 30
NOTHING = {"dagster/partition_row_count": 0}  # of a source without published rows


def own_assets(settings: Settings) -> set[str]:
    """Return the names of all our assets; while the file of exports has mistakes, without those that it declares."""
    try:
        return OWN_ASSETS | {declared.id for declared in read_exports(settings)}
    except BadExports:
        return OWN_ASSETS


def made_from(name: str) -> list[str]:
    """Return the assets whose rows an export has: that of its table, else all of the system that has the table."""
    exact = [asset for asset in CONTRACTS if asset not in NOT_EXPORTED and exported_as(asset) == name]
    if exact or name not in TABLES:
        return exact or ["datasets"]
    [system] = [system for system in systems() if name in {table.table.name for table in system.published}]
    kinds = [spec.asset.name for spec in system.kinds if spec.asset is not None]
    return [*kinds, *(asset.name for work in system.work for asset in work.assets)]


def export_definitions(mount: Mount) -> dg.Definitions:
    """Return an asset for each declared export, and the sensor that runs them."""
    settings = load_settings(replaced_environment(mount.environment))
    exports = read_exports(settings)
    assets = [_export_asset(mount, settings, declared) for declared in exports]
    if not assets:
        return dg.Definitions()
    sensor = dg.AutomationConditionSensorDefinition(
        mount.names.job("exports"),
        target=dg.AssetSelection.assets(*(mount.key(declared.id) for declared in exports)),
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=AUTOMATION_SECONDS,
        description="Exports of the file `exports.yaml` are written again when rows of them have changed.",
    )
    return dg.Definitions(assets=assets, sensors=[sensor])


def _export_asset(mount: Mount, settings: Settings, declared: DeclaredExport) -> dg.AssetsDefinition:
    parents = made_from(declared.export)
    columns = [
        dg.TableColumn(column.name, COLUMN_TYPES[column.holds], description=column.meaning)
        for column in describe_columns(declared.request(settings))
    ]

    def write(context: dg.AssetExecutionContext, run_context: RunContextParam) -> Generator[dg.MaterializeResult]:
        run = context.run
        with whole_run(run_context, run_id=run.run_id, job=run.job_name):
            if not declared.by_source:
                metadata = _written(context, run_context, declared, None)
                yield from [] if metadata is None else [dg.MaterializeResult(metadata=metadata)]
                return
            for key in context.partition_keys:  # one event each, with what is added here
                metadata = _written(context, run_context, declared, key)
                context.add_asset_metadata(metadata or NOTHING, partition_key=key)
            yield dg.MaterializeResult()

    partitioned: dict[str, Any] = {}
    if declared.by_source:
        kinds = {KIND_OF_ASSET.get(asset) for asset in parents}
        if len(kinds) > 1:
            raise BadExports(
                f"{declared.id}: by_source: rows of {declared.export} are written by several kinds of sources"
            )
        partitioned = {"partitions_def": mount.partitions(kinds.pop()), "backfill_policy": MANY}
    first = dg.AutomationCondition.initial_evaluation()  # a new export of rows that are there
    if declared.by_source:
        first = first & ~dg.AutomationCondition.any_deps_missing()
    return dg.asset(
        key=mount.key(declared.id),
        kinds={declared.format.value, "file"},
        deps=[mount.key(parent) for parent in dict.fromkeys(parents)],
        output_required=False,
        automation_condition=on_changed_rows(needs_all=declared.by_source) | first,
        code_version=f"{declared.export} {declared.format}" + " evidence" * declared.evidence,
        description=(
            f"The export of `{declared.export}` as {declared.format}"
            f"{', a file for each source' if declared.by_source else ''}. Declared in `exports.yaml`."
            " Refreshed by the sensor `exports` when rows have changed."
        ),
        metadata={"dagster/column_schema": dg.TableSchema(columns=columns)},
        io_manager_key=mount.io_key,
        **partitioned,
        **mount.attributes("exports"),
    )(mount.bound(write))


def _written(
    context: dg.AssetExecutionContext, ctx: RunContext, declared: DeclaredExport, source_id: str | None
) -> dict[str, Any] | None:
    """Write the file and return the metadata of the event; None if there was nothing to write."""
    folder = private_folder(declared.folder or ctx.settings.home / "exports")
    path = folder / declared.file_name(source_id)
    try:
        exported = export(ctx.store, declared.request(ctx.settings, source_id), declared.format, path)
    except NothingPublished as nothing:
        context.log.info("nothing to export: %s; no file written", nothing)
        return None
    count = "dagster/row_count" if source_id is None else "dagster/partition_row_count"
    return {count: exported.rows, "bytes": path.stat().st_size, "dagster/uri": path.absolute().as_uri()}
