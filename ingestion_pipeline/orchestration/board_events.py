"""What Dagster is told of a job board: its funnel as numbers, its newest jobs as a table."""

from collections.abc import Mapping, Sequence

import dagster as dg

from ingestion_pipeline.companies.boards.reporting import BoardReport, ShownListing
from ingestion_pipeline.orchestration.previews import moment, plain


def board_materialization(report: BoardReport) -> dg.AssetMaterialization:
    """The board's jobs as they stand, and what happened since the last event of its own."""
    counts = {
        "polled": report.polls,
        "changed": report.changes,
        "found": report.found,
        "new": report.new,
        "duplicate": report.duplicate,
        "updated": report.updated,
        "closed": report.closed,
        "filtered": sum(report.filtered.values()),
        "skipped": report.skipped,
        "matched": report.matched,
        "not_judged_yet": report.waiting,
    }
    metadata: dict[str, dg.MetadataValue] = {
        "outcome": dg.MetadataValue.text(report.outcome[:2_000]),
        "url": dg.MetadataValue.url(report.url),
        "tier": dg.MetadataValue.text(report.tier),
        **{name: dg.MetadataValue.int(count) for name, count in counts.items()},
        "filtered_by_reason": dg.MetadataValue.md(reason_table(report.filtered)),
        "newest": dg.MetadataValue.md(listing_table(report.newest)),
    }
    if report.company:
        metadata["company"] = dg.MetadataValue.text(report.company[:200])
    return dg.AssetMaterialization(
        asset_key="job_listings", partition=report.source_id, metadata=metadata
    )


def reason_table(reasons: Mapping[str, int]) -> str:
    """Why jobs were filtered, the commonest reason first."""
    if not reasons:
        return "nothing was filtered"
    most_first = sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))
    return "\n".join(
        ["| reason | jobs |", "|---|--:|", *(f"| {plain(why)} | {n} |" for why, n in most_first)]
    )


def listing_table(listings: Sequence[ShownListing]) -> str:
    """The jobs as a Markdown table, in the order given."""
    if not listings:
        return "no jobs"
    lines = ["| job | company | where | posted (UTC) | verdict | |", "|---|---|---|---|---|---|"]
    for one in listings:
        cells = (
            plain(one.title),
            plain(one.company, limit=40),
            plain(one.location, limit=40),
            moment(one.posted_at),
            one.verdict or "",
        )
        lines.append(f"| {' | '.join(cells)} | {'**new**' if one.is_new else ''} |")
    return "\n".join(lines)
