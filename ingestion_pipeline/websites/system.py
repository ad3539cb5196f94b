"""The system of websites: what polls start, what runs do, what is published and checked; and its spec."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sqlalchemy import Table, select

from ingestion_pipeline.engine import system_spec
from ingestion_pipeline.engine.context import DeferredSystem, RunContext
from ingestion_pipeline.reading.html.markdown import MARKDOWN_VERSION
from ingestion_pipeline.sources import Definition, Source
from ingestion_pipeline.sources.declarations import BadField
from ingestion_pipeline.store import tables
from ingestion_pipeline.store.tables import businesses, website_analyses, website_answers, website_rankings
from ingestion_pipeline.websites import checks, customer_prompts, information, provider_analysis, provider_pool
from ingestion_pipeline.websites.analysis_reports import (
    analysis_events,
    latest_reports,
    metrics,
    phase_metrics,
    reports_since,
)
from ingestion_pipeline.websites.analysis_rows import (
    is_work_waiting,
    old_analyses,
    old_answers,
    request_analyses,
    requeue_phase,
    start_analyses,
    start_first_analyses,
)
from ingestion_pipeline.websites.business import parse_website_config
from ingestion_pipeline.websites.phases import run_analyses
from ingestion_pipeline.websites.states import KINDS, WEBSITE_ANALYSIS, WEBSITE_INFO, WEBSITE_PROMPTS, AnalysisStatus


def _of_analysis(table: Table) -> system_spec.PublishedTable:
    return system_spec.PublishedTable(
        table=table,
        source_id=website_analyses.c.source_id,
        rows=table.outerjoin(website_analyses, website_analyses.c.id == table.c.analysis_id),
        origin=(website_analyses.c.source_id, website_analyses.c.config_version),
        meanings={
            "source_id": "the website that was analysed; null: the analysis was deleted",
            "config_version": "version of the source's configuration, counted from 1; null: the analysis was"
            " deleted, or is older than versions",
        },
    )


def _written_analyses(source_ids: Sequence[str], run_id: str) -> system_spec.Written:  # noqa: ARG001 - one row for each source
    return website_analyses, [website_analyses.c.id.in_(system_spec.newest_of(website_analyses, source_ids))]


def _written_rankings(source_ids: Sequence[str], run_id: str) -> system_spec.Written:  # noqa: ARG001 - one row for each source
    newest = system_spec.newest_of(website_analyses, source_ids)
    business = select(website_analyses.c.business_id).where(website_analyses.c.id.in_(newest))
    return website_rankings, [website_rankings.c.business_id.in_(business), website_rankings.c.analysis_id.in_(newest)]


_ANALYSES = system_spec.PublishedTable(table=website_analyses, source_id=website_analyses.c.source_id)
_RANKINGS = _of_analysis(website_rankings)
TABLES = (
    system_spec.PublishedTable(table=businesses, without=frozenset({"url_key"})),
    _ANALYSES,
    _RANKINGS,
    _of_analysis(website_answers),
)
_AGAIN = "analyse the website again: materialize its partition"
_PERCENT = system_spec.ContractRule(requirement="0 to 100", cure=_AGAIN, between=(0, 100))
CONTRACTS = (
    system_spec.Contract(
        asset="website_info",
        table=_ANALYSES,
        rules={"url": [system_spec.ADDRESS], "status": [system_spec.one_of(*AnalysisStatus)]},
        written=_written_analyses,
    ),
    system_spec.Contract(
        asset="website_prompts", table=_ANALYSES, rules={"progress_percent": [_PERCENT]}, written=_written_analyses
    ),
    system_spec.Contract(
        asset="website_analysis",
        table=_RANKINGS,
        rules={
            "visibility": [system_spec.ContractRule(requirement="0 to 1", cure=_AGAIN, between=(0, 1))],
            "score": [_PERCENT],
        },
        written=_written_rankings,
    ),
)


def _check(source: Source) -> None:
    if bad := parse_website_config(source.config)[1]:
        raise ValueError("; ".join(f"{problem.field}: {problem.message}" for problem in bad))


async def _analyze(run: system_spec.WorkRun) -> system_spec.WorkReport:
    """Process waiting analyses, or those of the requested websites, and report finished phases."""
    ctx, keys, since = run.ctx, run.scope.source_ids, run.ctx.store.now()
    counts = await run_analyses(ctx, run.worker, run.fetcher, keys, run.renderer)
    with ctx.store.read() as connection:
        limit = system_spec.REPORTED_EVENTS
        reports = reports_since(connection, since=since, source_ids=keys, limit=limit)
    ids = [report.source_id for report in reports]
    return system_spec.WorkReport(
        numbers=_numbers(ctx, counts),
        events=[event for report in reports for event in analysis_events(report)],
        written=dict.fromkeys((WEBSITE_INFO, WEBSITE_PROMPTS, WEBSITE_ANALYSIS), ids),
        failure=system_spec.all_failed(counts, "website phases") if keys is None else _requested_failure(ctx, keys),
    )


def _numbers(ctx: RunContext, counts: Counter[str]) -> dict[str, Any]:
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
    system_spec.WorkSpec(
        name="analyze_due",
        kind="website",
        work=_analyze,
        job=system_spec.WorkJob(
            name="analyze_websites",
            description="Continue waiting analyses: information, prompts, answers of providers.",
            pending=lambda connection, _settings, now: is_work_waiting(connection, now=now),
            start_new=start_first_analyses,
        ),
        assets=(
            system_spec.WorkAsset(
                name=WEBSITE_INFO,
                code_version=f"{information.VERSION}, {MARKDOWN_VERSION}",
                description=(
                    "What business a website is of, one partition a website: name, industry, description,"
                    " place, keywords, competitors, each with its evidence; and how sure that is."
                ),
            ),
            system_spec.WorkAsset(
                name=WEBSITE_PROMPTS,
                code_version=customer_prompts.VERSION,
                after=WEBSITE_INFO,
                technologies=frozenset({"python", "sql"}),
                description=(
                    "What customers of the business would ask a model, without its name, and one question"
                    " about it; in the website's language."
                ),
            ),
            system_spec.WorkAsset(
                name=WEBSITE_ANALYSIS,
                code_version=f"{provider_pool.PROMPT_VERSION}, {provider_analysis.VERSION}",
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


def _problems(definition: Definition, folder: Path | None) -> list[BadField]:  # noqa: ARG001
    return list(parse_website_config(definition.config)[1])


SYSTEM = system_spec.SystemSpec(
    name="websites",
    kinds=(
        system_spec.KindSpec(
            name="website",
            partitions="websites",
            deferred=DeferredSystem(check=_check, start=start_analyses),
            coverage=system_spec.CoverageQuery(of="answers", select=checks.coverage_query),
            problems=_problems,
        ),
    ),
    tables=(tables.businesses, tables.website_analyses, tables.website_answers, tables.website_rankings),
    published=TABLES,
    contracts=CONTRACTS,
    work=WORK,
    checks=(
        system_spec.AssetCheck(
            asset="website_info",
            name="information_sure",
            description="No business is known with a confidence below 40.",
            cure="`ingest websites show ID` has the evidence; state what is known in the source's config",
            find=lambda connection, _settings, _now: checks.doubtful(connection, below=40),
        ),
        system_spec.AssetCheck(
            asset="website_prompts",
            name="asked_without_the_name",
            description="Every website's last analysis has a question that does not name the business.",
            cure="materialize the website again: its prompts are made anew",
            find=lambda connection, _settings, _now: checks.giving_away(connection),
        ),
        system_spec.AssetCheck(
            asset="website_analysis",
            name="providers_answer",
            description="No website's last analysis went without the answers of a provider, or of all.",
            cure="`ingest doctor` checks the keys of the providers; then materialize the website again",
            find=lambda connection, _settings, _now: checks.unanswered(connection),
        ),
        system_spec.AssetCheck(
            asset="website_analysis",
            name="no_visibility_drop",
            description="No business lost 30 % of its visibility or more at once.",
            cure="`ingest websites show ID` compares the last analyses with the competitors",
            find=lambda connection, _settings, _now: checks.dropped(connection, by=0.3),
        ),
    ),
    metrics=metrics,
    sweeps={"website_answers": old_answers, "website_analyses": old_analyses},
    requeue=dict.fromkeys(KINDS, requeue_phase),
)
