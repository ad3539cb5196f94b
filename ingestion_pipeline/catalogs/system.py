"""The system of catalogues, as the rest of the program sees it."""

from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import select

from ingestion_pipeline.catalogs import checks
from ingestion_pipeline.catalogs.catalog_runs import WORK
from ingestion_pipeline.catalogs.datasets.publishing import (
    FLAGGED_SHARE,
    old_datasets,
    old_extractions,
    old_model_answers,
    old_model_calls,
)
from ingestion_pipeline.catalogs.extraction.source_selectors import ENTITIES, entity_config_problems
from ingestion_pipeline.catalogs.extraction_control import requeue_dead_letter
from ingestion_pipeline.catalogs.extraction_states import start_extractions
from ingestion_pipeline.catalogs.lineage import EXPLAINED
from ingestion_pipeline.catalogs.recipes.detected_recipes import DETECT, ensure_detection, is_by_hand
from ingestion_pipeline.catalogs.recipes.recipe import config_problems, recipe_of
from ingestion_pipeline.catalogs.reruns import catalog_facts
from ingestion_pipeline.catalogs.states import EXTRACT_PAGE, EXTRACTION_TASKS, NOTICES, DatasetStatus, PageStatus
from ingestion_pipeline.engine.context import DeferredSystem
from ingestion_pipeline.engine.system_spec import (
    ADDRESS,
    COUNT,
    AssetCheck,
    Contract,
    ContractRule,
    CoverageQuery,
    FailedTaskRetention,
    KindSpec,
    PublishedTable,
    SystemSpec,
    newest_of,
    one_of,
)
from ingestion_pipeline.pages.politeness.hosts import Pace
from ingestion_pipeline.sources import Definition
from ingestion_pipeline.sources.declarations import BadField
from ingestion_pipeline.store import tables
from ingestion_pipeline.store.tables import datasets, extractions, pages


def _problems(definition: Definition, folder: Path | None) -> Iterator[BadField]:
    """Yield what is wrong with the recipe and the entity; a missing recipe is detected."""
    entities = None if folder is None else folder / ENTITIES
    for problem in (*config_problems(definition.config), *entity_config_problems(definition.config, entities)):
        yield BadField("config", f"{problem} ({definition.id})")


FAILED_TASK_SECONDS = 5 * 86_400


_PAGES = PublishedTable(
    table=pages,
    source_id=select(extractions.c.source_id).where(extractions.c.id == pages.c.extraction_id).scalar_subquery(),
)
_DATASETS = PublishedTable(table=datasets, source_id=datasets.c.source_id)

SYSTEM = SystemSpec(
    name="catalogs",
    kinds=(
        KindSpec(
            name="catalog",
            partitions="catalogs",
            deferred=DeferredSystem(
                start=lambda connection, sources, now, _settings: start_extractions(connection, sources, now=now),
                check=lambda source: recipe_of(source.config) if is_by_hand(source) else None,
                pace=lambda _source, settings: Pace(delay_seconds=settings.crawl.delay_seconds),
            ),
            coverage=CoverageQuery(of="pages", select=checks.coverage_query),
            facts=catalog_facts,
            problems=_problems,
        ),
    ),
    declared=ensure_detection,
    requeue=dict.fromkeys(EXTRACTION_TASKS, requeue_dead_letter),
    tables=(
        tables.recipes,
        tables.extractions,
        tables.crawl_steps,
        tables.pages,
        tables.datasets,
        tables.data_items,
        tables.learned_selectors,
    ),
    published=(
        PublishedTable(table=extractions, without=frozenset({"recipe"}), source_id=extractions.c.source_id),
        _PAGES,
        _DATASETS,
    ),
    contracts=(
        Contract(
            asset="pages",
            table=_PAGES,
            rules={"url": [ADDRESS], "status": [one_of(*PageStatus)]},
            written=lambda source_ids, run_id: (
                pages,
                [pages.c.extraction_id.in_(newest_of(extractions, source_ids)), pages.c.run_id == run_id],
            ),
        ),
        Contract(
            asset="datasets",
            table=_DATASETS,
            rules={
                "version": [
                    ContractRule(requirement="from 1 on", cure="delete the dataset", between=(1, float("inf")))
                ],
                "status": [one_of(*DatasetStatus)],
                "item_count": [COUNT],
            },
        ),
    ),
    work=WORK,
    checks=(
        AssetCheck(
            asset="pages",
            name="share_of_failures",
            description="No catalogue's last crawl had more than a tenth of failed pages.",
            cure="`ingest extractions pages ID` lists the failures; `ingest extractions retry ID` tries them again",
            find=lambda connection, _settings, _now: checks.failed_pages(connection, failed_share=0.1),
        ),
        AssetCheck(
            asset="pages",
            name="no_empty_shells",
            description="No page of a last crawl was an empty shell that needs a browser.",
            cure="install a browser (`ingest doctor` says how), then `ingest extractions start SOURCE`",
            find=lambda connection, _settings, _now: checks.empty_shells(connection),
        ),
        AssetCheck(
            asset="pages",
            name="no_drop_against_history",
            description="No complete crawl found far fewer pages than the complete one before it.",
            cure="compare with the site; `ingest extractions start SOURCE` crawls it again",
            find=lambda connection, _settings, _now: checks.lost_pages(connection, drop_share=0.2),
        ),
        AssetCheck(
            asset="datasets",
            name="not_quarantined",
            description="No catalogue's newest dataset is held back: empty, far smaller, or with a lost field.",
            cure="if the site is right, `ingest extractions publish ID`; else `ingest extractions rerun ID`",
            find=lambda connection, _settings, _now: checks.quarantined(connection),
            holds_back=True,
        ),
        AssetCheck(
            asset="datasets",
            name="no_records_missing",
            description="No catalogue's last extraction kept records of pages that failed or now state none.",
            cure="`ingest extractions retry ID` reads the failed pages again",
            find=lambda connection, _settings, _now: checks.missing_pages(connection),
        ),
        AssetCheck(
            asset="datasets",
            name="extractions_complete",
            description="No catalogue's last extraction ended stale or cancelled.",
            cure="`ingest extractions resume ID` continues it, `ingest extractions start SOURCE` begins anew",
            find=lambda connection, _settings, _now: checks.unfinished(connection),
        ),
        AssetCheck(
            asset="datasets",
            name="values_proved",
            description="No newest dataset has more than a fifth of unproved items.",
            cure="`ingest explain` shows the page behind an item; `ingest extractions rerun ID` reads it again",
            find=lambda connection, _settings, _now: checks.unproved(connection, flagged_share=FLAGGED_SHARE),
        ),
    ),
    sweeps={
        "datasets": old_datasets,
        "extractions": old_extractions,
        "model_calls": old_model_calls,
        "model_answers": old_model_answers,
    },
    failed_tasks=FailedTaskRetention(kinds=(*EXTRACTION_TASKS, DETECT), seconds=FAILED_TASK_SECONDS),
    kept_snapshots=(tables.pages.c.snapshot_id,),
    ingesting=(EXTRACT_PAGE,),
    explained=EXPLAINED,
    notices=NOTICES,
    held_back=checks.held_back,
    accepted_at=checks.accepted_at,
)
