"""Asset check evaluations: their metadata, what was last reported, and when a run fails."""

from collections.abc import Sequence

import dagster as dg

from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.sources.health import Finding, summary


def evaluation_metadata(findings: Sequence[Finding]) -> dict[str, dg.MetadataValue]:
    """Return the number of findings and a summary of the first."""
    return {
        "findings": dg.MetadataValue.int(len(findings)),
        "details": dg.MetadataValue.text(summary(findings)[:2_000] or "nothing to report"),
    }


def last_reported(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> object:
    """Return the details last reported to Dagster; None if the asset was materialized since.

    (The UI shows a check that is older than its asset as not evaluated.)
    """
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


def last_evaluation(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> dg.AssetCheckEvaluation | None:
    """Return the last evaluation; None if there is none, or it was only planned by a run."""
    record = instance.get_latest_asset_check_evaluation_record(key)
    return _evaluation_in(record.event if record else None)


def _evaluation_in(entry: dg.EventLogEntry | None) -> dg.AssetCheckEvaluation | None:
    event = entry.dagster_event if entry else None
    if event is None or event.event_type != dg.DagsterEventType.ASSET_CHECK_EVALUATION:
        return None
    return event.asset_check_evaluation_data


def network_problem(fetcher: HttpFetcher) -> str | None:
    """Return the outage of our own that the run met; None if it met none."""
    return fetcher.network.problem if fetcher.network is not None else None


def fail(problem: str | None) -> None:
    """Fail the run if there is a problem; what it released is claimed by a later run."""
    if problem is not None:
        raise dg.Failure(problem, allow_retries=False)
