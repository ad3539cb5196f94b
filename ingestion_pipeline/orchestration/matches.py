"""The asset `job_matches` and the job `process_listings`."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from io import BytesIO
from typing import Any

import dagster as dg

from ingestion_pipeline.bootstrap import open_fetcher
from ingestion_pipeline.companies.matching.reporting import BIN_WIDTH, MatchReport, match_report
from ingestion_pipeline.companies.matching.runs import MatchRunResult, match_listings
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.orchestration import heartbeat, resources
from ingestion_pipeline.orchestration.check_events import fail_if_network_down, network_problem
from ingestion_pipeline.orchestration.contracts import written_contracts
from ingestion_pipeline.orchestration.datasets import preview_table
from ingestion_pipeline.orchestration.events import picture
from ingestion_pipeline.orchestration.partitioned import partitioned_asset
from ingestion_pipeline.orchestration.partitions import JOB_BOARDS, register_keys
from ingestion_pipeline.orchestration.requested import admit, requested_or_due_keys
from ingestion_pipeline.orchestration.resources import RunContextResource
from ingestion_pipeline.settings.logs import key_values
from ingestion_pipeline.sources import Kind
from ingestion_pipeline.tasks.worker import Worker

LISTINGS_SHARD = "listings"  # one run over listings at a time
SHOWN = ("score", "priority", "title", "company", "location", "reason", "url")


@dg.op(ins={"listings": dg.In(dg.Nothing)}, out=dg.Out(is_required=False), tags={"kind": "judge"})
def judge(context: dg.OpExecutionContext, run_context: RunContextResource) -> Iterator[Any]:
    """Evaluate every waiting listing, or those of the requested partitions, and report boards.

    Each event is logged here: an output of the asset's own would be one more.
    """
    keys = requested_or_due_keys(context, resources.SHARD, "job_board")
    with run_context.open() as ctx:
        if keys is not None:
            admit(context, ctx, keys, only=Kind.JOB_BOARD)
        with heartbeat.working(ctx, run_id=context.run_id, job=context.job_name) as worker:
            done, problem = asyncio.run(_judge(ctx, worker, keys))
        heartbeat.end_run(ctx.store, run_id=context.run_id)
        numbers = asdict(done.counts) | {"rejudged": done.rejudged, "closed": done.closed}
        context.log.info("matching run finished %s", key_values(numbers))
        if done.problem is not None:
            context.log.warning("%s", done.problem)
        board_ids = sorted(done.boards) if keys is None else keys
        reports = _reports(ctx, board_ids[: ctx.settings.polling.reported_events])
        register_keys(context.instance, JOB_BOARDS.name or "", [report.source_id for report in reports])
        yield from map(_materialization, reports)
        ids = [report.source_id for report in reports]
        yield from written_contracts(context.instance, ctx, ["job_matches"], ids)
    fail_if_network_down(problem)
    if keys is None:
        yield dg.Output(None, metadata=numbers)


async def _judge(ctx: RunContext, worker: Worker, keys: list[str] | None) -> tuple[MatchRunResult, str | None]:
    async with open_fetcher(ctx.settings) as fetcher:
        done = await match_listings(ctx, worker, fetcher, source_ids=keys)
        return done, network_problem(fetcher)


def _reports(ctx: RunContext, keys: Sequence[str]) -> list[MatchReport]:
    with ctx.store.read() as connection:
        return [match_report(connection, key) for key in keys]


def _materialization(report: MatchReport) -> dg.AssetMaterialization:
    """Return the event of the board's funnel; numbers, since Dagster plots them."""
    counts = {
        "listings": report.listings,
        "waiting": report.waiting,
        "filtered": report.filtered,
        "skipped": report.skipped,
        "matched": report.matched,
    }
    counts |= {f"filtered_by_{name}": count for name, count in report.filtered_by.items()}
    metadata: dict[str, dg.MetadataValue] = {name: dg.MetadataValue.int(count) for name, count in counts.items()}
    if report.scores:
        image = picture(histogram(report), name="scores")
        metadata |= {"scores": dg.MetadataValue.md(image)} if image else {}
    if report.best:
        rows = [{name: match[name] for name in SHOWN} for match in report.best]
        metadata["best_matches"] = preview_table(rows, cell_chars=200)
    return dg.AssetMaterialization("job_matches", partition=report.source_id, metadata=metadata)


def histogram(report: MatchReport) -> bytes:
    """Return a PNG of how many listings of the board have which score."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 2.5), dpi=90, layout="constrained")
    canvas = FigureCanvasAgg(figure)
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


@partitioned_asset(
    "job_matches",
    of=JOB_BOARDS,
    follows=("listings", "job_listings"),
    group="companies",
    kinds={"python", "sql"},
    description=(
        "Which listings of a board fit the profile, one partition a board. Materializing"
        " evaluates its waiting listings now, and again those evaluated by other rules;"
        " `process_listings` does so for all boards as listings arrive."
    ),
)
def job_matches(listings: None) -> None:
    """Evaluate the requested partitions."""
    return judge(listings)


@dg.job(
    tags={resources.SHARD: LISTINGS_SHARD}, description="Evaluate waiting listings: stop lists, filter, score, match."
)
def process_listings() -> None:
    """Run `judge`."""
    judge()
