"""Asset checks and contracts, reported by runs when their findings change, and the asset `source_health`.

A contract is the check of an asset's published rows. Run from the UI, it covers the partitions of the
run, else the newest rows; `maintain` checks the newest rows of every asset and refreshes `source_health`. A run that
writes rows checks only these, row by row: importing pandas alone costs more than most polls.
"""

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import dagster as dg
from sqlalchemy import Connection

from ingestion_pipeline.bootstrap import open_run_context
from ingestion_pipeline.catalogs.extraction.source_selectors import entity_folder
from ingestion_pipeline.engine.context import MountNames, RunContext
from ingestion_pipeline.engine.system_spec import (
    AssetCheck,
    ColumnType,
    Contract,
    details_table,
    moment,
    picture,
    plain,
    rounded_usd,
)
from ingestion_pipeline.exports.contracts import (
    CONTRACTS,
    cases_of,
    contract_findings,
    findings,
    item_findings,
    run_item_findings,
    written_rows,
)
from ingestion_pipeline.exports.export_request import table_rows
from ingestion_pipeline.notices.queries import undelivered
from ingestion_pipeline.operations.alerts import record_health_changes
from ingestion_pipeline.operations.freshness import Attainment
from ingestion_pipeline.operations.metrics import Numbers, numbers
from ingestion_pipeline.operations.source_health import (
    Grid,
    SourceHealthRow,
    as_row,
    changed_states,
    freshness,
    freshness_picture,
    reported,
    source_statuses,
    store_states,
)
from ingestion_pipeline.orchestration.mount import Mount, RunContextParam, asset_key, check_key, own_asset
from ingestion_pipeline.orchestration.runs import (
    PARENTS,
    in_sync,
    metadata_value,
    register_partition,
    table_address,
    whole_run,
)
from ingestion_pipeline.registry import definition_check, kind_specs, systems
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.settings.loading import replaced_environment
from ingestion_pipeline.sources.declarations import duration_text
from ingestion_pipeline.sources.files import read_folder
from ingestion_pipeline.sources.status import Finding, Health, summary

SHOWN_SOURCES = 50  # in the table of source_health, worst first


def evaluation_metadata(findings: Sequence[Finding]) -> dict[str, dg.MetadataValue]:
    """Return the number of findings and a summary of the first."""
    return {
        "findings": dg.MetadataValue.int(len(findings)),
        "details": dg.MetadataValue.text(summary(findings)[:2_000] or "nothing to report"),
    }


def last_reported(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> object:
    """Return the details last reported; None if the asset is newer, as the UI shows the check as not evaluated."""
    record = instance.get_latest_asset_check_evaluation_record(key)
    entry = record.event if record else None
    evaluation = _evaluation_in(entry)
    if entry is None or evaluation is None:
        return None
    latest = instance.get_latest_materialization_event(key.asset_key)
    if latest and latest.timestamp > entry.timestamp:
        return None
    details = evaluation.metadata.get("details")
    return details.value if details else None


def _evaluation_in(entry: dg.EventLogEntry | None) -> dg.AssetCheckEvaluation | None:
    """Return the evaluation; None if there is none, or it was only planned by a run."""
    event = entry.dagster_event if entry else None
    if event is None or event.event_type != dg.DagsterEventType.ASSET_CHECK_EVALUATION:
        return None
    return event.asset_check_evaluation_data


def _bad_files(connection: Connection, settings: Settings, now: datetime) -> list[Finding]:  # noqa: ARG001 - of files
    files = read_folder(settings.sources, check=definition_check(settings.sources))
    return [
        Finding(subject=f"{problem.path}:{problem.line}", message=f"{problem.field}: {problem.message}")
        for file in files
        for problem in file.problems
    ]


OVERDUE_SECONDS = 900  # a notice due for this long is not being sent


def _undelivered(connection: Connection, _settings: Settings, now: datetime) -> list[Finding]:
    return [
        Finding(
            subject=recipient.recipient,
            message=f"{recipient.failed} failed, {recipient.overdue} overdue: {recipient.error or 'no deliverer'}",
        )
        for recipient in undelivered(connection, now=now, overdue_seconds=OVERDUE_SECONDS)
    ]


CHECKS: dict[dg.AssetCheckKey, AssetCheck] = {  # by their keys without a prefix
    check_key(MountNames(), check.asset, check.name): check
    for check in (
        AssetCheck(
            asset="sources",
            name="files_readable",
            description="No source file has a mistake: one that has imports nothing of itself.",
            cure="`ingest sources import` names file, line and field of each mistake",
            find=_bad_files,
        ),
        *(check for system in systems() for check in system.checks),
        AssetCheck(
            asset="notices",
            name="all_delivered",
            description="No notice has failed or is overdue; a failed one waits in the dead letters for a replay.",
            cure="`ingest recipients test NAME` shows what is wrong; then `ingest dead-letters replay`",
            find=_undelivered,
        ),
    )
}


def checks_of(*assets: str) -> list[dg.AssetCheckKey]:
    """Return the checks of these assets."""
    return [key for key, check in CHECKS.items() if check.asset in assets]


def reported_checks(source_ids: Collection[str] | None) -> list[dg.AssetCheckKey]:
    """Return a poll run's checks, of requested sources their own asset's; the cost must not grow with history."""
    assets = {
        kind.asset.name
        for kind in kind_specs().values()
        if kind.asset is not None
        and (source_ids is None or any(source_id.startswith(f"{kind.name}:") for source_id in source_ids))
    }
    return [key for key in checks_of(*assets) if CHECKS[key].is_cheap]


def severity(check: AssetCheck) -> dg.AssetCheckSeverity:
    """Return how a failure of the check is shown, red or orange; neither stops a run."""
    return dg.AssetCheckSeverity.ERROR if check.holds_back else dg.AssetCheckSeverity.WARN


def _findings(ctx: RunContext, check: AssetCheck) -> list[Finding]:
    with ctx.store.read() as connection:
        return check.find(connection, ctx.settings, ctx.store.clock.now(connection))


def _definition(mount: Mount, asset_check: AssetCheck) -> dg.AssetChecksDefinition:
    def check(run_context: RunContextParam) -> dg.AssetCheckResult:
        findings = _findings(run_context, asset_check)
        metadata = evaluation_metadata(findings)
        return dg.AssetCheckResult(passed=not findings, severity=severity(asset_check), metadata=metadata)

    asset, name = mount.key(asset_check.asset), asset_check.name
    description = f"{asset_check.description} Otherwise: {asset_check.cure}."
    return dg.asset_check(asset=asset, name=name, description=description)(mount.bound(check))


def changed_checks(
    instance: dg.DagsterInstance, ctx: RunContext, keys: Iterable[dg.AssetCheckKey]
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield evaluations of the checks whose findings differ from those last reported."""
    for key in keys:
        check = CHECKS[key]
        mounted = check_key(ctx.names, check.asset, check.name)
        yield from _unless_reported(instance, mounted, _findings(ctx, check), severity(check))


def _unless_reported(
    instance: dg.DagsterInstance, key: dg.AssetCheckKey, findings: Sequence[Finding], severity: dg.AssetCheckSeverity
) -> Iterator[dg.AssetCheckEvaluation]:
    metadata = evaluation_metadata(findings)
    if last_reported(instance, key) != metadata["details"].value:
        yield dg.AssetCheckEvaluation(
            asset_key=key.asset_key, check_name=key.name, passed=not findings, severity=severity, metadata=metadata
        )


NAME = "contract"
ROWS = 5_000  # the newest rows that are checked; a run's own partitions are checked completely
ITEMS = 20_000  # the same for items of datasets; each takes some 20 microseconds
HEALTH = "source_health"

COLUMN_TYPES = {  # as Dagster calls them
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
            COLUMN_TYPES[column.holds],
            description=contract.describe(column.name),
            constraints=dg.TableColumnConstraints(unique=column.name == "id"),
        )
        for column in sorted(contract.columns(), key=lambda column: column.name not in contract.first)
    ]
    return dg.TableSchema(columns=columns)


def _severity(broken_rules: Sequence[Finding]) -> dg.AssetCheckSeverity:
    is_error = any(finding.is_error for finding in broken_rules)
    return dg.AssetCheckSeverity.ERROR if is_error else dg.AssetCheckSeverity.WARN


def _contract_check(mount: Mount, contract: Contract) -> dg.AssetChecksDefinition:
    def check(context: dg.AssetCheckExecutionContext, run_context: RunContextParam) -> dg.AssetCheckResult:
        step = context.op_execution_context
        keys = list(step.partition_keys) if step.has_partition_key or step.has_partition_key_range else None
        broken_rules = _asset_findings(run_context, contract, keys)
        return dg.AssetCheckResult(
            passed=not broken_rules, severity=_severity(broken_rules), metadata=evaluation_metadata(broken_rules)
        )

    return dg.asset_check(
        asset=mount.key(contract.asset),
        name=NAME,
        description=(
            f"What is published is as {contract.export} is described: types, ids, values. Otherwise: each finding"
            " names its cure."
        ),
    )(mount.bound(check))


def _asset_findings(ctx: RunContext, contract: Contract, keys: Sequence[str] | None) -> list[Finding]:
    """Return the findings of all rows of these partitions, else of the newest rows."""
    match contract.asset:
        case "source_health":
            with ctx.store.read() as connection:
                now = ctx.store.clock.now(connection)
                worst = source_statuses(connection, ctx.settings, now=now)[:SHOWN_SOURCES]
                return health_findings(reported(connection, worst, ctx.settings, now=now))
        case "notices":  # runs with every delivery: without pandas
            return _notice_findings(ctx, contract)
        case asset:
            of_rows = contract_findings(ctx.store, contract, keys, most=ROWS if keys is None else None)
            return [*of_rows, *_item_findings(ctx, keys)] if asset == "datasets" else of_rows


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


def health_findings(health_rows: Sequence[SourceHealthRow]) -> list[Finding]:
    """Return the contract findings of the rows that `source_health` shows."""
    contract = CONTRACTS[HEALTH]
    return findings(contract, cases_of(map(as_row, health_rows), contract))


def changed_contracts(instance: dg.DagsterInstance, ctx: RunContext) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield the contracts whose findings changed, but `source_health`, which is reported by its refresh."""
    for contract in CONTRACTS.values():
        if contract.asset != HEALTH:
            yield from changed_contract(instance, ctx, contract.asset, _asset_findings(ctx, contract, None))


def changed_contract(
    instance: dg.DagsterInstance, ctx: RunContext, asset: str, broken_rules: Sequence[Finding]
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield the evaluation of the asset's contract, unless it was already reported."""
    yield from _unless_reported(instance, check_key(ctx.names, asset, NAME), broken_rules, _severity(broken_rules))


def written_contracts(
    instance: dg.DagsterInstance, ctx: RunContext, written: Mapping[str, Sequence[str]]
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield contract evaluations of the rows that this run has written, by asset and source.

    A run with valid rows confirms a contract that held. A broken contract stays broken: other rows
    broke it, and `maintain`, which checks all of the newest, reports when they are fixed.
    """
    for asset, source_ids in written.items():
        if source_ids:
            yield from _reported_by_run(instance, ctx, asset, _run_findings(ctx, CONTRACTS[asset], source_ids))


def published_items(
    instance: dg.DagsterInstance, ctx: RunContext, source_ids: Sequence[str]
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield the contract evaluation of `datasets` for the items of these sources that are published."""
    if source_ids:
        yield from _reported_by_run(instance, ctx, "datasets", _item_findings(ctx, source_ids))


def _reported_by_run(
    instance: dg.DagsterInstance, ctx: RunContext, asset: str, broken_rules: Sequence[Finding]
) -> Iterator[dg.AssetCheckEvaluation]:
    record = instance.get_latest_asset_check_evaluation_record(check_key(ctx.names, asset, NAME))
    last = _evaluation_in(record.event if record else None)
    if broken_rules or last is None or last.passed:
        yield from changed_contract(instance, ctx, asset, broken_rules)


def _run_findings(ctx: RunContext, contract: Contract, source_ids: Sequence[str]) -> list[Finding]:
    with ctx.store.read() as connection:
        if contract.asset == "datasets":  # items that the run extracted, published or not
            folder = entity_folder(ctx.settings)
            return run_item_findings(connection, source_ids, run_id=ctx.run_id, most=ITEMS, entities=folder)
        rows = written_rows(connection, contract, source_ids, run_id=ctx.run_id)
        return findings(contract, cases_of(rows, contract))


def run_context_resource(mount: Mount) -> dg.ResourceDefinition:
    """Return the resource of the mount's run context: settings are read once per run, or per tick of a sensor."""

    def run_context(context: dg.InitResourceContext) -> Generator[RunContext]:
        run_id = context.run.run_id if context.run else None
        environment = replaced_environment(mount.environment)
        with open_run_context(environment, run_id=run_id, names=mount.names) as ctx:
            register_partition(context, ctx)
            try:
                yield ctx
            finally:
                if run_id is not None and context.instance is not None:
                    evaluate_planned_checks(context.instance, ctx, run_id)

    about = "The run context: database, settings, content store and systems, for the whole run."
    return dg.resource(description=about)(run_context)


def evaluate_planned_checks(instance: dg.DagsterInstance, ctx: RunContext, run_id: str) -> None:
    """Report the checks that a failed or cancelled run left: Dagster would show each as failed to execute."""
    planned = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED).records
    for record in planned:
        event = record.event_log_entry.dagster_event
        if event is None:
            continue
        check = event.asset_check_planned_data
        key = dg.AssetCheckKey(check.asset_key, check.check_name)
        if own_check(ctx.names, key) is None:
            continue
        latest = instance.get_latest_asset_check_evaluation_record(key)
        if _evaluation_in(latest.event if latest else None) is None:
            instance.report_runless_asset_event(_evaluation(ctx, key))


def own_check(names: MountNames, key: dg.AssetCheckKey) -> AssetCheck | Contract | None:
    """Return the check or the contract; None if it is no check of ours."""
    if (asset := own_asset(names, key.asset_key)) is None:
        return None
    if key.name == NAME:
        return CONTRACTS.get(asset)
    return CHECKS.get(check_key(MountNames(), asset, key.name))


def _evaluation(ctx: RunContext, key: dg.AssetCheckKey) -> dg.AssetCheckEvaluation:
    """Return the result of a check of ours on what is stored now."""
    check = own_check(ctx.names, key)
    if isinstance(check, AssetCheck):
        failures, shown_as = _findings(ctx, check), severity(check)
    else:
        failures = [] if check is None else _asset_findings(ctx, check, None)
        shown_as = _severity(failures)
    return dg.AssetCheckEvaluation(
        asset_key=key.asset_key,
        check_name=key.name,
        passed=not failures,
        severity=shown_as,
        metadata=evaluation_metadata(failures),
    )


REASON_CHARS = 160


def health_definitions(mount: Mount) -> dg.Definitions:
    """Return the asset `source_health`, and the checks of all assets."""
    health = dg.asset(
        key=mount.key(HEALTH),
        kinds={"sql"},
        deps=[mount.key(parent) for parent in PARENTS[HEALTH]],
        description=(
            "The health of every source, the worst first, with the reason. Freshness is a picture; objectives, queues,"
            " polls, costs and phases are plots. Changes are notified. Refreshed by the job `maintain`, which"
            " the schedule `maintenance` starts every five minutes."
        ),
        metadata={"dagster/column_schema": column_schema("source_health")},
        io_manager_key=mount.io_key,
        **mount.attributes("sources"),
    )(mount.bound(source_health))
    checks = [_definition(mount, check) for check in CHECKS.values()]
    contracts = [_contract_check(mount, contract) for contract in CONTRACTS.values()]
    return dg.Definitions(assets=[health], asset_checks=[*checks, *contracts])


def source_health(context: dg.AssetExecutionContext, run_context: RunContextParam) -> dg.MaterializeResult:
    """Measure every source, store and report changes, show the worst."""
    run = context.run
    with whole_run(run_context, run_id=run.run_id, job=run.job_name):
        with run_context.store.begin() as connection:
            record_health_changes(connection, run_context.settings, run_context.store.clock.now(connection))
        return dg.MaterializeResult(
            metadata=health_metadata(run_context, measure_health(run_context)), tags=in_sync(run_context.names, HEALTH)
        )


def refreshed(
    instance: dg.DagsterInstance, ctx: RunContext
) -> Iterator[dg.AssetMaterialization | dg.AssetCheckEvaluation]:
    """Yield the current state of the asset and the evaluation of its contract."""
    measured = measure_health(ctx)
    key = asset_key(ctx.names, HEALTH)
    yield dg.AssetMaterialization(key, metadata=health_metadata(ctx, measured), tags=in_sync(ctx.names, HEALTH))
    yield from changed_contract(instance, ctx, HEALTH, health_findings(measured.worst))


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthMeasurement:
    """The health of all sources at one moment: the worst in detail, the rest as numbers."""

    sources: int
    worst: Sequence[SourceHealthRow]
    numbers: Numbers
    grid: Grid


def measure_health(ctx: RunContext) -> HealthMeasurement:
    """Measure all sources with a few statements and store each one's health for SQL."""
    with ctx.store.read() as connection:
        now = ctx.store.clock.now(connection)
        statuses = source_statuses(connection, ctx.settings, now=now)
        states = changed_states(connection, statuses, now=now)
        worst = statuses[:SHOWN_SOURCES]
        measured = HealthMeasurement(
            sources=len(statuses),
            worst=reported(connection, worst, ctx.settings, now=now),
            numbers=numbers(connection, ctx.settings, statuses, now=now),
            grid=freshness(statuses, now=now),
        )
    if states:
        with ctx.store.begin() as connection:
            store_states(connection, states)
    return measured


def health_metadata(ctx: RunContext, measured: HealthMeasurement) -> dict[str, Any]:
    """Return numbers, table and picture of this moment."""
    numbers = _numbers(measured.numbers)
    plots = {name: value for name, value in numbers.items() if name in PLOTTED}
    details = {name.replace("_", " "): value for name, value in numbers.items() if name not in PLOTTED}
    metadata: dict[str, Any] = {"worst": dg.MetadataValue.md(health_table(measured.worst, of=measured.sources))}
    if measured.numbers.objectives:
        metadata["freshness_objectives"] = dg.MetadataValue.md(objectives_table(measured.numbers.objectives))
    if measured.grid.names and (drawn := picture(freshness_picture(measured.grid), name="freshness")) is not None:
        metadata["freshness"] = dg.MetadataValue.md(drawn)
    metadata["details"] = metadata_value(details_table(details))
    return metadata | {"dagster/row_count": measured.sources, **table_address(ctx, HEALTH)} | plots


# The numbers of `source_health` that Dagster plots; the others are its details, and metrics.
PLOTTED = frozenset(
    {
        *("sources_open", "sources_disabled", "sources_degraded", "sources_late", "sources_healthy"),
        *("due", "oldest_due_seconds", "dead_letters_open", "notices_pending"),
        *("polls", "polls_failed", "cost_30d_usd"),
        *("freshness_attainment_percent", "freshness_budget_left_percent", "freshness_budgets_spent"),
    }
)


def _numbers(numbers: Numbers) -> dict[str, int | float]:
    """Return all numbers; unknown ones, and those of a system that are 0, are left out."""
    use, polls = numbers.models, numbers.polls
    plots: dict[str, int | float] = {
        **{f"sources_{word.value}": numbers.health[word] for word in Health},
        **{f"queue_{queue.kind}": queue.depth for queue in numbers.queues},
        "due": sum(queue.due for queue in numbers.queues),
        "oldest_due_seconds": max((queue.oldest_due_seconds for queue in numbers.queues), default=0.0),
        "lost": sum(queue.lost for queue in numbers.queues),
        "retries": sum(queue.retries for queue in numbers.queues),
        "dead_letters_open": sum(numbers.dead_letters.values()),
        "polls": polls.ended,
        "polls_failed": polls.failed,
        "saved_polls": polls.unchanged,
        "saved_by_cache": use.saved_by_cache,
        "saved_by_unchanged": use.saved_by_unchanged,
        "saved_by_rules": use.saved_by_rules,
        "cost_30d_usd": rounded_usd(use.cost_usd),
        "cost_month_usd": rounded_usd(numbers.budget.held_usd),
        "notices_pending": numbers.notices_pending,
        **{f"backlog_{name}": value for name, value in asdict(numbers.backlog).items()},
    }
    system_plots = {
        "_".join((metric.name, *labels.values())): value
        for metric in numbers.systems
        for labels, value in metric.samples
        if value
    }
    if objectives := numbers.objectives:
        measured = sum(attained.measured_seconds for attained in objectives)
        late = sum(attained.late_seconds for attained in objectives)
        plots["freshness_attainment_percent"] = round(100 * (1 - late / measured), 2) if measured else 100.0
        plots["freshness_budget_left_percent"] = round(100 * objectives[0].budget_left, 1)  # of the worst
        plots["freshness_budgets_spent"] = sum(not attained.budget_left for attained in objectives)
    if (percent := numbers.budget.percent) is not None:
        plots["budget_percent"] = round(percent, 1)
    if numbers.last_tick is not None:
        plots["daemon_silent_seconds"] = round((numbers.now - numbers.last_tick).total_seconds(), 1)
    return plots | system_plots


_HEADINGS = (
    *("source", "tier", "health", "why", "last success (UTC)", "next check (UTC)"),
    *("changes a day (sure)", "coverage", "failures", "30 days, $"),
)


def health_table(rows: Sequence[SourceHealthRow], *, of: int) -> str:
    """Return the worst as a Markdown table; text of other sites in it is escaped."""
    if not rows:
        return "no sources"
    lines = [f"| {' | '.join(_HEADINGS)} |", "|" + "---|" * len(_HEADINGS)]
    lines += [f"| {' | '.join(_cells(row))} |" for row in rows]
    if of > len(rows):
        lines.append(f"\nand {of - len(rows)} more that are no worse")
    return "\n".join(lines)


def _cells(row: SourceHealthRow) -> tuple[str, ...]:
    rate = row.change_rate
    by_class = ", ".join(f"{name} {count}" for name, count in sorted(row.failures.items()))
    return (
        plain(row.id, limit=120),
        row.tier,
        f"**{row.health.value}**",
        breakable(plain(row.why, limit=REASON_CHARS)),
        _whole(moment(row.last_success_at)),
        _whole(moment(row.next_check_at)),
        "" if rate is None else str(rate),
        "" if row.coverage is None else str(row.coverage),
        by_class,
        f"{row.cost_30d_usd:.2f}" if row.cost_30d_usd else "",
    )


def objectives_table(objectives: Sequence[Attainment]) -> str:
    """Return the sources with the least error budget as a Markdown table."""
    lines = ["| source | max delay | fresh in 30 days | objective | error budget left |", "|---|---|---|---|---|"]
    lines += [
        f"| {plain(attained.source_id, limit=120)} | {duration_text(attained.max_delay)}"
        f" | {_whole(f'{100 * attained.share:.2f} %')} | {_whole(f'{100 * attained.target:g} %')}"
        f" | {'**spent**' if not attained.budget_left else _whole(f'{100 * attained.budget_left:.0f} %')} |"
        for attained in objectives[:SHOWN_SOURCES]
    ]
    return "\n".join(lines)


def _whole(text: str) -> str:
    """Return the text without break opportunities, for narrow columns."""
    return text.replace(" ", "\N{NO-BREAK SPACE}").replace("-", "\N{NON-BREAKING HYPHEN}")


def breakable(text: str) -> str:
    """Return Markdown whose URLs may be broken at each slash: one long word would push columns off the page."""
    return text.replace("/", "/\N{ZERO WIDTH SPACE}")
