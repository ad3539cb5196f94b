"""The system of catalogues, as the rest of the program sees it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from sqlalchemy import Connection, select

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
from ingestion_pipeline.catalogs.golden import worse_golden_sets
from ingestion_pipeline.catalogs.lineage import EXPLAINED
from ingestion_pipeline.catalogs.recipes.detected_recipes import DETECT, ensure_detection, is_by_hand, recipe_facts
from ingestion_pipeline.catalogs.recipes.recipe import config_problems, recipe_of
from ingestion_pipeline.catalogs.reruns import catalog_facts
from ingestion_pipeline.catalogs.states import EXTRACT_PAGE, EXTRACTION_TASKS, NOTICES, DatasetStatus, PageStatus
from ingestion_pipeline.engine import system_spec
from ingestion_pipeline.engine.context import DeferredSystem
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Definition, Source
from ingestion_pipeline.sources.declarations import BadField
from ingestion_pipeline.store import tables
from ingestion_pipeline.store.tables import datasets, extractions, pages


def _problems(definition: Definition, folder: Path | None) -> Iterator[BadField]:
    """Yield what is wrong with the recipe and the entity; a missing recipe is detected."""
    entities = None if folder is None else folder / ENTITIES
    for problem in (*config_problems(definition.config), *entity_config_problems(definition.config, entities)):
        yield BadField("config", f"{problem} ({definition.id})")


def _facts(connection: Connection, source: Source, settings: Settings) -> dict[str, object]:
    return recipe_facts(connection, source) | catalog_facts(connection, source, settings)


FAILED_TASK_SECONDS = 5 * 86_400


def _check(source: Source) -> None:
    """Raise `BadRecipe` if the recipe that a person wrote cannot be followed."""
    if is_by_hand(source):
        recipe_of(source.config)


def _written_pages(source_ids: Sequence[str], run_id: str) -> system_spec.Written:
    return pages, [pages.c.extraction_id.in_(system_spec.newest_of(extractions, source_ids)), pages.c.run_id == run_id]


_PAGES = system_spec.PublishedTable(
    table=pages,
    source_id=select(extractions.c.source_id).where(extractions.c.id == pages.c.extraction_id).scalar_subquery(),
)
_DATASETS = system_spec.PublishedTable(table=datasets, source_id=datasets.c.source_id)

SYSTEM = system_spec.SystemSpec(
    name="catalogs",
    kinds=(
        system_spec.KindSpec(
            name="catalog",
            partitions="catalogs",
            deferred=DeferredSystem(
                check=_check,
                start=lambda connection, sources, now, _settings: start_extractions(connection, sources, now=now),
                delay_seconds=lambda settings: settings.crawl.delay_seconds,
            ),
            coverage=system_spec.CoverageQuery(of="pages", select=checks.coverage_query),
            facts=_facts,
            problems=_problems,
        ),
    ),
    declared=ensure_detection,
    learned=(tables.recipes, tables.learned_selectors),
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
        system_spec.PublishedTable(table=extractions, without=frozenset({"recipe"}), source_id=extractions.c.source_id),
        _PAGES,
        _DATASETS,
    ),
    contracts=(
        system_spec.Contract(
            asset="pages",
            table=_PAGES,
            rules={"url": [system_spec.ADDRESS], "status": [system_spec.one_of(*PageStatus)]},
            written=_written_pages,
        ),
        system_spec.Contract(
            asset="datasets",
            table=_DATASETS,
            rules={
                "version": [
                    system_spec.ContractRule(
                        requirement="from 1 on", cure="delete the dataset", between=(1, float("inf"))
                    )
                ],
                "status": [system_spec.one_of(*DatasetStatus)],
                "item_count": [system_spec.COUNT],
            },
        ),
    ),
    work=WORK,
    checks=(
        system_spec.AssetCheck(
            asset="pages",
            name="share_of_failures",
            description="No catalogue's last crawl had more than a tenth of failed pages.",
            cure="`ingest extractions pages ID` lists the failures; `ingest extractions retry ID` tries them again",
            find=lambda connection, _settings, _now: checks.failed_pages(connection, failed_share=0.1),
        ),
        system_spec.AssetCheck(
            asset="pages",
            name="no_empty_shells",
            description="No page of a last crawl was an empty shell that needs a browser.",
            cure="install a browser (`ingest doctor` says how), then `ingest extractions start SOURCE`",
            find=lambda connection, _settings, _now: checks.empty_shells(connection),
        ),
        system_spec.AssetCheck(
            asset="pages",
            name="no_drop_against_history",
            description="No complete crawl found far fewer pages than the complete one before it.",
            cure="compare with the site; `ingest extractions start SOURCE` crawls it again",
            find=lambda connection, _settings, _now: checks.lost_pages(connection, drop_share=0.2),
        ),
        system_spec.AssetCheck(
            asset="datasets",
            name="not_quarantined",
            description="No catalogue's newest dataset is held back: empty, far smaller, or with a lost field.",
            cure="if the site is right, `ingest extractions publish ID`; else `ingest extractions rerun ID`",
            find=lambda connection, _settings, _now: checks.quarantined(connection),
            holds_back=True,
        ),
        system_spec.AssetCheck(
            asset="datasets",
            name="no_records_missing",
            description="No catalogue's last extraction kept records of pages that failed or now state none.",
            cure="`ingest extractions retry ID` reads the failed pages again",
            find=lambda connection, _settings, _now: checks.missing_pages(connection),
        ),
        system_spec.AssetCheck(
            asset="datasets",
            name="extractions_complete",
            description="No catalogue's last extraction ended stale or cancelled.",
            cure="`ingest extractions resume ID` continues it, `ingest extractions start SOURCE` begins anew",
            find=lambda connection, _settings, _now: checks.unfinished(connection),
        ),
        system_spec.AssetCheck(
            asset="datasets",
            name="values_proved",
            description="No newest dataset has more than a fifth of unproved items.",
            cure="`ingest explain` shows the page behind an item; `ingest extractions rerun ID` reads it again",
            find=lambda connection, _settings, _now: checks.unproved(connection, flagged_share=FLAGGED_SHARE),
        ),
        system_spec.AssetCheck(
            asset="datasets",
            name="golden_sets_read",
            description="Every golden set reads as well as its floor with the current reader, prompts and models.",
            cure="`ingest golden score` shows which fields; undo the change, or accept new rows by `ingest golden add`",
            find=lambda _connection, settings, _now: worse_golden_sets(settings),
            holds_back=True,
        ),
    ),
    sweeps={
        "datasets": old_datasets,
        "extractions": old_extractions,
        "model_calls": old_model_calls,
        "model_answers": old_model_answers,
    },
    failed_tasks=system_spec.FailedTaskRetention(kinds=(*EXTRACTION_TASKS, DETECT), seconds=FAILED_TASK_SECONDS),
    kept_snapshots=(tables.pages.c.snapshot_id,),
    ingesting=(EXTRACT_PAGE,),
    explained=EXPLAINED,
    notices=NOTICES,
    held_back=checks.held_back,
    accepted_at=checks.accepted_at,
)
