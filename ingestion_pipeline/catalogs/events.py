"""What is reported of the assets `pages` and `datasets`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingestion_pipeline.catalogs.crawling.reporting import CrawlReport, HostTimes
from ingestion_pipeline.catalogs.datasets.finishing import Ended
from ingestion_pipeline.catalogs.datasets.report import DatasetReport
from ingestion_pipeline.engine.asset_events import AssetEvent, DataTable, EventValue, preview_table

HOSTS_SHOWN = 20


def crawl_event(report: CrawlReport, preview: Mapping[str, EventValue]) -> AssetEvent:
    """Return the event of the source's last extraction and what this run did for it."""
    counts = {
        "fetched": report.fetched,
        "new": report.new,
        "unchanged": report.unchanged,
        "failed": sum(report.failed.values()),
        "waiting": report.waiting,
        "pages": report.total,
        "bytes": report.size_bytes,
        "too_deep": report.too_deep,
        "over_budget": report.over_budget,
    }
    counts |= {f"failed_{name}": count for name, count in report.failed.items()}
    metadata: dict[str, EventValue] = dict(counts)
    metadata["extraction"] = f"{report.extraction_id}, {report.status}"
    if report.hosts:
        slowest = report.hosts[0]
        metadata["p50_ms"] = slowest.p50_ms
        metadata["p95_ms"] = slowest.p95_ms
        metadata["slowest_host"] = slowest.host[:200]
        metadata["hosts"] = _host_table(report.hosts[:HOSTS_SHOWN])
    metadata |= preview
    return AssetEvent(asset="pages", partition=report.source_id, metadata=metadata)


def _host_table(hosts: Sequence[HostTimes]) -> DataTable:
    """Return the response times of each host as a table."""
    numbers = ("pages", "p50_ms", "p95_ms")
    return DataTable(
        columns={"host": "string", **dict.fromkeys(numbers, "int")},
        rows=[{"host": host.host[:200]} | {name: getattr(host, name) for name in numbers} for host in hosts],
    )


def dataset_event(report: DatasetReport, more: Mapping[str, EventValue] | None = None) -> AssetEvent:
    """Return the event of the source's dataset; numbers, since Dagster plots them."""
    counts = {
        "items": report.items,
        "new_items": report.new_items,
        "flagged": report.flagged,
        "kept_of_failed_pages": report.kept_items,
        "input_tokens": report.input_tokens,
        "output_tokens": report.output_tokens,
        "saved_by_cache": report.saved_by_cache,
        "saved_by_unchanged": report.saved_by_unchanged,
        "saved_by_rules": report.saved_by_rules,
    }
    counts |= {f"pages_{state.lower()}": count for state, count in report.pages.items()}
    metadata: dict[str, EventValue] = dict(counts)
    metadata["cost_usd"] = float(report.cost_usd)
    if report.grounded_share is not None:
        metadata["grounding_rate"] = round(report.grounded_share, 4)
    if report.version is not None:
        metadata["version"] = report.version
    metadata["status"] = report.status
    extraction = f"{report.extraction_id}, {report.extraction_status}"
    metadata["extraction"] = extraction
    if report.no_data:
        metadata["no_data"] = "\n".join(report.no_data)
    metadata |= more or {}
    if report.version is not None:
        metadata["export"] = export_command(report)
    if report.preview:
        metadata["preview"] = preview_table(report.preview)
    return AssetEvent(asset="datasets", partition=report.source_id, metadata=metadata)


def export_command(report: DatasetReport) -> str:
    """Return the command that exports this very version."""
    name = report.entity_type or "data_items"
    return f"ingest export {name} --source {report.source_id} --version {report.version} --to csv"


def end_metadata(ended: Ended) -> dict[str, EventValue]:
    """Return how an extraction finished, and the state of its dataset."""
    metadata: dict[str, EventValue] = {
        "extraction": f"{ended.id}, {ended.status.value}",
        "pages": ended.page_count,
    }
    if ended.failure is not None:
        metadata["why"] = str(ended.failure["message"])[:500]
    if (dataset := ended.dataset) is not None:
        metadata |= {
            "items": dataset.items,
            "flagged": dataset.flagged,
            "version": dataset.version,
            "status": dataset.status.value,
            "is_unchanged": dataset.is_confirmed,
            "kept_of_failed_pages": dataset.kept_items,
        }
        if dataset.findings:
            messages = "\n".join(finding["message"] for finding in dataset.findings)
            metadata["findings"] = messages
    return metadata
