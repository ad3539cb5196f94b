"""Contracts of the assets: their column schemas, and checks of the published rows.

Run from the UI, a check covers the partitions of the run, else the newest rows; `maintain` checks
the newest rows of every asset. A run that writes rows checks only these, row by row: importing
pandas alone costs more than most polls.
"""

from collections.abc import Iterator, Mapping, Sequence

import dagster as dg

from ingestion_pipeline.catalogs.extraction.source_config import entity_folder
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.published import ColumnType, Contract
from ingestion_pipeline.exports.contracts import CONTRACTS, cases_of, contract_findings, findings
from ingestion_pipeline.exports.item_contract import item_findings, run_item_findings, written_rows
from ingestion_pipeline.exports.tables import table_rows
from ingestion_pipeline.operations.health import SourceHealthRow, as_row, reported, source_statuses
from ingestion_pipeline.orchestration.check_events import evaluation_metadata, last_evaluation, last_reported
from ingestion_pipeline.orchestration.resources import RunContextParam
from ingestion_pipeline.sources.health import Finding

NAME = "contract"
ROWS = 5_000  # the newest rows that are checked; a run's own partitions are checked completely
ITEMS = 20_000  # the same for items of datasets; each takes some 20 microseconds
HEALTH = "source_health"
SHOWN_SOURCES = 50  # in the table of source_health, worst first

_TYPES = {
    ColumnType.TEXT: "string",
    ColumnType.WHOLE: "integer",
    ColumnType.DECIMAL: "decimal",
    ColumnType.FLOAT: "float",
    ColumnType.FLAG: "boolean",
    ColumnType.TIME: "timestamp",
    ColumnType.JSON: "json",
}


def column_schema(asset: str) -> dg.TableSchema:
    """Return the columns that the asset publishes, from the contract that is checked."""
    contract = CONTRACTS[asset]
    columns = [
        dg.TableColumn(
            column.name,
            _TYPES[column.holds],
            description=contract.describe(column.name),
            constraints=dg.TableColumnConstraints(unique=column.name == "id"),
        )
        for column in contract.columns()
    ]
    return dg.TableSchema(columns=columns)


def _severity(broken_rules: Sequence[Finding]) -> dg.AssetCheckSeverity:
    is_error = any(finding.is_error for finding in broken_rules)
    return dg.AssetCheckSeverity.ERROR if is_error else dg.AssetCheckSeverity.WARN


def _check(contract: Contract) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=contract.asset,
        name=NAME,
        description=f"What is published is as {contract.export} is described: types, ids, values.",
    )
    def check(context: dg.AssetCheckExecutionContext, run_context: RunContextParam) -> dg.AssetCheckResult:
        broken_rules = _asset_findings(run_context, contract, _keys(context))
        return dg.AssetCheckResult(
            passed=not broken_rules, severity=_severity(broken_rules), metadata=evaluation_metadata(broken_rules)
        )

    return check


def _keys(context: dg.AssetCheckExecutionContext) -> list[str] | None:
    step = context.op_execution_context
    if step.has_partition_key or step.has_partition_key_range:
        return list(step.partition_keys)
    return None


def _asset_findings(ctx: RunContext, contract: Contract, keys: Sequence[str] | None) -> list[Finding]:
    """Return the findings of all rows of these partitions, else of the newest rows."""
    match contract.asset:
        case "source_health":
            return health_findings(_worst(ctx))
        case "notices":  # runs with every delivery: without pandas
            return _notice_findings(ctx, contract)
        case "datasets":
            of_rows = contract_findings(ctx.store, contract, keys, most=ROWS if keys is None else None)
            return [*of_rows, *_item_findings(ctx, keys)]
        case _:
            return contract_findings(ctx.store, contract, keys, most=ROWS if keys is None else None)


def _item_findings(ctx: RunContext, keys: Sequence[str] | None) -> list[Finding]:
    with ctx.store.read() as connection:
        return item_findings(
            connection, keys, most=ITEMS if keys is None else None, entities=entity_folder(ctx.settings)
        )


def _notice_findings(ctx: RunContext, contract: Contract) -> list[Finding]:
    names = [column.name for column in contract.columns()]
    with ctx.store.read() as connection:
        batches = table_rows(connection, contract.export, source_id=None, batch_rows=ROWS, newest=ROWS)
        rows = (dict(zip(names, row, strict=True)) for batch in batches for row in batch)
        return findings(contract, cases_of(rows, contract))


def _worst(ctx: RunContext) -> list[SourceHealthRow]:
    with ctx.store.read() as connection:
        now = ctx.store.clock.now(connection)
        worst = source_statuses(connection, ctx.settings, now=now)[:SHOWN_SOURCES]
        return reported(connection, worst, ctx.settings, now=now)


def health_findings(health_rows: Sequence[SourceHealthRow]) -> list[Finding]:
    """Return the contract findings of the rows that `source_health` shows."""
    contract = CONTRACTS[HEALTH]
    return findings(contract, cases_of(map(as_row, health_rows), contract))


CONTRACT_CHECKS = [_check(contract) for contract in CONTRACTS.values()]


def changed_contracts(instance: dg.DagsterInstance, ctx: RunContext) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield evaluations of the contracts whose findings differ from those last reported.

    Except for `source_health`: the code that refreshes that asset reports its rows.
    """
    for contract in CONTRACTS.values():
        if contract.asset != HEALTH:
            yield from changed_contract(instance, contract.asset, _asset_findings(ctx, contract, None))


def changed_contract(
    instance: dg.DagsterInstance, asset: str, broken_rules: Sequence[Finding]
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield the evaluation of the asset's contract, unless it was already reported."""
    key = dg.AssetCheckKey(dg.AssetKey(asset), NAME)
    metadata = evaluation_metadata(broken_rules)
    if last_reported(instance, key) == metadata["details"].value:
        return
    yield dg.AssetCheckEvaluation(
        asset_key=key.asset_key,
        check_name=key.name,
        passed=not broken_rules,
        severity=_severity(broken_rules),
        metadata=metadata,
    )


def written_contracts(
    instance: dg.DagsterInstance, ctx: RunContext, written: Mapping[str, Sequence[str]]
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield contract evaluations of the rows that this run has written, by asset and source.

    A run with valid rows confirms a contract that held. A broken contract stays broken: other rows
    broke it, and `maintain`, which checks all of the newest, reports when they are fixed.
    """
    for asset, source_ids in written.items():
        if source_ids:
            yield from _reported_by_run(instance, asset, _run_findings(ctx, CONTRACTS[asset], source_ids))


def published_items(
    instance: dg.DagsterInstance, ctx: RunContext, source_ids: Sequence[str]
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield the contract evaluation of `datasets` for the items of these sources that are published."""
    if source_ids:
        yield from _reported_by_run(instance, "datasets", _item_findings(ctx, source_ids))


def _reported_by_run(
    instance: dg.DagsterInstance, asset: str, broken_rules: Sequence[Finding]
) -> Iterator[dg.AssetCheckEvaluation]:
    last = last_evaluation(instance, dg.AssetCheckKey(dg.AssetKey(asset), NAME))
    if broken_rules or last is None or last.passed:
        yield from changed_contract(instance, asset, broken_rules)


def _run_findings(ctx: RunContext, contract: Contract, source_ids: Sequence[str]) -> list[Finding]:
    with ctx.store.read() as connection:
        if contract.asset == "datasets":  # items that the run extracted, published or not
            folder = entity_folder(ctx.settings)
            return run_item_findings(connection, source_ids, run_id=ctx.run_id, most=ITEMS, entities=folder)
        rows = written_rows(connection, contract, source_ids, run_id=ctx.run_id)
        return findings(contract, cases_of(rows, contract))
