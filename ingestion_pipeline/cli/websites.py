"""`ingest websites`: show analyses, their progress, and how visible each business is."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ingestion_pipeline.cli.output import (
    distance,
    echo,
    is_json,
    json_option,
    print_facts,
    print_json,
    print_listing,
    print_table,
    shortened,
)
from ingestion_pipeline.cli.session import reading

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from ingestion_pipeline.websites.analysis_reports import AnalysisReport, RankedDay, VisibilityRow, WebsiteReport


STATES = ("never-analysed", "not-started", "prompt-forming", "model-analysis", "completed", "failed")
MOST_SHOWN = 300  # characters of a text; --json has all of it
DAYS_SHOWN = 14  # of the history; --json has all of it


@click.group()
def websites() -> None:
    """Show websites: information and visibility to models."""


@websites.command("list")
@click.option("--status", type=click.Choice(STATES), help="Only those with this analysis status.")
@json_option
def list_(*, status: str | None) -> None:
    """Show every website with its last analysis and its waiting reason."""
    from ingestion_pipeline.websites.analysis_reports import list_websites

    with reading() as (settings, connection, now):
        attempts = settings.work.max_attempts
        rows = list_websites(connection, now=now, max_attempts=attempts, status=status)
    print_listing(
        rows,
        lambda row: {
            "website": row["id"],
            "name": row["name"],
            "status": row["status"],
            "%": row["progress_percent"],
            "visible": _percent(row["visibility"]),
            "score": row["score"],
            "next": distance(row["next_check_at"], now),
            "reason": shortened(row["why"], MOST_SHOWN),
        },
        empty="no websites; `ingest sources add URL --kind website` adds one",
        numbers={"%", "visible", "score"},
        flexible={"reason"},
    )


@websites.command()
@click.argument("website_id", metavar="ID")
@json_option
def show(*, website_id: str) -> None:
    """Show one website: information, prompts, visibility, cost."""
    from ingestion_pipeline.websites.analysis_reports import website_report

    with reading() as (settings, connection, now):
        attempts = settings.work.max_attempts
        report = website_report(connection, website_id, now=now, max_attempts=attempts)
    if is_json():
        print_json(_document(report))
        return
    print_facts(_facts(report, now))
    for analysis in (report.last, report.complete):
        if analysis is not None and analysis.prompts:
            _print_prompts(analysis)
            break
    if report.complete is not None:
        _print_report_visibility(report.complete)
        _print_history(report.complete.history)


def _document(report: WebsiteReport) -> dict[str, Any]:
    from ingestion_pipeline.websites.analysis_reports import visibility_rows

    last, complete = report.last, report.complete
    history: Sequence[RankedDay] = () if complete is None else complete.history
    return {
        "id": report.source.id,
        "url": report.source.url,
        "why": report.why,
        "next_check_at": report.next_check_at,
        "analysis": None if last is None else _analysis(last),
        "complete": None if complete is None else _analysis(complete),
        "visibility": [asdict(row) for row in visibility_rows(complete)] if complete else [],
        "history": [asdict(row) for row in history],
        "cost_usd": report.cost_usd,
        "model_calls": report.calls,
        "unpriced_calls": report.unpriced,
    }


def _analysis(report: AnalysisReport) -> dict[str, Any]:
    names = ("id", "progress_percent", "progress_message", "failure", "created_at", "finished_at")
    more = ("info", "prompts", "analysis", "phase_times")
    fields: dict[str, Any] = {name: getattr(report, name) for name in (*names, *more)}
    return {"status": report.status.value, **fields}


def _facts(report: WebsiteReport, now: datetime) -> dict[str, object]:
    source, last = report.source, report.last
    facts: dict[str, object] = {"website": source.url, "tier": source.tier, "reason": report.why}
    if last is not None:
        facts["analysis"] = f"{last.id}, {last.status.value}, {last.progress_percent} %"
        facts["progress"] = last.progress_message
        facts |= _info(last.info or (report.complete.info if report.complete else {}))
    facts["next"] = distance(report.next_check_at, now)
    unknown = f", {report.unpriced} of them without a known price" if report.unpriced else ""
    facts["cost"] = f"{report.cost_usd:.4f} USD for {report.calls} charged calls{unknown}"
    return facts


def _info(info: Mapping[str, Any]) -> dict[str, object]:
    texts = ("name", "industry", "description", "location", "language", "confidence")
    facts: dict[str, object] = {
        name: shortened(str(info[name]), MOST_SHOWN) for name in texts if info.get(name) is not None
    }
    lists = ("aliases", "keywords", "competitors", "pages")
    return facts | {name: ", ".join(info[name]) for name in lists if info.get(name)}


def _print_prompts(report: AnalysisReport) -> None:
    echo("")
    rows = [
        [number, prompt["by"], prompt["is_direct"], prompt["text"]] for number, prompt in enumerate(report.prompts, 1)
    ]
    print_table(("number", "origin", "direct", "prompt"), rows, numbers={"number"}, flexible={"prompt"})


VISIBILITY = ("provider", "answers", "visible", "95 %", "rank", "score", "competitors")


def _visibility_cells(row: VisibilityRow) -> list[object]:
    others = ", ".join(f"{name} {share:.0%}" for name, share in row.competitors.items())
    answers = f"{row.answers} of {row.prompts}"
    interval = None if row.low is None else f"{_percent(row.low)} to {_percent(row.high)}"
    return [row.provider, answers, _percent(row.visibility), interval, row.mean_rank, row.score, others]


def _print_report_visibility(report: AnalysisReport) -> None:
    from ingestion_pipeline.websites.analysis_reports import visibility_rows

    rows = visibility_rows(report)
    echo("")
    numbers = ("answers", "visible", "95 %", "rank", "score")
    print_table(VISIBILITY, [_visibility_cells(row) for row in rows], numbers=numbers, flexible={"competitors"})
    for row in rows:
        if row.failure:
            echo(f"{row.provider}: {shortened(row.failure, MOST_SHOWN)}")


def _print_history(history: Sequence[RankedDay]) -> None:
    echo("")
    rows = [
        [day.day, _percent(day.visibility), day.score, day.cost_usd, _shares(day.by_provider)]
        for day in reversed(history[-DAYS_SHOWN:])
    ]
    headings = ("day", "visible", "score", "cost USD", "by provider")
    print_table(headings, rows, numbers=headings[1:4], flexible={"by provider"})


def _shares(by_provider: Mapping[str, Mapping[str, Any]]) -> str:
    return ", ".join(f"{name} {_percent(ranking['visibility'])}" for name, ranking in by_provider.items())


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.0%}"
