"""What is reported of the assets `website_info`, `website_prompts` and `website_analysis`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ingestion_pipeline.engine.asset_events import AssetEvent, EventValue, Markdown, Url, picture, plain
from ingestion_pipeline.websites.plot import visibility_picture
from ingestion_pipeline.websites.reporting import AnalysisReport
from ingestion_pipeline.websites.states import WEBSITE_ANALYSIS, WEBSITE_INFO, WEBSITE_PROMPTS


def analysis_events(report: AnalysisReport) -> Iterator[AssetEvent]:
    """Yield an event for each finished phase."""
    metadata_of = {WEBSITE_INFO: _info, WEBSITE_PROMPTS: _prompts, WEBSITE_ANALYSIS: _analysis}
    for phase in report.ended:
        times = report.phase_times[phase.queue]
        metadata = {
            "analysis": f"{report.id}, {report.status.value}",
            "progress": report.progress_percent,
            "attempts": int(times["attempts"]),
            **metadata_of[phase.kind](report),
        }
        yield AssetEvent(asset=phase.kind, partition=report.source_id, metadata=metadata)


def _info(report: AnalysisReport) -> dict[str, EventValue]:
    info = report.info
    texts = ("name", "industry", "description", "location", "language")
    metadata: dict[str, EventValue] = {name: str(info[name])[:2_000] for name in texts if info.get(name)}
    return metadata | {
        "website": Url(report.url),
        "business_confidence": info["confidence"],
        "keywords": ", ".join(info["keywords"]),
        "competitors": ", ".join(info["competitors"]),
        "pages": len(info.get("pages", ())),
        "problems": len(info.get("problems", ())),
    }


def _prompts(report: AnalysisReport) -> dict[str, EventValue]:
    lines = [f"{number}. {plain(prompt['text'], limit=400)}" for number, prompt in _numbered(report)]
    by = Counter(str(prompt["by"]) for prompt in report.prompts)
    return {
        "prompts": len(report.prompts),
        "texts": Markdown("\n".join(lines)),
        **{f"by_{name}": count for name, count in by.items()},
    }


def _numbered(report: AnalysisReport) -> list[tuple[int, Any]]:
    return list(enumerate(report.prompts, 1))


def _analysis(report: AnalysisReport) -> dict[str, EventValue]:
    """Return numbers, since Dagster plots them; a provider without an answer is no zero."""
    analysis = report.analysis
    overall = analysis["overall"]
    metadata: dict[str, EventValue] = {
        "visibility": float(overall["visibility"]),
        "score": overall["score"],
        "mentions": overall["mentions"],
        "answers": overall["answers"],
        "failures": dict(analysis["failures"]),
        "visibility_table": Markdown(visibility_table(report)),
    }
    metadata |= {f"visibility_{name}": float(result["visibility"]) for name, result in analysis["by_provider"].items()}
    if analysis.get("cost_usd") is not None:
        metadata["cost_usd"] = float(analysis["cost_usd"])
    if report.history:
        drawn = picture(visibility_picture(str(report.info.get("name")), report.history))
        if drawn is not None:
            metadata["visibility_over_time"] = drawn
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
