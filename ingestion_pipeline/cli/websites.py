"""`ingest websites`: show analyses, their progress, and how visible each business is."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ingestion_pipeline.cli.output import Column, distance, echo, print_facts, print_json, print_table, shortened
from ingestion_pipeline.cli.session import json_option, opened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from ingestion_pipeline.websites.analysis_reports import AnalysisReport, RankedDay, VisibilityRow
    from ingestion_pipeline.websites.analysis_status import WebsiteReport


COLUMNS = (
    Column("provider"),
    Column("answers", is_number=True),
    Column("visible", is_number=True),
    Column("rank", is_number=True),
    Column("score", is_number=True),
    Column("competitors", is_flexible=True),
)


def print_visibility(rows: Sequence[tuple[str, VisibilityRow]]) -> None:
    """Print one line per business and provider; answers received of answers requested."""
    print_table([Column("business"), *COLUMNS], [[name, *visibility_cells(row)] for name, row in rows])


def visibility_cells(row: VisibilityRow) -> list[object]:
    """Return provider, answers, share with a mention, mean rank, score, competitors."""
    others = ", ".join(f"{name} {share:.0%}" for name, share in row.competitors.items())
    return [
        row.provider,
        f"{row.answers} of {row.prompts}",
        None if row.visibility is None else f"{row.visibility:.0%}",
        row.mean_rank,
        row.score,
        others,
    ]


STATES = ("never-analysed", "not-started", "prompt-forming", "model-analysis", "completed", "failed")
MOST_SHOWN = 300  # characters of a text; --json has all of it
DAYS_SHOWN = 14  # of the history; --json has all of it


@click.group()
def websites() -> None:
    """Show websites: information and visibility to models."""


@websites.command("list")
@click.option("--status", type=click.Choice(STATES), help="Only those with this analysis status.")
@json_option
def list_(*, status: str | None, as_json: bool) -> None:
    """Show every website with its last analysis and its waiting reason."""
    from ingestion_pipeline.websites.analysis_status import list_websites

    with opened() as (settings, store), store.read() as connection:
        now = store.clock.now(connection)
        attempts = settings.work.max_attempts
        rows = list_websites(connection, now=now, max_attempts=attempts, status=status)
    if as_json:
        print_json(rows)
    elif not rows:
        echo("no websites; `ingest sources add URL --kind website` adds one")
    else:
        columns = [
            Column("website"),
            Column("name"),
            Column("status"),
            Column("%", is_number=True),
            Column("visible", is_number=True),
            Column("score", is_number=True),
            Column("next"),
            Column("reason", is_flexible=True),
        ]
        print_table(columns, [_row(row, now) for row in rows])


def _row(row: Mapping[str, Any], now: datetime) -> list[object]:
    return [
        row["id"],
        row["name"],
        row["status"],
        row["progress_percent"],
        _percent(row["visibility"]),
        row["score"],
        distance(row["next_check_at"], now),
        shortened(row["why"], MOST_SHOWN),
    ]


@websites.command()
@click.argument("website_id", metavar="ID")
@json_option
def show(*, website_id: str, as_json: bool) -> None:
    """Show one website: information, prompts, visibility, cost."""
    from ingestion_pipeline.websites.analysis_status import website_report

    with opened() as (settings, store), store.read() as connection:
        now = store.clock.now(connection)
        attempts = settings.work.max_attempts
        report = website_report(connection, website_id, now=now, max_attempts=attempts)
    if as_json:
        print_json(_document(report))
        return
    print_facts(_facts(report, now))
    for analysis in (report.last, report.complete):
        if analysis is not None and analysis.prompts:
            _print_prompts(analysis)
            break
    if report.complete is not None:
        _print_visibility(report.complete)
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
    columns = [Column("number", is_number=True), Column("origin"), Column("direct")]
    print_table([*columns, Column("prompt", is_flexible=True)], rows)


def _print_visibility(report: AnalysisReport) -> None:
    from ingestion_pipeline.websites.analysis_reports import visibility_rows

    rows = visibility_rows(report)
    echo("")
    print_table(COLUMNS, [visibility_cells(row) for row in rows])
    for row in rows:
        if row.failure:
            echo(f"{row.provider}: {shortened(row.failure, MOST_SHOWN)}")


def _print_history(history: Sequence[RankedDay]) -> None:
    echo("")
    columns = [Column("day"), Column("visible", is_number=True), Column("score", is_number=True)]
    columns += [Column("cost USD", is_number=True), Column("by provider", is_flexible=True)]
    rows = [
        [day.day, _percent(day.visibility), day.score, day.cost_usd, _shares(day.by_provider)]
        for day in reversed(history[-DAYS_SHOWN:])
    ]
    print_table(columns, rows)


def _shares(by_provider: Mapping[str, Mapping[str, Any]]) -> str:
    return ", ".join(f"{name} {_percent(ranking['visibility'])}" for name, ranking in by_provider.items())


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.0%}"
