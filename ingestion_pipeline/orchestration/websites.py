"""The assets of websites, and the jobs `analyze_websites` and `ingest_website`."""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import asdict
from typing import Any

import dagster as dg

from ingestion_pipeline.bootstrap import open_fetcher, renderer_if_any
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.orchestration import heartbeat, resources
from ingestion_pipeline.orchestration.check_events import fail_if_all_failed, fail_if_network_down, network_problem
from ingestion_pipeline.orchestration.checks import REPORTED_BY_WEBSITES, changed_checks
from ingestion_pipeline.orchestration.contracts import column_schema, written_contracts
from ingestion_pipeline.orchestration.events import picture, plain, refuse_unusable, with_current_expectations
from ingestion_pipeline.orchestration.partitioned_assets import MANY, OWNERS
from ingestion_pipeline.orchestration.partitions import SOURCES, WEBSITES, register_keys
from ingestion_pipeline.orchestration.resources import RunContextResource
from ingestion_pipeline.settings.logs import key_values
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.tasks.errors import Resource
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline.websites.metrics import phase_metrics
from ingestion_pipeline.websites.plot import visibility_picture
from ingestion_pipeline.websites.reporting import AnalysisReport, latest_reports, reports_since
from ingestion_pipeline.websites.runs.starting import request_analyses
from ingestion_pipeline.websites.runs.system import run_analyses
from ingestion_pipeline.websites.states import WEBSITE_ANALYSIS, WEBSITE_INFO, WEBSITE_PROMPTS

WEBSITES_SHARD = "websites"  # one run at a time: it also takes work that arrives meanwhile
GROUP = "websites"
CONTRACTED = ("website_info", "website_prompts", "website_analysis")


def _run(
    context: dg.OpExecutionContext | dg.AssetExecutionContext, run_context: RunContextResource, keys: list[str] | None
) -> Iterator[Any]:
    """Process waiting analyses, or the requested partitions, and report finished phases."""
    run = context.run
    with run_context.open() as ctx:
        since = ctx.store.now()
        if keys is not None:
            _ask_for(context, ctx, keys)
        with heartbeat.working(ctx, run_id=run.run_id, job=run.job_name) as worker:
            counts, problem = asyncio.run(_work(ctx, worker, keys))
        heartbeat.end_run(ctx.store, run_id=run.run_id)
        context.log.info("analysis run finished %s", key_values(dict(sorted(counts.items()))) or "tasks=0")
        limit = ctx.settings.polling.reported_events
        with ctx.store.read() as connection:
            reports = reports_since(connection, since=since, source_ids=keys, limit=limit)
        register_keys(context.instance, WEBSITES.name or "", [report.source_id for report in reports])
        for report in reports:
            yield from with_current_expectations(ctx, materializations(report))
        yield from changed_checks(context.instance, ctx, REPORTED_BY_WEBSITES)
        source_ids = [report.source_id for report in reports]
        yield from written_contracts(context.instance, ctx, CONTRACTED, source_ids)
        fail_if_network_down(problem)
        if keys is None:
            fail_if_all_failed(counts, "website phases")
            yield dg.Output(None, metadata=_numbers(ctx, counts))
        else:
            _fail_if_none_analysed(ctx, keys)


async def _work(ctx: RunContext, worker: Worker, keys: Collection[str] | None) -> tuple[Counter[str], str | None]:
    async with open_fetcher(ctx.settings) as fetcher, renderer_if_any(ctx.settings, clock=ctx.store.now) as renderer:
        counts = await run_analyses(ctx, worker, fetcher, source_ids=keys, renderer=renderer)
        return counts, network_problem(fetcher)


def _ask_for(context: dg.OpExecutionContext | dg.AssetExecutionContext, ctx: RunContext, keys: list[str]) -> None:
    with ctx.store.read() as connection:
        refuse_unusable(keys, sources_by_id(connection, keys))
    for name in (SOURCES.name, WEBSITES.name):
        register_keys(context.instance, name or "", keys)
    try:
        outcomes = request_analyses(ctx, keys)
    except Resource as full:
        raise dg.Failure(f"nothing was started: {full}", allow_retries=False) from full
    for key, word in outcomes.items():
        context.log.info("analysis requested source=%s: %s", key, word)


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


def _fail_if_none_analysed(ctx: RunContext, keys: list[str]) -> None:
    """Fail the run if none of the requested websites was analysed."""
    with ctx.store.read() as connection:
        last = latest_reports(connection, keys)
    if any(report.analysis and report.failure is None for report in last.values()):
        return
    reasons = "; ".join(f"{report.source_id}: {report.failure or report.progress_message}" for report in last.values())
    raise dg.Failure(f"no website was analysed. {reasons[:1_000]}", allow_retries=False)


def materializations(report: AnalysisReport) -> Iterator[dg.AssetMaterialization]:
    """Yield an event for each finished phase."""
    metadata_of = {WEBSITE_INFO: _info, WEBSITE_PROMPTS: _prompts, WEBSITE_ANALYSIS: _analysis}
    for phase in report.ended:
        times = report.phase_times[phase.queue]
        metadata = {
            "analysis": dg.MetadataValue.text(f"{report.id}, {report.status.value}"),
            "progress": dg.MetadataValue.int(report.progress_percent),
            "attempts": dg.MetadataValue.int(int(times["attempts"])),
            **metadata_of[phase.kind](report),
        }
        yield dg.AssetMaterialization(phase.kind, partition=report.source_id, metadata=metadata)


def _info(report: AnalysisReport) -> dict[str, dg.MetadataValue]:
    info = report.info
    texts = ("name", "industry", "description", "location", "language")
    metadata: dict[str, dg.MetadataValue] = {
        name: dg.MetadataValue.text(str(info[name])[:2_000]) for name in texts if info.get(name)
    }
    return metadata | {
        "website": dg.MetadataValue.url(report.url),
        "business_confidence": dg.MetadataValue.int(info["confidence"]),
        "keywords": dg.MetadataValue.text(", ".join(info["keywords"])),
        "competitors": dg.MetadataValue.text(", ".join(info["competitors"])),
        "pages": dg.MetadataValue.int(len(info.get("pages", ()))),
        "problems": dg.MetadataValue.int(len(info.get("problems", ()))),
    }


def _prompts(report: AnalysisReport) -> dict[str, dg.MetadataValue]:
    lines = [f"{number}. {plain(prompt['text'], limit=400)}" for number, prompt in _numbered(report)]
    by = Counter(str(prompt["by"]) for prompt in report.prompts)
    return {
        "prompts": dg.MetadataValue.int(len(report.prompts)),
        "texts": dg.MetadataValue.md("\n".join(lines)),
        **{f"by_{name}": dg.MetadataValue.int(count) for name, count in by.items()},
    }


def _numbered(report: AnalysisReport) -> list[tuple[int, Any]]:
    return list(enumerate(report.prompts, 1))


def _analysis(report: AnalysisReport) -> dict[str, dg.MetadataValue]:
    """Return numbers, since Dagster plots them; a provider without an answer is no zero."""
    analysis = report.analysis
    overall = analysis["overall"]
    metadata: dict[str, dg.MetadataValue] = {
        "visibility": dg.MetadataValue.float(overall["visibility"]),
        "score": dg.MetadataValue.int(overall["score"]),
        "mentions": dg.MetadataValue.int(overall["mentions"]),
        "answers": dg.MetadataValue.int(overall["answers"]),
        "failures": dg.MetadataValue.json(dict(analysis["failures"])),
        "visibility_table": dg.MetadataValue.md(visibility_table(report)),
    }
    metadata |= {
        f"visibility_{name}": dg.MetadataValue.float(result["visibility"])
        for name, result in analysis["by_provider"].items()
    }
    if analysis.get("cost_usd") is not None:
        metadata["cost_usd"] = dg.MetadataValue.float(float(analysis["cost_usd"]))
    if report.history:
        drawn = picture(visibility_picture(str(report.info.get("name")), report.history))
        if drawn is not None:
            metadata["visibility_over_time"] = dg.MetadataValue.md(drawn)
    return metadata


def visibility_table(report: AnalysisReport) -> str:
    """Return the business and its competitors on the same answers, most visible first."""
    analysis = report.analysis
    everybody = {str(report.info.get("name")): analysis["overall"], **analysis["competitors"]}
    lines = ["| name | visible | score | mean rank |", "|---|--:|--:|--:|"]
    for name, result in sorted(everybody.items(), key=lambda pair: -pair[1]["visibility"]):
        rank = result.get("mean_rank") or ""
        lines.append(f"| {plain(name)} | {result['visibility']:.0%} | {result['score']} | {rank} |")
    return "\n".join(lines)


def _spec(name: str, after: str, kinds: set[str], description: str) -> dg.AssetSpec:
    mapping = dg.IdentityPartitionMapping()
    return dg.AssetSpec(
        name,
        deps=[dg.AssetDep(after, partition_mapping=mapping)],
        description=description,
        group_name=GROUP,
        owners=OWNERS,
        kinds=kinds,
        metadata={"dagster/column_schema": column_schema(name)},
        skippable=True,  # reported by events of their own, each with its partition
    )


@dg.multi_asset(
    name="analyze_website",
    specs=[
        _spec(
            WEBSITE_INFO,
            "sources",
            {"http", "sql"},
            "What business a website is of, one partition a website: name, industry, description,"
            " place, keywords, competitors, each with its evidence; and how sure that is.",
        ),
        _spec(
            WEBSITE_PROMPTS,
            WEBSITE_INFO,
            {"python", "sql"},
            "What customers of the business would ask a model, without its name, and one question"
            " about it; in the website's language.",
        ),
        _spec(
            WEBSITE_ANALYSIS,
            WEBSITE_PROMPTS,
            {"openai", "sql"},
            "How visible the business is in the answers of every provider, beside its competitors"
            " and over time. Materializing any of the three analyses the website now, to the end.",
        ),
    ],
    partitions_def=WEBSITES,
    backfill_policy=MANY,
    can_subset=True,
)
def analyze_website(context: dg.AssetExecutionContext, run_context: RunContextResource) -> Iterator[Any]:
    """Analyse the requested partitions."""
    if not context.has_partition_key and not context.has_partition_key_range:
        raise dg.Failure(
            f"{context.run.job_name} works on one source: name it with"
            """ --tags '{"dagster/partition": "website:..."}'""",
            allow_retries=False,
        )
    has_one_key = context.has_partition_key
    keys = [context.partition_key] if has_one_key else list(context.partition_keys)
    yield from _run(context, run_context, keys)


@dg.op(out=dg.Out(is_required=False), tags={"kind": "website"})
def analyze_due(context: dg.OpExecutionContext, run_context: RunContextResource) -> Iterator[Any]:
    """Continue every waiting analysis, in whichever phase."""
    yield from _run(context, run_context, None)


@dg.job(
    tags={resources.SHARD: WEBSITES_SHARD},
    description="Continue waiting analyses: information, prompts, answers of providers.",
)
def analyze_websites() -> None:
    """Run `analyze_due`."""
    analyze_due()


ingest_website = dg.define_asset_job(
    "ingest_website",
    # The checks would be planned and then skipped: `analyze_website` logs its events itself.
    selection=dg.AssetSelection.assets(WEBSITE_INFO, WEBSITE_PROMPTS, WEBSITE_ANALYSIS).without_checks(),
    description="Analyse one website now; needs the tag dagster/partition.",
)

WEBSITE_JOBS: list[Any] = [analyze_websites, ingest_website]
