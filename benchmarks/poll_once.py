"""`python -m benchmarks.poll_once bare|dagster|rounds N`: poll what is due in this process.

`bare` calls the functions that the ops call, until nothing is due; `dagster` is one run of `poll_hot` on the instance
of DAGSTER_HOME, as a run worker does it. `rounds` makes all sources due and runs `poll_hot`, N times, and prints after
each round how many bytes of memory the process holds.
"""

import asyncio
import resource
import sys
from pathlib import Path

from benchmarks.polls import make_due
from ingestion_pipeline.bootstrap import open_fetcher, open_run_context
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.ingesting import extract_batch, ingest_batch
from ingestion_pipeline.engine.poll_handler import PollRunResult, fetch_feeds
from ingestion_pipeline.sources import Tier
from ingestion_pipeline.sources.poll_tasks import POLL
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker


def bare() -> None:
    """Fetch, extract and ingest, without Dagster."""
    with open_run_context() as ctx:
        while True:
            worker = Worker(ctx.store, lease_seconds=ctx.settings.work.lease_seconds)
            fetched = asyncio.run(_fetch(ctx, worker))
            for batch_id in fetched.batch_ids:
                extract_batch(ctx, worker, batch_id)
            for batch_id in fetched.batch_ids:
                ingest_batch(ctx, worker, batch_id)
            if not fetched.counts.changed + fetched.counts.unchanged:
                return


async def _fetch(ctx: RunContext, worker: Worker) -> PollRunResult:
    async with open_fetcher(ctx.settings) as fetcher:
        wanted = ClaimFilter(kind=POLL, priority=Tier.HOT.priority)
        return await fetch_feeds(ctx, worker, fetcher, wanted)


def dagster() -> None:
    """One run of the job."""
    from ingestion_pipeline import defs  # as Dagster asks for it
    from ingestion_pipeline.orchestration.runs import run_job

    has_succeeded, errors = run_job(defs, "poll_hot")
    if not has_succeeded:
        raise SystemExit("\n".join(["the run failed", *errors]))


def rounds(count: int) -> None:
    """Poll all sources so many times in this process; print the resident set after each round."""
    for _ in range(count):
        with open_run_context() as ctx:
            make_due(ctx.store)
        dagster()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        print(pages * resource.getpagesize(), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "rounds":
        rounds(int(sys.argv[2]))
    else:
        {"bare": bare, "dagster": dagster}[sys.argv[1]]()
