"""The assets `companies`, `job_listings` and `job_matches`, and their jobs."""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from io import BytesIO
from typing import Any

import dagster as dg

from ingestion_pipeline.bootstrap import open_fetcher, renderer_if_any
from ingestion_pipeline.companies.boards.rotation import drain_scrapes
from ingestion_pipeline.companies.matching.reporting import BIN_WIDTH, MatchReport, match_report
from ingestion_pipeline.companies.matching.runs import MatchRunResult, match_listings
from ingestion_pipeline.companies.reporting import CompanyReport, analysed_since, sources_in_progress
from ingestion_pipeline.companies.rescoring import ranks_of, rescore
from ingestion_pipeline.companies.runs import run_companies
from ingestion_pipeline.companies.system import start_analyses
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.orchestration import heartbeat, resources
from ingestion_pipeline.orchestration.check_events import fail_if_all_failed, fail_if_network_down, network_problem
from ingestion_pipeline.orchestration.checks import REPORTED_BY_COMPANIES, changed_checks
from ingestion_pipeline.orchestration.contracts import written_contracts
from ingestion_pipeline.orchestration.datasets import preview_table
from ingestion_pipeline.orchestration.events import picture, plain, with_current_expectations
from ingestion_pipeline.orchestration.ops import extract, fetch, ingest, report
from ingestion_pipeline.orchestration.partitioned_assets import partitioned_asset
from ingestion_pipeline.orchestration.partitions import COMPANIES, JOB_BOARDS, register_keys
from ingestion_pipeline.orchestration.requested import admit, requested_or_due_keys
from ingestion_pipeline.orchestration.resources import RunContextResource
from ingestion_pipeline.settings.logs import key_values
from ingestion_pipeline.sources import Kind, crawls
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.tasks.worker import Worker

COMPANIES_SHARD = "companies"  # one run at a time: it also takes work that arrives meanwhile


@dg.op(ins={"sources": dg.In(dg.Nothing)}, out=dg.Out(is_required=False), tags={"kind": "company"})
def analyze(context: dg.OpExecutionContext, run_context: RunContextResource) -> Iterator[Any]:
    """Analyse waiting companies, or the requested partitions, and discover their boards."""
    keys = requested_or_due_keys(context, resources.SHARD, "company")
    with run_context.open() as ctx:
        since = ctx.store.now()
        if keys is not None:
            _ask_for(context, ctx, keys)
        with heartbeat.working(ctx, run_id=context.run_id, job=context.job_name) as worker:
            rotated = drain_scrapes(ctx.store, worker, settings=ctx.settings) if keys is None else 0
            counts, problem = asyncio.run(_work(ctx, worker, keys))
        heartbeat.end_run(ctx.store, run_id=context.run_id)
        rescored = _rescore(ctx) if keys is None else 0
        numbers = dict(sorted(counts.items())) | {"rotations": rotated, "rescored": rescored}
        context.log.info("company run finished %s", key_values(numbers))
        limit = ctx.settings.polling.reported_events
        with ctx.store.read() as connection:
            reports = analysed_since(connection, since=since, source_ids=keys, limit=limit)
        source_ids = [report.row["source_id"] for report in reports]
        register_keys(context.instance, COMPANIES.name or "", source_ids)
        yield from with_current_expectations(ctx, map(_materialization, reports))
        yield from changed_checks(context.instance, ctx, REPORTED_BY_COMPANIES)
        yield from written_contracts(context.instance, ctx, ["companies"], source_ids)
        fail_if_network_down(problem)
        _fail_if_none_analysed(context, ctx, reports, keys)
    if keys is None:
        fail_if_all_failed(counts, "analyses")
        yield dg.Output(None, metadata=numbers)


async def _work(ctx: RunContext, worker: Worker, keys: Collection[str] | None) -> tuple[Counter[str], str | None]:
    async with open_fetcher(ctx.settings) as fetcher, renderer_if_any(ctx.settings, clock=ctx.store.now) as renderer:
        counts = await run_companies(
            ctx, worker, fetcher, ranks=ranks_of(ctx.settings), source_ids=keys, renderer=renderer
        )
        return counts, network_problem(fetcher)


def _rescore(ctx: RunContext) -> int:
    """Rescore all companies that were scored by another profile, a batch per transaction."""
    count = 0
    while True:
        with ctx.store.begin() as connection:
            done = rescore(connection, ctx.settings, now=ctx.store.clock.now(connection))
        count += done
        if not done:
            return count


def _ask_for(context: dg.OpExecutionContext, ctx: RunContext, keys: list[str]) -> None:
    sources = admit(context, ctx, keys, only=Kind.COMPANY)
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        polls = crawls.claim_polls(connection, keys, now=now, settings=ctx.settings)
        outcomes = start_analyses(connection, list(sources.values()), now=now, is_asked=True)
        started = [(polls[key], sources[key], outcomes[key]) for key in sorted(polls)]
        crawls.begin(connection, started, now=now, settings=ctx.settings, random=ctx.random)
    for key, word in outcomes.items():
        context.log.info("analysis requested source=%s: %s", key, word)


def _materialization(report: CompanyReport) -> dg.AssetMaterialization:
    """Return the event of the company with its facts and score."""
    row, quality = report.row, report.row["quality"]
    metadata: dict[str, dg.MetadataValue] = {
        "outcome": dg.MetadataValue.text(str(quality.get("level"))),
        "website": dg.MetadataValue.url(row["website"]),
        "pages": dg.MetadataValue.int(len(quality.get("pages", ()))),
        "pages_failed": dg.MetadataValue.json(dict(quality.get("pages_failed", {}))),
        "missing": dg.MetadataValue.text(", ".join(quality.get("missing", ())) or "nothing"),
        "technologies": dg.MetadataValue.json(row["tech_stack"] or {}),
        "boards": dg.MetadataValue.md(_board_table(row["boards"] or [])),
        "boards_found": dg.MetadataValue.int(len(row["boards"] or [])),
        "score": dg.MetadataValue.int(row["score"] or 0),
        "tier": dg.MetadataValue.text(row["tier"] or ""),
        "refused_spawns": dg.MetadataValue.int(len(report.refusals)),
        "cost_usd": dg.MetadataValue.float(float(report.cost_usd)),
    }
    metadata |= {f"facts_by_{method}": dg.MetadataValue.int(count) for method, count in report.facts_by_method.items()}
    metadata |= {f"points_{part}": dg.MetadataValue.int(points) for part, points in (row["score_parts"] or {}).items()}
    return dg.AssetMaterialization("companies", partition=row["source_id"], metadata=metadata)


def _board_table(boards: list[dict[str, Any]]) -> str:
    if not boards:
        return "no boards"
    lines = ["| platform | board | confidence | source |", "|---|---|---|---|"]
    lines += [
        f"| {plain(board['platform'])} | {plain(board['url'])} | {board['confidence']}"
        f" | {plain(board.get('source_id') or board.get('note') or 'waits for its discovery')} |"
        for board in boards
    ]
    return "\n".join(lines)


def _fail_if_none_analysed(
    context: dg.OpExecutionContext, ctx: RunContext, reports: list[CompanyReport], keys: list[str] | None
) -> None:
    """Fail the run if none of the requested companies was analysed.

    A company that another run is analysing is no failure of this one.
    """
    if keys is None or reports:
        return
    with ctx.store.read() as connection:
        held = sources_in_progress(connection, keys, now=ctx.store.clock.now(connection))
        sources = sources_by_id(connection, keys)
    if held:
        context.log.info("another run analyses and reports sources=%s", ",".join(held))
        return
    outcomes = "; ".join(f"{source.id}: {source.last_outcome or 'waits'}" for source in sources.values())
    raise dg.Failure(f"no company was analysed. {outcomes[:1_000]}", allow_retries=False)


@partitioned_asset(
    "companies",
    of=COMPANIES,
    follows=("sources", "sources"),
    group="companies",
    kinds={"http", "sql"},
    description=(
        "Facts from a company's own pages, one partition a company. Materializing fetches its"
        " pages now, whatever is stored, and discovers its job boards."
    ),
)
def companies(sources: None) -> None:
    """Analyse the requested partitions."""
    return analyze(sources)


@dg.job(
    tags={resources.SHARD: COMPANIES_SHARD},
    description="Analyse the companies that wait, probe the boards they lead to, choose boards.",
)
def process_companies() -> None:
    """Run `analyze`."""
    analyze()


ingest_company = dg.define_asset_job(
    "ingest_company",
    # The checks would be planned and then skipped: `analyze` logs its events itself.
    selection=dg.AssetSelection.assets("companies").without_checks(),
    description="Analyse one company now; needs the tag dagster/partition.",
)

COMPANY_JOBS: list[Any] = [process_companies, ingest_company]


@partitioned_asset(
    "job_listings",
    of=JOB_BOARDS,
    follows=("sources", "sources"),
    group="companies",
    kinds={"http", "sql"},
    description=(
        "The jobs a board lists, one partition a board. Materializing polls the board now, due or"
        " not, under the host's lease; a posting that several boards list is one row."
    ),
)
def job_listings(sources: None) -> None:
    """Fetch, extract, ingest and report the requested partitions."""
    return report(ingest(extract(fetch(sources))))


ingest_job_board = dg.define_asset_job(
    "ingest_job_board",
    # The checks would be planned and then skipped: `report` logs its events itself.
    selection=dg.AssetSelection.assets("job_listings").without_checks(),
    description="Poll one job board now; needs the tag dagster/partition.",
)


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
        yield from map(_match_materialization, reports)
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


def _match_materialization(report: MatchReport) -> dg.AssetMaterialization:
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
