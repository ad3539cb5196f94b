"""The Dagster definitions: assets, checks, jobs, schedules, sensors and resources."""

import dagster as dg

from ingestion_pipeline.orchestration.catalogs import CATALOG_JOBS, detect_recipes, pages
from ingestion_pipeline.orchestration.checks import (
    CHAPTER_CHECKS,
    COMPANY_CHECKS,
    DATASET_CHECKS,
    JOB_LISTING_CHECKS,
    MATCH_CHECKS,
    NOTICE_CHECKS,
    PAGE_CHECKS,
    SOURCE_CHECKS,
    WEBSITE_CHECKS,
)
from ingestion_pipeline.orchestration.companies import (
    COMPANY_JOBS,
    companies,
    ingest_job_board,
    job_listings,
    job_matches,
    process_listings,
)
from ingestion_pipeline.orchestration.contracts import CONTRACT_CHECKS
from ingestion_pipeline.orchestration.datasets import datasets
from ingestion_pipeline.orchestration.dead_letters import DEAD_LETTER_JOBS
from ingestion_pipeline.orchestration.exports import export_datasets
from ingestion_pipeline.orchestration.extractions import EXTRACTION_JOBS
from ingestion_pipeline.orchestration.health import source_health
from ingestion_pipeline.orchestration.jobs import JOBS
from ingestion_pipeline.orchestration.notices import notices
from ingestion_pipeline.orchestration.resources import RunContextResource
from ingestion_pipeline.orchestration.schedules import SCHEDULES
from ingestion_pipeline.orchestration.sensors import SENSORS
from ingestion_pipeline.orchestration.sources_and_chapters import chapters, sources
from ingestion_pipeline.orchestration.websites import WEBSITE_JOBS, analyze_website


def build_definitions() -> dg.Definitions:
    """Return assets, checks, jobs, schedules and sensors over one run context.

    Steps run in the run's own process (another one costs three seconds each), and what passes
    between them are ids, which stay in memory: nothing is pickled.
    """
    return dg.Definitions(
        assets=[
            sources,
            pages,
            datasets,
            companies,
            job_listings,
            job_matches,
            analyze_website,
            chapters,
            notices,
            source_health,
        ],
        asset_checks=[
            *SOURCE_CHECKS,
            *PAGE_CHECKS,
            *DATASET_CHECKS,
            *COMPANY_CHECKS,
            *JOB_LISTING_CHECKS,
            *WEBSITE_CHECKS,
            *CHAPTER_CHECKS,
            *MATCH_CHECKS,
            *NOTICE_CHECKS,
            *CONTRACT_CHECKS,
        ],
        jobs=[
            *JOBS,
            detect_recipes,
            *CATALOG_JOBS,
            *EXTRACTION_JOBS,
            *DEAD_LETTER_JOBS,
            *COMPANY_JOBS,
            ingest_job_board,
            process_listings,
            *WEBSITE_JOBS,
            export_datasets,
        ],
        schedules=SCHEDULES,
        sensors=SENSORS,
        resources={"run_context": RunContextResource(), "io_manager": dg.mem_io_manager},
        executor=dg.in_process_executor,
    )


defs = build_definitions()
