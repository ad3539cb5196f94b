"""The asset `companies` and the jobs `process_companies` and `ingest_company`."""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import dagster as dg

from ingestion_pipeline.bootstrap import open_fetcher, renderer_if_any
from ingestion_pipeline.companies.boards.rotation import drain_scrapes
from ingestion_pipeline.companies.reporting import CompanyReport, analysed_since, held_elsewhere
from ingestion_pipeline.companies.rescoring import ranks_of, rescore
from ingestion_pipeline.companies.runs import company_slice
from ingestion_pipeline.companies.system import begin
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.orchestration import heartbeat, resources
from ingestion_pipeline.orchestration.check_events import (
    fail_if_all_failed,
    fail_if_network_down,
    network_problem,
)
from ingestion_pipeline.orchestration.checks import TOLD_BY_COMPANIES, changed_checks
from ingestion_pipeline.orchestration.contracts import written_contracts
from ingestion_pipeline.orchestration.events import expecting, plain
from ingestion_pipeline.orchestration.partitioned import worked_out
from ingestion_pipeline.orchestration.partitions import COMPANIES, register_keys
from ingestion_pipeline.orchestration.requested import admit, asked_or_due
from ingestion_pipeline.orchestration.resources import RunContextResource
from ingestion_pipeline.sources import Kind, crawls
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.tasks.worker import Worker

COMPANIES_SHARD = "companies"  # one run at a time: it goes on with what comes while it works


@dg.op(ins={"sources": dg.In(dg.Nothing)}, out=dg.Out(is_required=False), tags={"kind": "company"})
def analyze(context: dg.OpExecutionContext, workshop: RunContextResource) -> Iterator[Any]:
    """Analyse the companies that wait, or the partitions asked for, and discover their boards."""
    keys = asked_or_due(context, resources.SHARD, "company")
    with workshop.open() as shop:
        since = shop.store.now()
        if keys is not None:
            _ask_for(context, shop, keys)
        with heartbeat.working(shop, run_id=context.run_id, job=context.job_name) as worker:
            rotated = (
                drain_scrapes(shop.store, worker, settings=shop.settings) if keys is None else 0
            )
            counts, problem = asyncio.run(_work(shop, worker, keys))
        heartbeat.end(shop.store, run_id=context.run_id)
        rescored = _rescore(shop) if keys is None else 0
        numbers = dict(sorted(counts.items())) | {"rotations": rotated, "rescored": rescored}
        context.log.info("%s", ", ".join(f"{word} {count}" for word, count in numbers.items()))
        limit = shop.settings.polling.reported_events
        with shop.store.read() as connection:
            reports = analysed_since(connection, since=since, source_ids=keys, limit=limit)
        told = [one.row["source_id"] for one in reports]
        register_keys(context.instance, COMPANIES.name or "", told)
        yield from expecting(shop, map(_materialization, reports))
        yield from changed_checks(context.instance, shop, TOLD_BY_COMPANIES)
        yield from written_contracts(context.instance, shop, ["companies"], told)
        fail_if_network_down(problem)
        _pass_verdict(context, shop, reports, keys)
    if keys is None:
        fail_if_all_failed(counts, "analyses")
        yield dg.Output(None, metadata=numbers)


async def _work(
    shop: RunContext, worker: Worker, keys: Collection[str] | None
) -> tuple[Counter[str], str | None]:
    async with (
        open_fetcher(shop.settings) as fetcher,
        renderer_if_any(shop.settings, clock=shop.store.now) as renderer,
    ):
        counts = await company_slice(
            shop,
            worker,
            fetcher,
            ranks=ranks_of(shop.settings),
            source_ids=keys,
            renderer=renderer,
        )
        return counts, network_problem(fetcher)


def _rescore(shop: RunContext) -> int:
    """All that were scored by another profile, some in each transaction."""
    count = 0
    while True:
        with shop.store.begin() as connection:
            done = rescore(connection, shop.settings, now=shop.store.clock.now(connection))
        count += done
        if not done:
            return count


def _ask_for(context: dg.OpExecutionContext, shop: RunContext, keys: list[str]) -> None:
    known = admit(context, shop, keys, only=Kind.COMPANY)
    with shop.store.begin() as connection:
        now = shop.store.clock.now(connection)
        polls = crawls.claim_polls(connection, keys, now=now, settings=shop.settings)
        said = begin(connection, list(known.values()), now=now, is_asked=True)
        begun = [(polls[key], known[key], said[key]) for key in sorted(polls)]
        crawls.begin(connection, begun, now=now, settings=shop.settings, random=shop.random)
    for key, word in said.items():
        context.log.info("%s: %s", key, word)


def _materialization(report: CompanyReport) -> dg.AssetMaterialization:
    """The company as it stands, with what its score is made of."""
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
    metadata |= {
        f"facts_by_{rung}": dg.MetadataValue.int(count)
        for rung, count in report.facts_by_rung.items()
    }
    metadata |= {
        f"points_{part}": dg.MetadataValue.int(points)
        for part, points in (row["score_parts"] or {}).items()
    }
    return dg.AssetMaterialization("companies", partition=row["source_id"], metadata=metadata)


def _board_table(boards: list[dict[str, Any]]) -> str:
    if not boards:
        return "no boards"
    lines = ["| platform | board | confidence | source |", "|---|---|---|---|"]
    lines += [
        f"| {plain(one['platform'])} | {plain(one['url'])} | {one['confidence']}"
        f" | {plain(one.get('source_id') or one.get('note') or 'waits for its discovery')} |"
        for one in boards
    ]
    return "\n".join(lines)


def _pass_verdict(
    context: dg.OpExecutionContext,
    shop: RunContext,
    reports: list[CompanyReport],
    keys: list[str] | None,
) -> None:
    """A failing company does not fail a run; if none that was asked for got through, it does.

    What another run is just analysing is no failure of this one.
    """
    if keys is None or reports:
        return
    with shop.store.read() as connection:
        held = held_elsewhere(connection, keys, now=shop.store.clock.now(connection))
        known = sources_by_id(connection, keys)
    if held:
        context.log.info("another run analyses %s now; it tells of them", ", ".join(held))
        return
    said = "; ".join(f"{one.id}: {one.last_outcome or 'waits'}" for one in known.values())
    raise dg.Failure(f"no company got through. {said[:1_000]}", allow_retries=False)


@worked_out(
    "companies",
    of=COMPANIES,
    follows=("sources", "sources"),
    group="companies",
    kinds={"http", "sql"},
    description=(
        "What a company's own pages say of it, one partition a company. Materializing looks at its"
        " pages now, however well it is known, and discovers its job boards."
    ),
)
def companies(sources: None) -> None:
    """Analyse the partitions asked for."""
    return analyze(sources)


@dg.job(
    tags={resources.SHARD: COMPANIES_SHARD},
    description="Analyse the companies that wait, probe the boards they lead to, choose boards.",
)
def process_companies() -> None:
    """One op."""
    analyze()


ingest_company = dg.define_asset_job(
    "ingest_company",
    # The checks would be planned and then skipped: `analyze` logs its events itself.
    selection=dg.AssetSelection.assets("companies").without_checks(),
    description="Analyse one company now; needs the tag dagster/partition.",
)

COMPANY_JOBS: list[Any] = [process_companies, ingest_company]
