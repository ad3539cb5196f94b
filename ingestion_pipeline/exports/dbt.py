"""The sources of a dbt project that reads our tables: columns with their meaning, tests of the contracts, freshness."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ingestion_pipeline.engine.system_spec import Contract, ContractRule
from ingestion_pipeline.exports.change_history import recorded_names
from ingestion_pipeline.exports.changed_rows import key_of
from ingestion_pipeline.exports.contracts import CONTRACTS
from ingestion_pipeline.exports.export_request import TABLES, ExportRequest
from ingestion_pipeline.exports.exporting import describe_columns
from ingestion_pipeline.registry import systems

SOURCE = "ingestion_pipeline"
_SCHEMA = "{{ var('ingestion_schema', 'ingestion') }}"


def dbt_sources(entities: Path | None = None) -> str:
    """Return the YAML of all recorded tables and types of items, as `dlt_source` copies them.

    The project's variable `ingestion_schema` names the schema that they are in.
    """
    contracts = {contract.export: contract for contract in CONTRACTS.values()}
    requests = [ExportRequest(name=name, entities=entities) for name in recorded_names(entities)]
    tables = [_table(request, contracts.get(request.name)) for request in requests]
    source = {
        "name": SOURCE,
        "description": "Structured data from the web, table fresh by ingestion_pipeline.",
        "schema": _SCHEMA,
        "tables": tables,
    }
    document = {"version": 2, "sources": [source]}
    plain = json.loads(json.dumps(document))  # YAML has no subclasses of text
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)


def _table(request: ExportRequest, contract: Contract | None) -> dict[str, Any]:
    key = key_of(request)
    rules: Mapping[str, Sequence[ContractRule]] = {} if contract is None else contract.rules
    columns = [
        {
            "name": str(column.name),
            "description": column.meaning,
            "data_tests": list(_tests(rules.get(column.name, ()), is_key=key == [column.name])),
        }
        for column in describe_columns(request)
    ]
    described = [{name: value for name, value in column.items() if value} for column in columns]
    table = {"name": request.name, "columns": described}
    return table | _freshness(request, contract)


def _tests(rules: Sequence[ContractRule], *, is_key: bool) -> Iterator[Any]:
    """Yield the tests that dbt has of its own for these rules."""
    if is_key:
        yield from ("unique", "not_null")
    for rule in rules:
        if rule.is_required and not is_key:
            yield "not_null"
        if rule.among:
            severity = {"config": {"severity": "warn"}} if rule.is_warning else {}
            yield {"accepted_values": {"arguments": {"values": list(rule.among)}, **severity}}


def _freshness(request: ExportRequest, contract: Contract | None) -> dict[str, Any]:
    """Return after how many days without a written row dbt warns: those after which its asset counts as quiet."""
    days = {asset.name: asset.quiet_days for system in systems() for kind in system.kinds if (asset := kind.asset)}
    days |= {asset.name: asset.quiet_days for system in systems() for work in system.work for asset in work.assets}
    has_stamp = request.name in TABLES and "modified_at" in TABLES[request.name].table.c
    if contract is None or contract.asset not in days or not has_stamp:
        return {}
    after = {"count": days[contract.asset], "period": "day"}
    return {"config": {"loaded_at_field": "modified_at", "freshness": {"warn_after": after}}}
