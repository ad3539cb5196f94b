"""Reports of analyses: their state, why each waits, visibility over time, events, the plot, and metrics of phases."""

import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import BytesIO
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, select

from ingestion_pipeline.engine import system_spec
from ingestion_pipeline.extras import is_installed
from ingestion_pipeline.sources import Kind, Source, SourceStatus
from ingestion_pipeline.sources.status import TaskState, Watched, reason, task_states, watched_source, watched_sources
from ingestion_pipeline.store.tables import ACTIVE, model_calls, tasks, website_analyses, website_rankings
from ingestion_pipeline.tasks.ended_tasks import ended_totals
from ingestion_pipeline.tasks.queue import queues
from ingestion_pipeline.tasks.task import TaskStatus
from ingestion_pipeline.websites import states

HISTORY_DAYS = 180  # of a plot


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedDay:
    """How visible a business was on a day; shares from 0 to 1."""

    day: date
    visibility: float
    score: int
    by_provider: Mapping[str, Mapping[str, Any]]
    competitors: Mapping[str, Mapping[str, Any]]
    cost_usd: Decimal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisReport:
    """One analysis, which of its phases ended lately, and the history before it."""

    id: int
    source_id: str
    url: str
    status: states.AnalysisStatus
    progress_percent: int
    progress_message: str | None
    failure: str | None
    created_at: datetime
    finished_at: datetime | None
    info: Mapping[str, Any]
    prompts: Sequence[Mapping[str, Any]]
    analysis: Mapping[str, Any]
    phase_times: Mapping[str, Mapping[str, Any]]
    ended: Sequence[states.Phase]
    history: Sequence[RankedDay]


def reports_since(
    connection: Connection, *, since: datetime, source_ids: Collection[str] | None = None, limit: int
) -> list[AnalysisReport]:
    """Return the analyses that were updated since then, oldest first."""
    query = select(website_analyses).where(website_analyses.c.updated_at >= since)
    if source_ids is not None:
        query = query.where(website_analyses.c.source_id.in_(list(source_ids)))
    rows = connection.execute(query.order_by(website_analyses.c.id).limit(limit)).mappings().all()
    return [_report(connection, row, since) for row in rows]


def latest_reports(
    connection: Connection, source_ids: Collection[str], *, is_complete: bool = False
) -> dict[str, AnalysisReport]:
    """Return the last analysis of each of these sources; the last complete one if requested."""
    of_sources = website_analyses.c.source_id.in_(list(source_ids))
    newest = (
        states.newest_analyses(of_sources, states.IS_COMPLETE) if is_complete else states.newest_analyses(of_sources)
    )
    query = select(website_analyses).where(website_analyses.c.id.in_(newest))
    rows = connection.execute(query).mappings().all()
    return {row["source_id"]: _report(connection, row, None) for row in rows}


def history_of(connection: Connection, business_id: int) -> list[RankedDay]:
    """Return the rankings of a business, oldest first."""
    names = [column.name for column in fields(RankedDay)]
    query = (
        select(*(website_rankings.c[name] for name in names))
        .where(website_rankings.c.business_id == business_id)
        .order_by(website_rankings.c.day.desc())
        .limit(HISTORY_DAYS)
    )
    rows = connection.execute(query).all()
    return [RankedDay(**dict(zip(names, row, strict=True))) for row in reversed(rows)]


def _report(connection: Connection, row: RowMapping, since: datetime | None) -> AnalysisReport:
    business_id = row["business_id"]
    taken = ["id", "source_id", "url", "progress_percent", "progress_message", "failure", "created_at", "finished_at"]
    return AnalysisReport(
        status=states.AnalysisStatus(row["status"]),
        info=row["info"] or {},
        prompts=row["prompts"] or (),
        analysis=row["analysis"] or {},
        phase_times=row["phase_times"],
        ended=[phase for phase in states.PHASES if _has_ended(row["phase_times"].get(phase.queue, {}), since)],
        history=[] if business_id is None else history_of(connection, business_id),
        **{name: row[name] for name in taken},
    )


def _has_ended(times: Mapping[str, Any], since: datetime | None) -> bool:
    return "ended" in times and (since is None or datetime.fromisoformat(times["ended"]) >= since)


ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibilityRow:
    """How visible the business is to one provider, or to all; shares from 0 to 1.

    A provider that answered nothing has no numbers. `competitors` are by name the share of the same
    answers that name each, the most visible first.
    """

    provider: str
    prompts: int
    answers: int
    visibility: float | None = None
    low: float | None = None
    high: float | None = None
    unprompted: float | None = None
    best_rank: int | None = None
    mean_rank: float | None = None
    score: int | None = None
    competitors: Mapping[str, float] = field(default_factory=dict[str, float])
    failure: str | None = None


def visibility_rows(report: AnalysisReport) -> list[VisibilityRow]:
    """Return a row for all providers together, then one for each; none if incomplete."""
    analysis, prompts = report.analysis, len(report.prompts)
    if not analysis:
        return []
    failures: Mapping[str, str] = analysis.get("failures", {})
    by_provider: Mapping[str, Mapping[str, Any]] = analysis["by_provider"]
    overall = {**analysis["overall"], "competitors": analysis["competitors"]}
    return [
        _row(ALL, overall, prompts * len(by_provider.keys() | failures.keys())),
        *(_row(name, facts, prompts, failures.get(name)) for name, facts in by_provider.items()),
        *(
            VisibilityRow(provider=name, prompts=prompts, answers=0, failure=failures[name])
            for name in failures.keys() - by_provider.keys()
        ),
    ]


def _row(provider: str, facts: Mapping[str, Any], prompts: int, failure: str | None = None) -> VisibilityRow:
    others: Mapping[str, Mapping[str, Any]] = facts.get("competitors", {})
    shares = {name: float(other["visibility"]) for name, other in others.items()}
    taken = ("answers", "visibility", "unprompted", "best_rank", "score")
    return VisibilityRow(
        provider=provider,
        prompts=prompts,
        competitors=dict(sorted(shares.items(), key=lambda pair: -pair[1])),
        failure=failure,
        mean_rank=facts.get("mean_rank"),  # old rankings have none, nor intervals
        low=facts.get("low"),
        high=facts.get("high"),
        **{name: facts[name] for name in taken},
    )


def analysis_events(report: AnalysisReport) -> Iterator[system_spec.AssetEvent]:
    """Yield an event for each finished phase."""
    metadata_of = {states.WEBSITE_INFO: _info, states.WEBSITE_PROMPTS: _prompts, states.WEBSITE_ANALYSIS: _analysis}
    for phase in report.ended:
        times = report.phase_times[phase.queue]
        metadata = {
            **metadata_of[phase.kind](report),
            "analysis": f"{report.id}, {report.status.value}",
            "progress": report.progress_percent,
            "attempts": int(times["attempts"]),
        }
        yield system_spec.AssetEvent(asset=phase.kind, partition=report.source_id, metadata=metadata)


def _info(report: AnalysisReport) -> dict[str, system_spec.EventValue]:
    info = report.info
    texts = ("name", "industry", "description", "location", "language")
    facts = {name: str(info[name])[:2_000] for name in texts if info.get(name)}
    facts |= {name: ", ".join(info[name]) for name in ("keywords", "competitors")}
    return {
        "business": system_spec.details_table(facts),
        "website": system_spec.Url(report.url),
        "business_confidence": info["confidence"],
        "pages": len(info.get("pages", ())),
        "problems": len(info.get("problems", ())),
    }


def _prompts(report: AnalysisReport) -> dict[str, system_spec.EventValue]:
    lines = [
        f"{number}. {system_spec.plain(prompt['text'], limit=400)}" for number, prompt in enumerate(report.prompts, 1)
    ]
    by = Counter(str(prompt["by"]) for prompt in report.prompts)
    return {
        "texts": system_spec.Markdown("\n".join(lines)),
        "prompts": len(report.prompts),
        **{f"by_{name}": count for name, count in by.items()},
    }


def _analysis(report: AnalysisReport) -> dict[str, system_spec.EventValue]:
    """Return numbers, since Dagster plots them; a provider without an answer is no zero."""
    analysis = report.analysis
    overall = analysis["overall"]
    metadata: dict[str, system_spec.EventValue] = {
        "visibility_table": system_spec.Markdown(visibility_table(report)),
        "visibility": float(overall["visibility"]),
        "score": overall["score"],
        "mentions": overall["mentions"],
        "answers": overall["answers"],
        "failures": dict(analysis["failures"]),
    }
    metadata |= {f"visibility_{name}": float(result["visibility"]) for name, result in analysis["by_provider"].items()}
    if analysis.get("cost_usd") is not None:
        metadata["cost_usd"] = system_spec.rounded_usd(float(analysis["cost_usd"]))
    if report.history:
        drawn = system_spec.picture(visibility_picture(str(report.info.get("name")), report.history))
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
        lines.append(f"| {system_spec.plain(name)} | {result['visibility']:.0%} | {result['score']} | {rank} |")
    return "\n".join(lines)


Axes = Any  # matplotlib's own annotations are partial

LEAST_DAYS = 6  # between the ends of the plot
MOST_LINES = 6  # more could not be distinguished
MOST_BARS = 8
MOST_NAME_CHARS = 24


def visibility_picture(name: str, history: Sequence[RankedDay]) -> bytes:
    """Return a PNG of both plots, nothing without the extra `plots`; raise ValueError if there is no day to draw.

    Names are drawn literally, neither as mathematics nor as markup.
    """
    if not history:
        raise ValueError("there is no ranking to draw")
    if not is_installed("matplotlib"):
        return b""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(9, 3.2), dpi=80, layout="constrained")
    over_time, against = figure.subplots(1, 2)
    _draw_time(over_time, history)
    _draw_competitors(against, name, history[-1])
    out = BytesIO()
    canvas: Any = FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        # A script that the font lacks is drawn as boxes; the table beside the picture has it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
        canvas.print_png(out)
    return out.getvalue()


def _draw_time(axes: Axes, history: Sequence[RankedDay]) -> None:
    days: list[Any] = [ranked.day for ranked in history]
    axes.plot(days, [100 * ranked.visibility for ranked in history], "k.-", label="all", linewidth=2)
    names = list(dict.fromkeys(name for ranked in history for name in ranked.by_provider))
    for name in names[:MOST_LINES]:
        shares = [_percent(ranked.by_provider, name) for ranked in history]
        axes.plot(days, shares, ".-", label=_display_name(name), alpha=0.7)
    axes.set_title("visible in % of answers", fontsize=9, parse_math=False)
    axes.set_ylim(-5, 105)
    axes.set_xlim(*shown_days(history))
    axes.tick_params(labelsize=7)
    axes.tick_params(axis="x", labelrotation=30)
    axes.legend(fontsize=7)


def shown_days(history: Sequence[RankedDay]) -> tuple[date, date]:
    """Return the first and last day of the plot: a week or more, since one day would span years."""
    first, last = history[0].day, history[-1].day
    missing = max(LEAST_DAYS - (last - first).days, 0)
    before = missing // 2
    return first - timedelta(days=before), last + timedelta(days=missing - before)


def _percent(by_name: Mapping[str, Mapping[str, Any]], name: str) -> float:
    """Return the visibility in percent; NaN, which is not drawn, where there is none."""
    visibility = by_name.get(name)
    return float("nan") if visibility is None else 100 * float(visibility["visibility"])


def _draw_competitors(axes: Axes, name: str, last: RankedDay) -> None:
    others = sorted(last.competitors, key=lambda competitor: -_percent(last.competitors, competitor))
    bars = [(name, 100 * last.visibility)]
    bars += [(competitor, _percent(last.competitors, competitor)) for competitor in others[:MOST_BARS]]
    places = list(range(len(bars)))[::-1]
    colours = ["tab:blue", *["lightgrey"] * len(others)]
    drawn = axes.barh(places, [share for _, share in bars], color=colours[: len(bars)])
    axes.bar_label(drawn, fmt="%.0f %%", fontsize=7, padding=2)
    axes.set_yticks(places)
    axes.set_yticklabels([_display_name(competitor) for competitor, _ in bars], fontsize=7, parse_math=False)
    axes.set_xlim(0, 112)  # room for the label of a full bar
    axes.tick_params(axis="x", labelsize=7)
    axes.set_title(f"against competitors, {last.day}", fontsize=9, parse_math=False)


def _display_name(name: str) -> str:
    """Return the name cut, without signs that matplotlib reads as mathematics or hides."""
    cut = name if len(name) <= MOST_NAME_CHARS else name[: MOST_NAME_CHARS - 1] + "…"
    return cut.replace("$", "").lstrip("_") or "?"


MOST_LISTED = 1_000
NEVER_ANALYSED = "never-analysed"  # the state of a website without an analysis
ANSWERED_CALL = "settled"  # status of a model call that was answered
_IS_OF_PHASE = (ACTIVE, tasks.c.kind.in_(states.KINDS))  # a task of the phase that an analysis is in
_LAST = ("id", "source_id", "status", "current_step", "progress_percent", "failure", "info", "finished_at")


class UnknownWebsite(LookupError):
    """No website has this id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebsiteReport:
    """A website's last analysis and its last complete one.

    `why` says what happens next. Cost and calls are those of the ledger, over all its analyses; the
    cost of unpriced calls is not known.
    """

    source: Source
    last: AnalysisReport | None
    complete: AnalysisReport | None
    why: str
    next_check_at: datetime | None
    cost_usd: Decimal
    calls: int
    unpriced: int


def list_websites(
    connection: Connection, *, now: datetime, max_attempts: int, status: str | None = None
) -> list[dict[str, Any]]:
    """Return every website, or those whose last analysis is in this state; by id."""
    last, waiting = _last(connection), task_states(connection, *_IS_OF_PHASE)
    query = select(website_analyses.c.source_id, website_analyses.c.analysis)
    complete = connection.execute(query.where(website_analyses.c.id.in_(states.newest_analyses(states.IS_COMPLETE))))
    scores: dict[str, Mapping[str, Any]] = {id_: analysis["overall"] for id_, analysis in complete if analysis}
    rows: list[dict[str, Any]] = []
    for watched in watched_sources(connection, kind=Kind.WEBSITE):
        id_ = watched.source.id
        why = _why(watched, last.get(id_), waiting.get(id_), now, max_attempts)
        rows.append(_listed(watched, last.get(id_), scores.get(id_), why))
    return [row for row in rows if status in {None, row["status"]}][:MOST_LISTED]


def website_report(connection: Connection, source_id: str, *, now: datetime, max_attempts: int) -> WebsiteReport:
    """Return one website with the reports of its analyses."""
    watched = watched_source(connection, source_id)
    if watched is None or watched.source.kind is not Kind.WEBSITE:
        raise UnknownWebsite(f"there is no website {source_id!r}; `ingest websites list` shows all")
    last = _last(connection, website_analyses.c.source_id == source_id).get(source_id)
    task = task_states(connection, *_IS_OF_PHASE, tasks.c.source_id == source_id).get(source_id)
    is_charged = (model_calls.c.status == ANSWERED_CALL) | (model_calls.c.cost_usd > 0)
    charged = select(model_calls.c.cost_usd).where(model_calls.c.source_id == source_id, is_charged)
    costs = list(connection.execute(charged).scalars())  # None where the price is not known
    return WebsiteReport(
        source=watched.source,
        last=latest_reports(connection, [source_id]).get(source_id),
        complete=latest_reports(connection, [source_id], is_complete=True).get(source_id),
        why=_why(watched, last, task, now, max_attempts),
        next_check_at=watched.next_check_at,
        cost_usd=sum((cost for cost in costs if cost is not None), Decimal(0)),
        calls=len(costs),
        unpriced=costs.count(None),
    )


def why_it_waits(task: TaskState | None, *, now: datetime, max_attempts: int, step: str) -> str:
    """Return why an analysis has not ended, as a sentence for people."""
    if task is None:
        return f"{step}: it has no task; `ingest dead-letters list` may have it"
    if task.status is TaskStatus.PROCESSING:
        if task.lease_until is not None and task.lease_until < now:
            return f"{step}: worker lost; the next run takes over"
        return f"{step}: running since {_at(task.updated_at)} (attempt {task.attempts})"
    because = f": {task.error}" if task.error else ""
    if task.not_before > now:
        tried = f", attempt {task.attempts} of {max_attempts} failed" if task.attempts else ""
        return f"{step}: waits until {_at(task.not_before)}{tried}{because}"
    return f"{step}: claimable since {_at(task.not_before)}; no run has had a free slot yet"


def _why(watched: Watched, last: RowMapping | None, task: TaskState | None, now: datetime, max_attempts: int) -> str:
    if last is None or watched.source.status is SourceStatus.DISABLED:
        return reason(watched.source, watched.poll, now=now, max_attempts=max_attempts)
    if not states.AnalysisStatus(last["status"]).is_final:
        return why_it_waits(task, now=now, max_attempts=max_attempts, step=last["current_step"])
    ended = f"failed: {last['failure']}" if last["failure"] else f"ended {_at(last['finished_at'])}"
    at = watched.next_check_at
    return f"{ended}; the next analysis starts {_at(at) if at else 'on request'}"


def _listed(watched: Watched, last: RowMapping | None, score: Mapping[str, Any] | None, why: str) -> dict[str, Any]:
    source = watched.source
    info: Mapping[str, Any] = (last["info"] if last else None) or {}
    return {
        "id": source.id,
        "url": source.url,
        "name": info.get("name") or source.name,
        "analysis": last["id"] if last else None,
        "status": last["status"] if last else NEVER_ANALYSED,
        "step": last["current_step"] if last else None,
        "progress_percent": last["progress_percent"] if last else 0,
        "visibility": score["visibility"] if score else None,
        "score": score["score"] if score else None,
        "finished_at": last["finished_at"] if last else None,
        "next_check_at": watched.next_check_at,
        "why": why,
    }


def _last(connection: Connection, *those: ColumnElement[bool]) -> dict[str, RowMapping]:
    columns = (website_analyses.c[name] for name in _LAST)
    query = select(*columns).where(website_analyses.c.id.in_(states.newest_analyses(*those)))
    return {row["source_id"]: row for row in connection.execute(query).mappings()}


def _at(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


MEASURED = 500  # newest analyses; older ones say little about the present


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMetrics:
    """One phase; times in seconds, means of the newest analyses, None if there are none.

    Successes, failures and retries are counted over all time. `waiting` can be claimed now or
    later; `lost` have a worker whose lease expired.
    """

    queue: str
    waiting: int
    running: int
    lost: int
    succeeded: int
    failed: int
    retries: int
    success_rate: float | None
    waiting_seconds: float | None
    processing_seconds: float | None


def phase_metrics(connection: Connection, *, now: datetime) -> list[PhaseMetrics]:
    """Return the metrics of every phase, in their order."""
    active = {queue.kind: queue for queue in queues(connection, now=now, kinds=states.KINDS)}
    ends, times = _ends(connection), _times(connection)
    return [
        PhaseMetrics(
            queue=phase.queue,
            waiting=0 if queue is None else queue.due + queue.later,
            running=0 if queue is None else queue.running,
            lost=0 if queue is None else queue.lost,
            **ends[phase.kind],
            **times[phase.queue],
        )
        for phase, queue in ((phase, active.get(phase.kind)) for phase in states.PHASES)
    ]


def _ends(connection: Connection) -> dict[str, dict[str, Any]]:
    """Return how the phases' tasks ended, by kind, deleted tasks included."""
    counts = {kind: {"succeeded": 0, "failed": 0, "retries": 0} for kind in states.KINDS}
    names = {TaskStatus.SUCCESS.value: "succeeded", TaskStatus.FAILED.value: "failed"}
    for (kind, status, _), total in ended_totals(connection, states.KINDS).items():
        counts[kind]["retries"] += total.retries
        if status in names:
            counts[kind][names[status]] += total.tasks
    ends: dict[str, dict[str, Any]] = {}
    for kind, count in counts.items():
        ended = count["succeeded"] + count["failed"]
        ends[kind] = count | {"success_rate": round(count["succeeded"] / ended, 4) if ended else None}
    return ends


def _times(connection: Connection) -> dict[str, dict[str, Any]]:
    query = select(website_analyses.c.phase_times).order_by(website_analyses.c.id.desc())
    phase_times: list[Mapping[str, Any]] = list(connection.execute(query.limit(MEASURED)).scalars())
    return {
        phase.queue: {
            "waiting_seconds": _mean(phase_times, phase.queue, "claimable", "began"),
            "processing_seconds": _mean(phase_times, phase.queue, "began", "ended"),
        }
        for phase in states.PHASES
    }


def _mean(phase_times: list[Mapping[str, Any]], queue: str, start: str, end: str) -> float | None:
    spans = [
        (datetime.fromisoformat(times[end]) - datetime.fromisoformat(times[start])).total_seconds()
        for times in (of_phases.get(queue, {}) for of_phases in phase_times)
        if start in times and end in times
    ]
    return round(sum(spans) / len(spans), 3) if spans else None


_STATES = ("waiting", "running", "lost", "succeeded", "failed")


def metrics(connection: Connection, now: datetime) -> Iterator[system_spec.Metric]:
    """Yield the metrics of the phases."""
    phases = phase_metrics(connection, now=now)
    counts = tuple(
        ({"phase": phase.queue, "state": state}, float(getattr(phase, state))) for phase in phases for state in _STATES
    )
    yield system_spec.Metric("website_phase_tasks", "Analyses of websites by phase and state.", counts)
    for rate, meaning in (
        ("retries", "Attempts beyond the first, of tasks that ended."),
        ("success_rate", "Share of successes among what ended."),
        ("waiting_seconds", "Mean waiting time of the newest analyses."),
        ("processing_seconds", "Mean processing time of the newest analyses."),
    ):
        values = tuple(
            ({"phase": phase.queue}, float(value)) for phase in phases if (value := getattr(phase, rate)) is not None
        )
        yield system_spec.Metric(f"website_phase_{rate}", meaning, values)
