"""The asset `job_matches` and the job `process_listings`: one op that judges what waits."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from io import BytesIO
from typing import Any

import dagster as dg

from ingestion_pipeline.bootstrap import open_fetcher
from ingestion_pipeline.companies.matching.reporting import BIN_WIDTH, MatchReport, match_report
from ingestion_pipeline.companies.matching.runs import MatchedSlice, match_slice
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.orchestration import heartbeat, resources
from ingestion_pipeline.orchestration.check_events import fail_if_network_down, network_problem
from ingestion_pipeline.orchestration.contracts import written_contracts
from ingestion_pipeline.orchestration.datasets import preview_table
from ingestion_pipeline.orchestration.events import picture
from ingestion_pipeline.orchestration.partitioned import worked_out
from ingestion_pipeline.orchestration.partitions import JOB_BOARDS, register_keys
from ingestion_pipeline.orchestration.requested import admit, asked_or_due
from ingestion_pipeline.orchestration.resources import RunContextResource
from ingestion_pipeline.sources import Kind
from ingestion_pipeline.tasks.worker import Worker

LISTINGS_SHARD = "listings"  # one run over listings at a time
SHOWN = ("score", "priority", "title", "company", "location", "reason", "url")


@dg.op(ins={"listings": dg.In(dg.Nothing)}, out=dg.Out(is_required=False), tags={"kind": "judge"})
def judge(context: dg.OpExecutionContext, workshop: RunContextResource) -> Iterator[Any]:
    """Judge every listing that waits, or those of the partitions asked for; tell of their boards.

    Each event is logged here: an output of the asset's own would be one more.
    """
    keys = asked_or_due(context, resources.SHARD, "job_board")
    with workshop.open() as shop:
        if keys is not None:
            admit(context, shop, keys, only=Kind.JOB_BOARD)
        with heartbeat.working(shop, run_id=context.run_id, job=context.job_name) as worker:
            done, problem = asyncio.run(_judge(shop, worker, keys))
        heartbeat.end(shop.store, run_id=context.run_id)
        numbers = asdict(done.counts) | {"rejudged": done.rejudged, "closed": done.closed}
        context.log.info("%s", ", ".join(f"{name} {count}" for name, count in numbers.items()))
        if done.problem is not None:
            context.log.warning("%s", done.problem)
        told = sorted(done.boards) if keys is None else keys
        reports = _reports(shop, told[: shop.settings.polling.reported_events])
        register_keys(context.instance, JOB_BOARDS.name or "", [one.source_id for one in reports])
        yield from map(_materialization, reports)
        ids = [one.source_id for one in reports]
        yield from written_contracts(context.instance, shop, ["job_matches"], ids)
    fail_if_network_down(problem)
    if keys is None:
        yield dg.Output(None, metadata=numbers)


async def _judge(
    shop: RunContext, worker: Worker, keys: list[str] | None
) -> tuple[MatchedSlice, str | None]:
    async with open_fetcher(shop.settings) as fetcher:
        done = await match_slice(shop, worker, fetcher, source_ids=keys)
        return done, network_problem(fetcher)


def _reports(shop: RunContext, keys: Sequence[str]) -> list[MatchReport]:
    with shop.store.read() as connection:
        return [match_report(connection, key) for key in keys]


def _materialization(report: MatchReport) -> dg.AssetMaterialization:
    """The board's funnel as it stands; numbers, since Dagster plots them."""
    counts = {
        "listings": report.listings,
        "waiting": report.waiting,
        "filtered": report.filtered,
        "skipped": report.skipped,
        "matched": report.matched,
    }
    counts |= {f"filtered_by_{name}": count for name, count in report.filtered_by.items()}
    metadata: dict[str, dg.MetadataValue] = {
        name: dg.MetadataValue.int(count) for name, count in counts.items()
    }
    if report.scores:
        shown = picture(histogram(report), name="scores")
        metadata |= {"scores": dg.MetadataValue.md(shown)} if shown else {}
    if report.best:
        rows = [{name: one[name] for name in SHOWN} for one in report.best]
        metadata["best_matches"] = preview_table(rows, cell_chars=200)
    return dg.AssetMaterialization("job_matches", partition=report.source_id, metadata=metadata)


def histogram(report: MatchReport) -> bytes:
    """How many listings of the board have which score, as a PNG."""
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


@worked_out(
    "job_matches",
    of=JOB_BOARDS,
    follows=("listings", "job_listings"),
    group="companies",
    kinds={"python", "sql"},
    description=(
        "Which listings of a board fit the profile, one partition a board. Materializing judges"
        " what waits of it now, and anew what was judged by other rules; `process_listings` does"
        " so for all boards as listings come."
    ),
)
def job_matches(listings: None) -> None:
    """Judge the partitions asked for."""
    return judge(listings)


@dg.job(
    tags={resources.SHARD: LISTINGS_SHARD},
    description="Judge the listings that wait: stop lists, filter, score, match.",
)
def process_listings() -> None:
    """One op."""
    judge()
