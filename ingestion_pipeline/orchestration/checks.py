"""Asset checks: run from the UI, and reported by runs when their findings change."""

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime

import dagster as dg
from sqlalchemy import Connection

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.system_spec import AssetCheck
from ingestion_pipeline.notices.queries import undelivered
from ingestion_pipeline.orchestration.check_events import evaluation_metadata, last_reported
from ingestion_pipeline.orchestration.resources import RunContextParam
from ingestion_pipeline.registry import definition_check, kind_specs, systems
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.files import read_folder
from ingestion_pipeline.sources.health import Finding


def _bad_files(connection: Connection, settings: Settings, now: datetime) -> list[Finding]:  # noqa: ARG001 - of files
    files = read_folder(settings.sources, check=definition_check(settings.sources))
    return [
        Finding(subject=f"{problem.path}:{problem.line}", message=f"{problem.field}: {problem.message}")
        for file in files
        for problem in file.problems
    ]


def _undelivered(connection: Connection, settings: Settings, now: datetime) -> list[Finding]:
    recipients = undelivered(connection, now=now, overdue_seconds=settings.notices.overdue_seconds)
    return [
        Finding(
            subject=recipient.recipient,
            message=f"{recipient.failed} failed, {recipient.overdue} overdue: {recipient.error or 'no deliverer'}",
        )
        for recipient in recipients
    ]


CHECKS: dict[dg.AssetCheckKey, AssetCheck] = {
    dg.AssetCheckKey(dg.AssetKey(check.asset), check.name): check
    for check in (
        AssetCheck(
            asset="sources",
            name="files_readable",
            description="No source file has a mistake: one that has imports nothing of itself.",
            find=_bad_files,
        ),
        *(check for system in systems() for check in system.checks),
        AssetCheck(
            asset="notices",
            name="all_delivered",
            description="No notice has failed or is overdue; a failed one waits in the dead letters for a replay.",
            find=_undelivered,
        ),
    )
}


def checks_of(*assets: str) -> list[dg.AssetCheckKey]:
    """Return the checks of these assets."""
    return [key for key, check in CHECKS.items() if check.asset in assets]


def reported_checks(source_ids: Collection[str] | None) -> list[dg.AssetCheckKey]:
    """Return the checks a poll run reports; of requested sources only their own asset's.

    They are cheap: the cost of a poll must not grow with history.
    """
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


def _definition(key: dg.AssetCheckKey, asset_check: AssetCheck) -> dg.AssetChecksDefinition:
    @dg.asset_check(asset=key.asset_key, name=key.name, description=asset_check.description)
    def check(run_context: RunContextParam) -> dg.AssetCheckResult:
        findings = _findings(run_context, asset_check)
        metadata = evaluation_metadata(findings)
        return dg.AssetCheckResult(passed=not findings, severity=severity(asset_check), metadata=metadata)

    return check


ASSET_CHECKS = [_definition(key, check) for key, check in CHECKS.items()]


def changed_checks(
    instance: dg.DagsterInstance, ctx: RunContext, keys: Iterable[dg.AssetCheckKey]
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield evaluations of the checks whose findings differ from those last reported."""
    for key in keys:
        findings = _findings(ctx, CHECKS[key])
        metadata = evaluation_metadata(findings)
        if last_reported(instance, key) == metadata["details"].value:
            continue
        yield dg.AssetCheckEvaluation(
            asset_key=key.asset_key,
            check_name=key.name,
            passed=not findings,
            severity=severity(CHECKS[key]),
            metadata=metadata,
        )
