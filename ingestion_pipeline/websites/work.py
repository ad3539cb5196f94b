"""The work of websites: analyses in three phases, each of which is an asset."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.system_spec import WorkAsset, WorkJob, WorkReport, WorkRun, WorkSpec, all_failed
from ingestion_pipeline.websites.events import analysis_events
from ingestion_pipeline.websites.metrics import phase_metrics
from ingestion_pipeline.websites.reporting import latest_reports, reports_since
from ingestion_pipeline.websites.runs.starting import request_analyses
from ingestion_pipeline.websites.runs.system import is_work_waiting, run_analyses, start_first_analyses
from ingestion_pipeline.websites.states import WEBSITE_ANALYSIS, WEBSITE_INFO, WEBSITE_PROMPTS


async def _analyze(run: WorkRun) -> WorkReport:
    """Process waiting analyses, or those of the requested websites, and report finished phases."""
    ctx, keys, since = run.ctx, run.scope.source_ids, run.ctx.store.now()
    counts = await run_analyses(ctx, run.worker, run.fetcher, source_ids=keys, renderer=run.renderer)
    with ctx.store.read() as connection:
        limit = ctx.settings.polling.reported_events
        reports = reports_since(connection, since=since, source_ids=keys, limit=limit)
    ids = [report.source_id for report in reports]
    return WorkReport(
        numbers=_numbers(ctx, counts),
        events=[event for report in reports for event in analysis_events(report)],
        written=dict.fromkeys((WEBSITE_INFO, WEBSITE_PROMPTS, WEBSITE_ANALYSIS), ids),
        failure=all_failed(counts, "website phases") if keys is None else _requested_failure(ctx, keys),
    )


def _numbers(ctx: RunContext, counts: Counter[str]) -> dict[str, Any]:
    """Return what the run did, and the metrics of every phase."""
    with ctx.store.read() as connection:
        phases = phase_metrics(connection, now=ctx.store.clock.now(connection))
    numbers: dict[str, Any] = dict(sorted(counts.items()))
    for phase in phases:
        name = phase.queue.replace("-", "_")
        facts = {key: value for key, value in asdict(phase).items() if key != "queue"}
        numbers |= {f"{name}_{key}": value for key, value in facts.items() if value is not None}
    return numbers


def _requested_failure(ctx: RunContext, keys: list[str]) -> str | None:
    """Return why none of the requested websites was analysed."""
    with ctx.store.read() as connection:
        last = latest_reports(connection, keys)
    if any(report.analysis and report.failure is None for report in last.values()):
        return None
    reasons = "; ".join(f"{report.source_id}: {report.failure or report.progress_message}" for report in last.values())
    return f"no website was analysed. {reasons[:1_000]}"


WORK = (
    WorkSpec(
        name="analyze_due",
        kind="website",
        work=_analyze,
        job=WorkJob(
            name="analyze_websites",
            description="Continue waiting analyses: information, prompts, answers of providers.",
            pending=lambda connection, _settings, now: is_work_waiting(connection, now=now),
            start_new=start_first_analyses,
        ),
        assets=(
            WorkAsset(
                name=WEBSITE_INFO,
                description=(
                    "What business a website is of, one partition a website: name, industry, description,"
                    " place, keywords, competitors, each with its evidence; and how sure that is."
                ),
            ),
            WorkAsset(
                name=WEBSITE_PROMPTS,
                after=WEBSITE_INFO,
                technologies=frozenset({"python", "sql"}),
                description=(
                    "What customers of the business would ask a model, without its name, and one question"
                    " about it; in the website's language."
                ),
            ),
            WorkAsset(
                name=WEBSITE_ANALYSIS,
                after=WEBSITE_PROMPTS,
                technologies=frozenset({"openai", "sql"}),
                description=(
                    "How visible the business is in the answers of every provider, beside its competitors"
                    " and over time. Materializing any of the three analyses the website now, to the end."
                ),
            ),
        ),
        request=request_analyses,
    ),
)
