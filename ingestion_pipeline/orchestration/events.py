"""What Dagster is told of a source: one materialization, with numbers that become plots."""

from collections.abc import Collection, Mapping
from datetime import datetime

import dagster as dg

from ingestion_pipeline.series.reporting import SourceReport
from ingestion_pipeline.sources import Source, SourceStatus


def materialization(report: SourceReport) -> dg.AssetMaterialization:
    """The source's chapters as they stand; texts of strangers only ever as plain text."""
    metadata: dict[str, dg.MetadataValue] = {
        "outcome": dg.MetadataValue.text(report.outcome[:2_000]),
        "series": dg.MetadataValue.text(report.series_title[:200]),
        "url": dg.MetadataValue.url(report.url),
        "tier": dg.MetadataValue.text(report.tier),
        "new_chapters": dg.MetadataValue.int(report.new_chapters),
        "available_chapters": dg.MetadataValue.int(report.available_chapters),
        "dagster/partition_row_count": dg.MetadataValue.int(report.available_chapters),
    }
    if report.latest_chapter is not None:
        metadata["latest_chapter"] = dg.MetadataValue.float(float(report.latest_chapter))
    return dg.AssetMaterialization(
        asset_key="chapters", partition=report.source_id, metadata=metadata
    )


def is_fresh(source: Source, *, since: datetime) -> bool:
    """Whether the source was checked, with success, since then."""
    return source.last_success_at is not None and source.last_success_at >= since


def why_late(source: Source, *, since: datetime) -> str:
    """What kept the source from succeeding since then; an older outcome says nothing about it."""
    if source.last_checked_at is not None and source.last_checked_at >= since:
        return f"{source.id}: {source.last_outcome or 'failed'}"
    why = "another run has it or its host at this moment, or it waits for a retry"
    return f"{source.id}: {why}; `ingest sources show {source.id}` says which"


def refuse_unknown(keys: Collection[str], known: Mapping[str, Source]) -> None:
    """Each key is a source's, or the run ends here: no partition is made for a slip of the pen."""
    missing = [key for key in keys if key not in known]
    if missing:
        raise dg.Failure(
            f"there is no source {', '.join(missing[:5])}: declare it in a source file, or"
            " `ingest sources add`; `ingest sources list` shows all",
            allow_retries=False,
        )


def refuse_unusable(keys: Collection[str], known: Mapping[str, Source]) -> None:
    """A run that was asked only for what cannot be polled says so at once."""
    refuse_unknown(keys, known)
    off = [one for one in known.values() if one.status is SourceStatus.DISABLED]
    if known and len(off) == len(known):
        said = "; ".join(f"{one.id} ({one.status_reason or 'disabled'})" for one in off[:5])
        raise dg.Failure(
            f"disabled: {said}; `ingest sources enable ID` enables one", allow_retries=False
        )
