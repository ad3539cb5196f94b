"""The job `detect_recipes`: one op that finds out how catalogues are to be read."""

import asyncio
from dataclasses import asdict

import dagster as dg

from ingestion_pipeline.assembly import open_fetcher, renderer_if_any
from ingestion_pipeline.catalogs.detection.working import DetectionCounts, detect_slice
from ingestion_pipeline.orchestration import heartbeat, tags
from ingestion_pipeline.orchestration.resources import RunContextResource
from ingestion_pipeline.orchestration.verdicts import (
    fail_if_all_failed,
    fail_if_network_down,
    network_problem,
)
from ingestion_pipeline.pages.workshop import RunContext
from ingestion_pipeline.work.worker import Worker

DETECT_SHARD = "detect"  # one detecting run at a time


@dg.op(tags={"kind": "detect"})
def detect(context: dg.OpExecutionContext, workshop: RunContextResource) -> dg.Output[None]:
    """Look at every catalogue that waits for a recipe; one that has none does not fail the run."""
    with workshop.open() as shop:
        with heartbeat.working(shop, run_id=context.run_id, job=context.job_name) as worker:
            counts, problem = asyncio.run(_detect(shop, worker))
        heartbeat.end(shop.store, run_id=context.run_id)
    numbers = asdict(counts)
    context.log.info("%s", ", ".join(f"{name} {count}" for name, count in numbers.items()))
    fail_if_network_down(problem)
    fail_if_all_failed(numbers, "detections")
    return dg.Output(None, metadata=numbers)


async def _detect(shop: RunContext, worker: Worker) -> tuple[DetectionCounts, str | None]:
    async with (
        open_fetcher(shop.settings) as fetcher,
        renderer_if_any(shop.settings, clock=shop.store.now) as renderer,
    ):
        counts = await detect_slice(shop, worker, fetcher, renderer=renderer)
        return counts, network_problem(fetcher)


@dg.job(
    tags={tags.SHARD: DETECT_SHARD},
    description="Find out how catalogues without a recipe are to be read: platforms, rules, votes.",
)
def detect_recipes() -> None:
    """One op."""
    detect()
