"""Contracts of the assets: their columns in the catalogue, and checks of what was published.

Run from the UI they look at the partitions of the run, else at the newest rows; `maintain` tells of
them when their findings change. (A poll does not: pandas alone costs more than most polls.)
"""

from collections.abc import Iterator, Sequence

import dagster as dg

from ingestion_pipeline.exports.columns import Holds
from ingestion_pipeline.exports.contracts import CONTRACTS, Contract, broken
from ingestion_pipeline.orchestration.checks import evaluation_metadata, told_before
from ingestion_pipeline.orchestration.resources import WorkshopResource
from ingestion_pipeline.pages.workshop import Workshop
from ingestion_pipeline.sources.findings import Finding

NAME = "contract"
ROWS = 5_000  # the newest that are looked at; a run's own partitions are looked at whole
ALL_OF_A_PARTITION = 1_000_000

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
            description=contract.describe(one.name) or None,
            constraints=dg.TableColumnConstraints(unique=one.name == "id"),
        )
        for one in contract.columns()
    ]
    return dg.TableSchema(columns=columns)


def _severity(findings: Sequence[Finding]) -> dg.AssetCheckSeverity:
    is_error = any(one.is_error for one in findings)
    return dg.AssetCheckSeverity.ERROR if is_error else dg.AssetCheckSeverity.WARN


def _check(contract: Contract) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=contract.asset,
        name=NAME,
        description=f"What is published is as {contract.export} is described: types, ids, values.",
    )
    def check(
        context: dg.AssetCheckExecutionContext, workshop: WorkshopResource
    ) -> dg.AssetCheckResult:
        keys = _keys(context)
        most = ROWS if keys is None else ALL_OF_A_PARTITION
        with workshop.open() as shop:
            findings = broken(shop.store, contract, keys, most=most)
        return dg.AssetCheckResult(
            passed=not findings,
            severity=_severity(findings),
            metadata=evaluation_metadata(findings),
        )

    return check


def _keys(context: dg.AssetCheckExecutionContext) -> list[str] | None:
    step = context.op_execution_context
    if step.has_partition_key or step.has_partition_key_range:
        return list(step.partition_keys)
    return None


CONTRACT_CHECKS = [_check(one) for one in CONTRACTS.values()]


def changed_contracts(
    instance: dg.DagsterInstance, shop: Workshop
) -> Iterator[dg.AssetCheckEvaluation]:
    """Evaluations of the contracts whose findings differ from what Dagster was last told."""
    for contract in CONTRACTS.values():
        key = dg.AssetCheckKey(dg.AssetKey(contract.asset), NAME)
        findings = broken(shop.store, contract, most=ROWS)
        metadata = evaluation_metadata(findings)
        if told_before(instance, key) == metadata["details"].value:
            continue
        yield dg.AssetCheckEvaluation(
            asset_key=key.asset_key,
            check_name=key.name,
            passed=not findings,
            severity=_severity(findings),
            metadata=metadata,
        )
