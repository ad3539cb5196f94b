"""Checks of the asset `chapters`: run from the UI, and told by poll runs when they change."""

from collections.abc import Callable, Iterator, Sequence

import dagster as dg

from ingestion_pipeline.orchestration.resources import WorkshopResource
from ingestion_pipeline.pages.workshop import Workshop
from ingestion_pipeline.series import checks
from ingestion_pipeline.series.checks import Finding

CHAPTERS = dg.AssetKey("chapters")


def _gaps(shop: Workshop) -> list[Finding]:
    with shop.store.read() as connection:
        return checks.gaps(connection)


def _quarantined(shop: Workshop) -> list[Finding]:
    with shop.store.read() as connection:
        return checks.quarantined(connection)


def _stale(shop: Workshop) -> list[Finding]:
    with shop.store.read() as connection:
        now = shop.store.clock.now(connection)
        return checks.stale(connection, now=now, settings=shop.settings)


FINDERS: dict[str, tuple[Callable[[Workshop], list[Finding]], str]] = {
    "no_gaps": (_gaps, "No whole chapter number is missing between a series' first and latest."),
    "not_empty_after_full": (
        _quarantined,
        "No listing is quarantined for being empty, or for having lost most of its chapters.",
    ),
    "sources_fresh": (_stale, "Every source succeeded within three of its intervals."),
}


def _result(findings: Sequence[Finding]) -> dict[str, dg.MetadataValue]:
    return {
        "findings": dg.MetadataValue.int(len(findings)),
        "details": dg.MetadataValue.text(checks.summary(findings)[:2_000] or "nothing to report"),
    }


def _check(name: str) -> dg.AssetChecksDefinition:
    finder, description = FINDERS[name]

    @dg.asset_check(asset=CHAPTERS, name=name, description=description)
    def check(workshop: WorkshopResource) -> dg.AssetCheckResult:
        with workshop.open() as shop:
            findings = finder(shop)
        return dg.AssetCheckResult(
            passed=not findings, severity=dg.AssetCheckSeverity.WARN, metadata=_result(findings)
        )

    return check


CHAPTER_CHECKS = [_check(name) for name in FINDERS]


def changed_checks(
    instance: dg.DagsterInstance, shop: Workshop
) -> Iterator[dg.AssetCheckEvaluation]:
    """Evaluations of the checks whose findings differ from what Dagster was last told."""
    for name, (finder, _) in FINDERS.items():
        metadata = _result(findings := finder(shop))
        if _told(instance, name) == metadata["details"].value:
            continue
        yield dg.AssetCheckEvaluation(
            asset_key=CHAPTERS,
            check_name=name,
            passed=not findings,
            severity=dg.AssetCheckSeverity.WARN,
            metadata=metadata,
        )


def _told(instance: dg.DagsterInstance, name: str) -> object:
    record = instance.get_latest_asset_check_evaluation_record(
        dg.AssetCheckKey(asset_key=CHAPTERS, name=name)
    )
    event = record.event.dagster_event if record and record.event else None
    if event is None or event.event_type != dg.DagsterEventType.ASSET_CHECK_EVALUATION:
        return None  # never told, or only planned, as by a run of the asset itself
    details = event.asset_check_evaluation_data.metadata.get("details")
    return details.value if details else None
