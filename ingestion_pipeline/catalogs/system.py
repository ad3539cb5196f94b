"""The system of catalogues, as the rest of the program sees it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Connection

from ingestion_pipeline.catalogs import published
from ingestion_pipeline.catalogs.crawling import checks
from ingestion_pipeline.catalogs.crawling.system import CatalogSystem
from ingestion_pipeline.catalogs.datasets.finishing import EXTRACTION_TASKS
from ingestion_pipeline.catalogs.extraction.cost import catalog_facts
from ingestion_pipeline.catalogs.extraction.source_config import ENTITIES, entity_config_problems
from ingestion_pipeline.catalogs.operations import listing, quarantined_datasets
from ingestion_pipeline.catalogs.operations.control import requeue_page, requeue_reading
from ingestion_pipeline.catalogs.operations.retention import (
    old_datasets,
    old_extractions,
    old_model_answers,
    old_model_calls,
)
from ingestion_pipeline.catalogs.recipes.detected_recipes import DETECT, ensure_detection, recipe_facts
from ingestion_pipeline.catalogs.recipes.recipe import config_problems
from ingestion_pipeline.catalogs.states import EXTRACT_PAGE
from ingestion_pipeline.catalogs.work import WORK
from ingestion_pipeline.engine.crawling.protocol import FETCH_PAGE
from ingestion_pipeline.engine.system_spec import AssetCheck, CoverageQuery, FailedTaskRetention, KindSpec, SystemSpec
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Definition, Source
from ingestion_pipeline.sources.file_model import BadField
from ingestion_pipeline.store import tables


def _problems(definition: Definition, folder: Path | None) -> Iterator[BadField]:
    """Yield what is wrong with the recipe and the entity; a missing recipe is detected."""
    entities = None if folder is None else folder / ENTITIES
    for problem in (*config_problems(definition.config), *entity_config_problems(definition.config, entities)):
        yield BadField("config", f"{problem} ({definition.id})")


def _facts(connection: Connection, source: Source, settings: Settings) -> dict[str, object]:
    return recipe_facts(connection, source) | catalog_facts(connection, source, settings)


SYSTEM = SystemSpec(
    name="catalogs",
    kinds=(
        KindSpec(
            name="catalog",
            partitions="catalogs",
            crawled=CatalogSystem(),
            coverage=CoverageQuery(of="pages", select=checks.coverage_query),
            facts=_facts,
            problems=_problems,
        ),
    ),
    declared=ensure_detection,
    requeue={FETCH_PAGE: requeue_page, EXTRACT_PAGE: requeue_reading},
    tables=(
        tables.recipes,
        tables.extractions,
        tables.crawl_steps,
        tables.pages,
        tables.datasets,
        tables.data_items,
        tables.learned_selectors,
    ),
    published=published.TABLES,
    contracts=published.CONTRACTS,
    work=WORK,
    checks=(
        AssetCheck(
            asset="pages",
            name="share_of_failures",
            description="No catalogue's last crawl had more failed pages than the setting crawl.failed_share.",
            find=lambda connection, settings, _now: checks.failed_pages(
                connection, failed_share=settings.crawl.failed_share
            ),
        ),
        AssetCheck(
            asset="pages",
            name="no_empty_shells",
            description="No page of a last crawl was an empty shell that needs a browser.",
            find=lambda connection, _settings, _now: checks.empty_shells(connection),
        ),
        AssetCheck(
            asset="pages",
            name="no_drop_against_history",
            description="No complete crawl found far fewer pages than the complete one before it.",
            find=lambda connection, settings, _now: checks.lost_pages(connection, drop_share=settings.crawl.drop_share),
        ),
        AssetCheck(
            asset="datasets",
            name="not_quarantined",
            description="No catalogue's newest dataset is held back: empty, far smaller, or with a lost field.",
            find=lambda connection, _settings, _now: quarantined_datasets.quarantined(connection),
            holds_back=True,
        ),
        AssetCheck(
            asset="datasets",
            name="no_records_missing",
            description="No catalogue's last extraction kept records of pages that failed or now state none.",
            find=lambda connection, _settings, _now: quarantined_datasets.missing_pages(connection),
        ),
        AssetCheck(
            asset="datasets",
            name="extractions_complete",
            description="No catalogue's last extraction ended stale or cancelled.",
            find=lambda connection, _settings, _now: listing.unfinished(connection),
        ),
        AssetCheck(
            asset="datasets",
            name="values_proved",
            description="No newest dataset has more unproved items than the setting extraction.flagged_share.",
            find=lambda connection, settings, _now: listing.unproved(
                connection, flagged_share=settings.extraction.flagged_share
            ),
        ),
    ),
    sweeps={
        "datasets": old_datasets,
        "extractions": old_extractions,
        "model_calls": old_model_calls,
        "model_answers": old_model_answers,
    },
    failed_tasks=FailedTaskRetention(
        kinds=(*EXTRACTION_TASKS, DETECT), seconds=lambda settings: settings.retention.failed_catalog_seconds
    ),
    kept_snapshots=(tables.pages.c.snapshot_id,),
)
