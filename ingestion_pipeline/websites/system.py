"""The system of websites, as the rest of the program sees it."""

from __future__ import annotations

from pathlib import Path

from ingestion_pipeline.engine.system_spec import AssetCheck, CoverageQuery, KindSpec, SystemSpec
from ingestion_pipeline.sources import Definition
from ingestion_pipeline.sources.file_model import BadField
from ingestion_pipeline.store import tables
from ingestion_pipeline.websites import checks, published
from ingestion_pipeline.websites.metrics import metrics
from ingestion_pipeline.websites.retention import old_analyses, old_answers
from ingestion_pipeline.websites.runs.starting import KINDS
from ingestion_pipeline.websites.runs.system import WebsiteSystem, requeue_phase
from ingestion_pipeline.websites.source_config import parse_website_config
from ingestion_pipeline.websites.work import WORK


def _problems(definition: Definition, folder: Path | None) -> list[BadField]:  # noqa: ARG001
    return list(parse_website_config(definition.config)[1])


SYSTEM = SystemSpec(
    name="websites",
    kinds=(
        KindSpec(
            name="website",
            partitions="websites",
            deferred=WebsiteSystem(),
            coverage=CoverageQuery(of="answers", select=checks.coverage_query),
            problems=_problems,
        ),
    ),
    tables=(tables.businesses, tables.website_analyses, tables.website_answers, tables.website_rankings),
    published=published.TABLES,
    contracts=published.CONTRACTS,
    work=WORK,
    checks=(
        AssetCheck(
            asset="website_info",
            name="information_sure",
            description="No business is known with a confidence below 40.",
            find=lambda connection, _settings, _now: checks.doubtful(connection, below=40),
        ),
        AssetCheck(
            asset="website_prompts",
            name="asked_without_the_name",
            description="Every website's last analysis has a question that does not name the business.",
            find=lambda connection, _settings, _now: checks.giving_away(connection),
        ),
        AssetCheck(
            asset="website_analysis",
            name="providers_answer",
            description="No website's last analysis went without the answers of a provider, or of all.",
            find=lambda connection, _settings, _now: checks.unanswered(connection),
        ),
        AssetCheck(
            asset="website_analysis",
            name="no_visibility_drop",
            description="No business lost 30 % of its visibility or more at once.",
            find=lambda connection, _settings, _now: checks.dropped(connection, by=0.3),
        ),
    ),
    metrics=metrics,
    sweeps={"website_answers": old_answers, "website_analyses": old_analyses},
    requeue=dict.fromkeys(KINDS, requeue_phase),
)
