"""The partitioned assets: `sources`, declarations checked, and `chapters`, polled on demand."""

import dagster as dg
from pydantic import Field

from ingestion_pipeline.catalogs.recipes.registry import RecipeStatus, detected
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.orchestration.contracts import column_schema
from ingestion_pipeline.orchestration.events import declared, refuse_unknown
from ingestion_pipeline.orchestration.heartbeat import whole_run
from ingestion_pipeline.orchestration.ops import extract, fetch, ingest, report
from ingestion_pipeline.orchestration.partitioned import MANY, OWNERS, worked_out
from ingestion_pipeline.orchestration.partitions import SERIES_SOURCES, SOURCES, register_keys
from ingestion_pipeline.orchestration.resources import RunContextResource
from ingestion_pipeline.registry import approval_problems, definition_check
from ingestion_pipeline.registry import declared as declare
from ingestion_pipeline.sources import Source, SourceStatus
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.operator_changes import refresh_source
from ingestion_pipeline.sources.poll_tasks import lock_polls
from ingestion_pipeline.sources.registry import enable
from ingestion_pipeline.sources.status import lock_sources


class Declaration(dg.Config):
    """What else to do with the sources that are checked."""

    approve: bool = Field(
        default=False,
        description="poll those that were discovered and wait for approval, from now on",
    )


@dg.asset(
    name="sources",
    partitions_def=SOURCES,
    backfill_policy=MANY,
    group_name="sources",
    kinds={"yaml", "sql"},
    owners=OWNERS,
    description=(
        "What we watch, one partition a source. Materializing checks the declaration, recognises"
        " the platform and refreshes the row; it does not poll. With approve in its config, a"
        " discovered source that waits for approval is polled from now on."
    ),
    metadata={"dagster/column_schema": column_schema("sources")},
)
def sources(
    context: dg.AssetExecutionContext, config: Declaration, workshop: RunContextResource
) -> None:
    """Check and refresh the declaration of every partition asked for."""
    if not context.has_partition_key and not context.has_partition_key_range:
        raise dg.Failure("name a source: sources is partitioned", allow_retries=False)
    # Dagster refuses to list keys that a temporary instance has not been told of.
    keys = [context.partition_key] if context.has_partition_key else list(context.partition_keys)
    bad: list[str] = []
    run = context.run
    with workshop.open() as shop, whole_run(shop, run_id=run.run_id, job=run.job_name):
        with shop.store.read() as connection:
            known = sources_by_id(connection, keys)
        refuse_unknown(keys, known)
        register_keys(context.instance, SOURCES.name or "", keys)
        if config.approve:
            bad += _approve(shop, [one for one in known.values() if _waits_for_approval(one)])
        for key in keys:
            found = refresh_source(
                shop.store,
                key,
                folder=shop.settings.sources,
                check=definition_check(shop.settings.sources),
            )
            bad += [f"{key}: {problem}" for problem in found.problems]
            if not found.problems:
                _begin(shop, key)
            context.add_asset_metadata(
                declared(found.source, problems=len(found.problems)), partition_key=key
            )
    if bad:
        raise dg.Failure("; ".join(bad), allow_retries=False)


def _waits_for_approval(source: Source) -> bool:
    return source.status is SourceStatus.PENDING_VALIDATION


def _approve(shop: RunContext, waiting: list[Source]) -> list[str]:
    """They are polled from now on; an operator said so. Why some could not be polled."""
    bad: list[str] = []
    with shop.store.begin() as connection:
        now = shop.store.clock.now(connection)
        ids = [source.id for source in waiting]
        lock_polls(connection, ids)  # of all, before the first is enabled
        lock_sources(connection, ids)
        for source in waiting:
            if problems := approval_problems(source, shop.settings.sources):
                bad += [f"{source.id}: {problem}" for problem in problems]
            else:
                enable(connection, source.id, actor="dagster", now=now, reason="approved")
    return bad


def _begin(shop: RunContext, key: str) -> None:
    """A catalogue without a recipe is looked at, again if that was in vain."""
    with shop.store.begin() as connection:
        known = detected(connection, [key]).get(key)
        in_vain = known is not None and known.status is RecipeStatus.ERROR
        declare(connection, [key], now=shop.store.clock.now(connection), again=in_vain)


@worked_out(
    "chapters",
    of=SERIES_SOURCES,
    follows=("sources", "sources"),
    group="series",
    kinds={"http", "sql"},
    description=(
        "The chapters a series source lists, one partition a source. Materializing polls the"
        " source now, due or not, under the host's lease; unchanged listings write nothing."
    ),
)
def chapters(sources: None) -> None:
    """Fetch, extract, ingest and report the partitions asked for."""
    return report(ingest(extract(fetch(sources))))
