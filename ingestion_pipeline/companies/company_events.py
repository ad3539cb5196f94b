"""What is reported of the assets `companies`, `job_listings` and `job_matches`."""

from collections.abc import Collection, Mapping, Sequence
from io import BytesIO
from typing import Any

from sqlalchemy import Connection

from ingestion_pipeline.companies.reports import (
    BIN_WIDTH,
    BoardReport,
    CompanyReport,
    ListingSummary,
    MatchReport,
    board_reports,
)
from ingestion_pipeline.engine.asset_events import (
    AssetEvent,
    EventValue,
    Markdown,
    Url,
    moment,
    picture,
    plain,
    preview_table,
)
from ingestion_pipeline.extras import is_installed

MATCH_COLUMNS = ("score", "priority", "title", "company", "location", "reason", "url")


def company_event(report: CompanyReport) -> AssetEvent:
    """Return the event of the company with its facts and score."""
    row, quality = report.row, report.row["quality"]
    points: Mapping[str, int] = row["score_parts"] or {}
    metadata: dict[str, EventValue] = {
        "outcome": str(quality.get("level")),
        "website": Url(row["website"]),
        "pages": len(quality.get("pages", ())),
        "pages_failed": dict(quality.get("pages_failed", {})),
        "missing": ", ".join(quality.get("missing", ())) or "nothing",
        "technologies": row["tech_stack"] or {},
        "boards": Markdown(_board_table(row["boards"] or [])),
        "boards_found": len(row["boards"] or []),
        "score": row["score"] or 0,
        "tier": row["tier"] or "",
        "refused_spawns": len(report.refusals),
        "cost_usd": float(report.cost_usd),
    }
    metadata |= {f"facts_by_{method}": count for method, count in report.facts_by_method.items()}
    metadata |= {f"points_{part}": count for part, count in points.items()}
    return AssetEvent(asset="companies", partition=row["source_id"], metadata=metadata)


def _board_table(boards: list[dict[str, Any]]) -> str:
    if not boards:
        return "no boards"
    lines = [
        f"| {plain(board['platform'])} | {plain(board['url'])} | {board['confidence']}"
        f" | {plain(board.get('source_id') or board.get('note') or 'waits for its discovery')} |"
        for board in boards
    ]
    return "\n".join(["| platform | board | confidence | source |", "|---|---|---|---|", *lines])


def board_events(connection: Connection, source_ids: Collection[str]) -> list[AssetEvent]:
    """Return the event of each board."""
    return [_board_event(report) for report in board_reports(connection, source_ids)]


def _board_event(report: BoardReport) -> AssetEvent:
    """Return the event of the board's jobs and of what happened since its last event."""
    metadata: dict[str, EventValue] = {
        "outcome": report.outcome[:2_000],
        "url": Url(report.url),
        "tier": report.tier,
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
        "filtered_by_reason": Markdown(reason_table(report.filtered)),
        "newest": Markdown(listing_table(report.newest)),
    }
    if report.company:
        metadata["company"] = report.company[:200]
    return AssetEvent(asset="job_listings", partition=report.source_id, metadata=metadata)


def reason_table(reasons: Mapping[str, int]) -> str:
    """Return why jobs were filtered, the commonest reason first."""
    if not reasons:
        return "nothing was filtered"
    most_first = sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))
    return "\n".join(["| reason | jobs |", "|---|--:|", *(f"| {plain(why)} | {n} |" for why, n in most_first)])


def listing_table(listings: Sequence[ListingSummary]) -> str:
    """Return the jobs as a Markdown table, in the order given."""
    if not listings:
        return "no jobs"
    lines = ["| job | company | where | posted (UTC) | decision | |", "|---|---|---|---|---|---|"]
    for listing in listings:
        cells = (
            plain(listing.title),
            plain(listing.company, limit=40),
            plain(listing.location, limit=40),
            moment(listing.posted_at),
            listing.decision or "",
        )
        lines.append(f"| {' | '.join(cells)} | {'**new**' if listing.is_new else ''} |")
    return "\n".join(lines)


def match_event(report: MatchReport) -> AssetEvent:
    """Return the event of the board's funnel; numbers, since Dagster plots them."""
    metadata: dict[str, EventValue] = {
        **{name: getattr(report, name) for name in ("listings", "waiting", "filtered", "skipped", "matched")},
        **{f"filtered_by_{name}": count for name, count in report.filtered_by.items()},
    }
    if report.scores:
        image = picture(histogram(report), name="scores")
        metadata |= {"scores": image} if image else {}
    if report.best:
        rows = [{name: match[name] for name in MATCH_COLUMNS} for match in report.best]
        metadata["best_matches"] = preview_table(rows, cell_chars=200)
    return AssetEvent(asset="job_matches", partition=report.source_id, metadata=metadata)


def histogram(report: MatchReport) -> bytes:
    """Return a PNG of how many listings of the board have which score; nothing without the extra `plots`."""
    if not is_installed("matplotlib"):
        return b""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 2.5), dpi=90, layout="constrained")
    canvas: Any = FigureCanvasAgg(figure)
    axes: Any = figure.add_subplot()
    starts = list(range(0, 100, BIN_WIDTH))
    heights = [report.scores.get(start, 0) for start in starts]
    axes.bar(starts, heights, width=BIN_WIDTH * 0.9, align="edge", color="#4c72b0")
    axes.set_xlim(0, 100)
    axes.set_xlabel("score")
    axes.set_ylabel("listings")
    axes.yaxis.get_major_locator().set_params(integer=True)
    drawn = BytesIO()
    canvas.print_png(drawn)
    return drawn.getvalue()
