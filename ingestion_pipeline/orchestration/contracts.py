"""Contracts of the assets: their columns in the catalogue, and checks of what was published.

Run from the UI a check looks at the partitions of the run, else at the newest rows; `maintain`
looks at the newest rows of every asset. A run of ours that writes rows holds these, and no others,
against the contract, row by row: pandas alone costs more than most polls.
"""

from collections.abc import Iterator, Sequence

import dagster as dg

from ingestion_pipeline.catalogs.extraction.source_config import entity_folder
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.exports.columns import Holds
from ingestion_pipeline.exports.contracts import CONTRACTS, Contract, broken, cases_of, findings
from ingestion_pipeline.exports.item_contract import broken_by_run, broken_items, written_rows
from ingestion_pipeline.exports.tables import table_rows
from ingestion_pipeline.operations.health import Reported, as_row, reported, standings
from ingestion_pipeline.orchestration.check_events import (
    evaluation_metadata,
    last_evaluation,
    last_reported,
)
from ingestion_pipeline.orchestration.resources import RunContextResource
from ingestion_pipeline.sources.health import Finding

NAME = "contract"
ROWS = 5_000  # the newest that are looked at; a run's own partitions are looked at whole
ITEMS = 20_000  # of datasets, the same; each takes some 20 microseconds
HEALTH = "source_health"

_TYPES = {
    Holds.TEXT: "string",
    Holds.WHOLE: "integer",
    Holds.DECIMAL: "decimal",
    Holds.FLOAT: "float",
    Holds.FLAG: "boolean",
    Holds.TIME: "timestamp",
    Holds.JSON: "json",
}


def column_schema(asset: str) -> dg.TableSchema:
    """The columns of what the asset publishes, from the declaration that the check goes by."""
    contract = CONTRACTS[asset]
    columns = [
        dg.TableColumn(
            one.name,
            _TYPES[one.holds],
            description=contract.describe(one.name),
            constraints=dg.TableColumnConstraints(unique=one.name == "id"),
        )
        for one in contract.columns()
    ]
    return dg.TableSchema(columns=columns)


def _severity(found: Sequence[Finding]) -> dg.AssetCheckSeverity:
    is_error = any(one.is_error for one in found)
    return dg.AssetCheckSeverity.ERROR if is_error else dg.AssetCheckSeverity.WARN


def _check(contract: Contract) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=contract.asset,
        name=NAME,
        description=f"What is published is as {contract.export} is described: types, ids, values.",
    )
    def check(
        context: dg.AssetCheckExecutionContext, workshop: RunContextResource
    ) -> dg.AssetCheckResult:
        with workshop.open() as shop:
            found = _broken(shop, contract, _keys(context))
        return dg.AssetCheckResult(
            passed=not found, severity=_severity(found), metadata=evaluation_metadata(found)
        )

    return check


def _keys(context: dg.AssetCheckExecutionContext) -> list[str] | None:
    step = context.op_execution_context
    if step.has_partition_key or step.has_partition_key_range:
        return list(step.partition_keys)
    return None


def _broken(shop: RunContext, contract: Contract, keys: Sequence[str] | None) -> list[Finding]:
    """Of these partitions all rows, else the newest of the asset's."""
    match contract.asset:
        case "source_health":
            return broken_health(_worst(shop))
        case "notices":  # with every delivery: without pandas
            return _broken_notices(shop, contract)
        case "datasets":
            of_rows = broken(shop.store, contract, keys, most=ROWS if keys is None else None)
            return [*of_rows, *_broken_items(shop, keys)]
        case _:
            return broken(shop.store, contract, keys, most=ROWS if keys is None else None)


def _broken_items(shop: RunContext, keys: Sequence[str] | None) -> list[Finding]:
    with shop.store.read() as connection:
        return broken_items(
            connection,
            keys,
            most=ITEMS if keys is None else None,
            entities=entity_folder(shop.settings),
        )


def _broken_notices(shop: RunContext, contract: Contract) -> list[Finding]:
    names = [one.name for one in contract.columns()]
    with shop.store.read() as connection:
        batches = table_rows(
            connection, contract.export, source_id=None, batch_rows=ROWS, newest=ROWS
        )
        rows = (dict(zip(names, row, strict=True)) for batch in batches for row in batch)
        return findings(contract, cases_of(rows, contract))


def _worst(shop: RunContext) -> list[Reported]:
    with shop.store.read() as connection:
        now = shop.store.clock.now(connection)
        found = standings(connection, shop.settings, now=now)[: shop.settings.health.shown]
        return reported(connection, found, shop.settings, now=now)


def broken_health(shown: Sequence[Reported]) -> list[Finding]:
    """What does not hold of the sources that `source_health` shows."""
    contract = CONTRACTS[HEALTH]
    return findings(contract, cases_of(map(as_row, shown), contract))


CONTRACT_CHECKS = [_check(one) for one in CONTRACTS.values()]


def changed_contracts(
    instance: dg.DagsterInstance, shop: RunContext
) -> Iterator[dg.AssetCheckEvaluation]:
    """Evaluations of the contracts whose findings differ from what Dagster was last told.

    Not that of `source_health`: who refreshes the asset has its rows, and tells of them.
    """
    for contract in CONTRACTS.values():
        if contract.asset != HEALTH:
            yield from changed(instance, contract.asset, _broken(shop, contract, None))


def changed(
    instance: dg.DagsterInstance, asset: str, found: Sequence[Finding]
) -> Iterator[dg.AssetCheckEvaluation]:
    """The evaluation of the asset's contract, unless Dagster was told just that."""
    key = dg.AssetCheckKey(dg.AssetKey(asset), NAME)
    metadata = evaluation_metadata(found)
    if last_reported(instance, key) == metadata["details"].value:
        return
    yield dg.AssetCheckEvaluation(
        asset_key=key.asset_key,
        check_name=key.name,
        passed=not found,
        severity=_severity(found),
        metadata=metadata,
    )


def written_contracts(
    instance: dg.DagsterInstance, shop: RunContext, assets: Sequence[str], source_ids: Sequence[str]
) -> Iterator[dg.AssetCheckEvaluation]:
    """What the rows that this run has written say of the contracts of these assets.

    A run whose rows are right confirms a contract that held. One that is broken stays so: other
    rows broke it, and `maintain`, which looks at all of the newest, says when they are mended.
    """
    for asset in assets if source_ids else ():
        yield from _reported_by_run(
            instance, asset, _broken_by_run(shop, CONTRACTS[asset], source_ids)
        )


def written_items(
    instance: dg.DagsterInstance, shop: RunContext, source_ids: Sequence[str]
) -> Iterator[dg.AssetCheckEvaluation]:
    """The same of `datasets` by the items that this run has read, before they are published."""
    if source_ids:
        yield from _reported_by_run(instance, "datasets", _broken_readings(shop, source_ids))


def _reported_by_run(
    instance: dg.DagsterInstance, asset: str, found: Sequence[Finding]
) -> Iterator[dg.AssetCheckEvaluation]:
    last = last_evaluation(instance, dg.AssetCheckKey(dg.AssetKey(asset), NAME))
    if found or last is None or last.passed:
        yield from changed(instance, asset, found)


def _broken_by_run(
    shop: RunContext, contract: Contract, source_ids: Sequence[str]
) -> list[Finding]:
    if contract.asset == "datasets":
        return _broken_items(shop, source_ids)
    with shop.store.read() as connection:
        rows = written_rows(connection, contract, source_ids, run_id=shop.run_id)
        return findings(contract, cases_of(rows, contract))


def _broken_readings(shop: RunContext, source_ids: Sequence[str]) -> list[Finding]:
    with shop.store.read() as connection:
        return broken_by_run(
            connection,
            source_ids,
            run_id=shop.run_id,
            most=ITEMS,
            entities=entity_folder(shop.settings),
        )
