"""Reports on companies, boards, listings and matches: for the UI, the CLI, and as events of the assets."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from io import BytesIO
from typing import Any, cast

from sqlalchemy import ColumnElement, Connection, RowMapping, exists, func, or_, select

from ingestion_pipeline.companies.analysis.company_pages import CALL_SITE
from ingestion_pipeline.companies.matching.tasks import NEW
from ingestion_pipeline.companies.records import COMPANY, SOURCE_DISCOVERY, ListingDecision, ListingStatus
from ingestion_pipeline.engine.system_spec import (
    AssetEvent,
    EventValue,
    Markdown,
    Url,
    details_table,
    moment,
    picture,
    plain,
    preview_table,
    rounded_usd,
)
from ingestion_pipeline.extras import is_installed
from ingestion_pipeline.store.tables import (
    audit_log,
    companies,
    job_listings,
    job_matches,
    listing_sources,
    model_calls,
    sources,
    tasks,
)
from ingestion_pipeline.tasks.queue import REFUSED, lineage_of
from ingestion_pipeline.tasks.task import TaskStatus

MAX_LISTED = 1_000
_COMPANY_COLUMNS = ("id", "name", "website", "status", "tier", "score", "analyzed_at", "source_id", "quality")


class UnknownCompany(LookupError):
    """No company has this id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanyReport:
    """A company's record, the refusals of the spawn guard in its lineage, and its cost."""

    row: Mapping[str, Any]
    refusals: Sequence[Mapping[str, Any]]
    tasks: Sequence[Mapping[str, Any]]
    cost_usd: Decimal


def sources_in_progress(connection: Connection, source_ids: Collection[str], *, now: datetime) -> list[str]:
    """Return those of these sources whose company a worker is analysing now."""
    query = select(tasks.c.source_id).where(
        tasks.c.kind == COMPANY,
        tasks.c.source_id.in_(list(source_ids)),
        tasks.c.status == TaskStatus.PROCESSING.value,
        tasks.c.lease_until > now,
    )
    return sorted(set(connection.execute(query).scalars()))


def list_companies(
    connection: Connection, *, status: str | None = None, tier: str | None = None
) -> list[dict[str, Any]]:
    """Return companies by score, best first; those without a score last."""
    query = select(*(companies.c[name] for name in _COMPANY_COLUMNS))
    if status is not None:
        query = query.where(companies.c.status == status)
    if tier is not None:
        query = query.where(companies.c.tier == tier)
    ordered = query.order_by(func.coalesce(companies.c.score, -1).desc(), companies.c.id)
    return [dict(row) for row in connection.execute(ordered.limit(MAX_LISTED)).mappings()]


def company_report(connection: Connection, company_id: str) -> CompanyReport:
    """Return the company's report; raise `UnknownCompany` if there is no such company."""
    query = select(companies).where(companies.c.id == company_id)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise UnknownCompany(f"there is no company {company_id!r}; `ingest companies list` shows all")
    return _company_report(connection, row)


def analysed_since(
    connection: Connection, *, since: datetime, source_ids: Collection[str] | None = None, limit: int
) -> list[CompanyReport]:
    """Return the companies with a source that were analysed since then."""
    query = select(companies).where(companies.c.source_id.is_not(None), companies.c.analyzed_at >= since)
    if source_ids is not None:
        query = query.where(companies.c.source_id.in_(list(source_ids)))
    rows = connection.execute(query.order_by(companies.c.id).limit(limit)).mappings().all()
    return [_company_report(connection, row) for row in rows]


def _company_report(connection: Connection, row: RowMapping) -> CompanyReport:
    refused = select(audit_log.c.at, audit_log.c.detail).where(
        audit_log.c.subject == lineage_of(row["tracking_id"]), audit_log.c.action == REFUSED
    )
    names = ("id", "kind", "url", "status", "attempts", "stage", "error")
    newest = select(*(tasks.c[name] for name in names)).where(
        tasks.c.source_id == row["source_id"], tasks.c.kind.in_([COMPANY, SOURCE_DISCOVERY])
    )
    cost = select(func.sum(model_calls.c.cost_usd)).where(
        model_calls.c.source_id == row["source_id"], model_calls.c.call_site == CALL_SITE
    )
    return CompanyReport(
        row=dict(row),
        refusals=[{"at": at, **detail} for at, detail in connection.execute(refused.order_by(audit_log.c.at))],
        tasks=[dict(task) for task in connection.execute(newest.order_by(tasks.c.id.desc()).limit(20)).mappings()],
        cost_usd=connection.execute(cost).scalar_one() or Decimal(0),
    )


SHOWN_LISTINGS = 10
OTHERWISE = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardReport:
    """A board's state and the changes since its last report.

    `found` counts the jobs that it lists; of them so many are `filtered` (by reason), `skipped`, or `matched`.
    `duplicate` are those that another board listed before.
    """

    source_id: str
    company: str | None
    url: str
    tier: str
    outcome: str
    polls: int
    changes: int
    updated: int
    closed: int
    filtered: Mapping[str, int]
    newest: Sequence[RowMapping]
    found: int = 0
    new: int = 0
    duplicate: int = 0
    skipped: int = 0
    matched: int = 0
    has_jobs: bool = False  # now or earlier

    @property
    def waiting(self) -> int:
        """Return how many of the jobs are not evaluated yet."""
        return self.found - sum(self.filtered.values()) - self.skipped - self.matched


def board_reports(connection: Connection, source_ids: Collection[str]) -> list[BoardReport]:
    """Return the report of each board with a constant number of queries."""
    query = select(
        sources.c.id.label("source_id"),
        func.coalesce(sources.c.company_id, sources.c.name).label("company"),
        sources.c.url,
        sources.c.tier,
        func.coalesce(sources.c.last_outcome, "not polled yet").label("outcome"),
        sources.c.unreported_polls.label("polls"),
        sources.c.unreported_changes.label("changes"),
        sources.c.unreported_updated.label("updated"),
        sources.c.unreported_withdrawn.label("closed"),
    ).where(sources.c.id.in_(list(source_ids)))
    counts = _board_counts(connection, source_ids)
    reasons = _reasons(connection, source_ids)
    newest = _newest(connection, source_ids)
    return [
        BoardReport(
            **row,
            **counts.get(row["source_id"], {}),
            has_jobs=row["source_id"] in counts,
            filtered=reasons.get(row["source_id"], {}),
            newest=newest.get(row["source_id"], []),
        )
        for row in connection.execute(query.order_by(sources.c.id)).mappings()
    ]


def _is_new() -> Any:  # noqa: ANN401 - a SQL expression
    first_seen = listing_sources.c.first_seen_at
    return or_(sources.c.reported_at.is_(None), first_seen > sources.c.reported_at)


def _board_counts(connection: Connection, source_ids: Collection[str]) -> dict[str, dict[str, Any]]:
    links = listing_sources.c
    is_own = job_listings.c.source_id == links.source_id
    listed = links.available
    query = (
        select(
            links.source_id,
            func.count().filter(listed).label("found"),
            func.count().filter(_is_new(), is_own).label("new"),
            func.count().filter(_is_new(), ~is_own).label("duplicate"),
            *(
                func.count().filter(listed, job_listings.c.decision == decision.value).label(decision)
                for decision in (ListingDecision.SKIPPED, ListingDecision.MATCHED)
            ),
        )
        .join(job_listings, job_listings.c.id == links.listing_id)
        .join(sources, sources.c.id == links.source_id)
        .where(links.source_id.in_(list(source_ids)))
        .group_by(links.source_id)
    )
    rows = (dict(row) for row in connection.execute(query).mappings())
    return {row.pop("source_id"): row for row in rows}


def _reasons(connection: Connection, source_ids: Collection[str]) -> dict[str, Counter[str]]:
    """Return by board the first filter reason of each filtered job, counted."""
    links = listing_sources.c
    query = (
        select(links.source_id, job_listings.c.filter_result)
        .join(job_listings, job_listings.c.id == links.listing_id)
        .where(
            links.source_id.in_(list(source_ids)),
            links.available,
            job_listings.c.decision == ListingDecision.FILTERED.value,
        )
    )
    by_board: dict[str, Counter[str]] = {}
    for source_id, result in connection.execute(query):
        by_board.setdefault(source_id, Counter())[first_reason(result)] += 1
    return by_board


def first_reason(result: object) -> str:
    """Return the filter's first reason: the name of the rejection, or strikes."""
    fields = cast("dict[str, Any]", result) if isinstance(result, dict) else {}
    return str(fields.get("rejected_by") or OTHERWISE)[:60]


def _newest(connection: Connection, source_ids: Collection[str]) -> dict[str, list[RowMapping]]:
    links, jobs = listing_sources.c, job_listings.c
    order = (links.first_seen_at.desc(), jobs.posted_at.desc().nulls_last(), jobs.id.desc())
    place = func.row_number().over(partition_by=links.source_id, order_by=order).label("place")
    ranked = (
        select(
            links.source_id,
            links.first_seen_at,
            *(jobs.title, jobs.location, jobs.posted_at, jobs.decision),
            jobs.company_name.label("company"),
            _is_new().label("is_new"),
            place,
        )
        .join(job_listings, jobs.id == links.listing_id)
        .join(sources, sources.c.id == links.source_id)
        .where(links.source_id.in_(list(source_ids)), links.available, jobs.status == ListingStatus.OPEN.value)
        .cte("ranked")
    )
    query = select(ranked).where(ranked.c.place <= SHOWN_LISTINGS)
    by_board: dict[str, list[RowMapping]] = {}
    for row in connection.execute(query.order_by(ranked.c.source_id, ranked.c.place)).mappings():
        by_board.setdefault(row["source_id"], []).append(row)
    return by_board


_LISTING_COLUMNS = ("id", "title", "location", "remote", "status", "decision", "url", "company_id")
_TIMES = ("posted_at", "first_seen_at", "closed_at")
WAITING = "waiting"  # for an evaluation


class UnknownListing(LookupError):
    """No listing has this id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingFilter:
    """Conditions on listings; all that are not None must hold."""

    source_id: str | None = None
    company: str | None = None
    status: str | None = None
    decision: str | None = None
    words: str | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return the conditions as SQL; a company matches by its id or a part of its name."""
        conditions: list[ColumnElement[bool]] = []
        if self.source_id is not None:
            conditions.append(
                exists().where(
                    listing_sources.c.listing_id == job_listings.c.id, listing_sources.c.source_id == self.source_id
                )
            )
        if self.company is not None:
            is_named = job_listings.c.company_name.icontains(self.company, autoescape=True)
            conditions.append(or_(job_listings.c.company_id == self.company, is_named))
        if self.status is not None:
            conditions.append(job_listings.c.status == self.status)
        if self.decision == WAITING:
            conditions.append(job_listings.c.decision.is_(None))
        elif self.decision is not None:
            conditions.append(job_listings.c.decision == self.decision)
        if self.words is not None:
            conditions.append(job_listings.c.title.icontains(self.words, autoescape=True))
        return conditions


def list_listings(connection: Connection, listing_filter: ListingFilter, *, limit: int = 50) -> list[dict[str, Any]]:
    """Return the newest listings that match the filter."""
    company = func.coalesce(companies.c.name, job_listings.c.company_name).label("company")
    columns = (*(job_listings.c[name] for name in (*_LISTING_COLUMNS, *_TIMES)), company, job_listings.c.source_id)
    query = select(*columns).outerjoin(companies, companies.c.id == job_listings.c.company_id)
    order = (job_listings.c.first_seen_at.desc(), job_listings.c.id.desc())
    newest = query.where(*listing_filter.conditions()).order_by(*order).limit(limit)
    return [dict(row) for row in connection.execute(newest).mappings()]


def listing_details(connection: Connection, listing_id: int) -> Mapping[str, Any]:
    """Return the stored listing with its links and its match; raise UnknownListing if there is none."""
    result = connection.execute(select(job_listings).where(job_listings.c.id == listing_id))
    row = result.mappings().one_or_none()
    if row is None:
        raise UnknownListing(f"there is no listing {listing_id}; `ingest listings list` shows all")
    names = ("source_id", "external_id", "url", "available", "first_seen_at", "last_seen_at")
    links = select(*(listing_sources.c[name] for name in names)).where(listing_sources.c.listing_id == listing_id)
    match = select(job_matches).where(job_matches.c.listing_id == listing_id)
    match_row = connection.execute(match).mappings().one_or_none()
    return {
        **row,
        "links": [dict(link) for link in connection.execute(links.order_by("id")).mappings()],
        "match": None if match_row is None else dict(match_row),
    }


SHOWN_MATCHES = 20
BIN_WIDTH = 10  # of the histogram of scores


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchReport:
    """A board's open listings by decision, filtered ones by reason, scored ones by tens, and its best matches."""

    source_id: str
    listings: int
    waiting: int
    filtered: int
    skipped: int
    matched: int
    filtered_by: Mapping[str, int]
    scores: Mapping[int, int]
    best: Sequence[Mapping[str, Any]]


def match_report(connection: Connection, source_id: str) -> MatchReport:
    """Return the current report of the board."""
    decisions, reasons, scores = _counted(connection, source_id)
    matched = decisions[ListingDecision.MATCHED.value]
    return MatchReport(
        source_id=source_id,
        listings=decisions.total(),
        waiting=decisions[None],
        filtered=decisions[ListingDecision.FILTERED.value],
        skipped=decisions[ListingDecision.SKIPPED.value],
        matched=matched,
        filtered_by=dict(reasons.most_common()),
        scores=dict(sorted(scores.items())),
        best=list_matches(connection, source_id=source_id, limit=SHOWN_MATCHES) if matched else (),
    )


def _counted(connection: Connection, source_id: str) -> tuple[Counter[str | None], Counter[str], Counter[int]]:
    """Return counts by decision, by filter reason and by tens of the score, in one query."""
    reason = job_listings.c.filter_result["rejected_by"].as_string()
    score = job_listings.c.match_result["score"].as_integer()
    query = (
        select(job_listings.c.decision, reason, score, func.count())
        .join(listing_sources, listing_sources.c.listing_id == job_listings.c.id)
        .where(listing_sources.c.source_id == source_id, job_listings.c.status == ListingStatus.OPEN.value)
        .group_by(job_listings.c.decision, reason, score)
    )
    decisions: Counter[str | None] = Counter()
    reasons: Counter[str] = Counter()
    scores: Counter[int] = Counter()
    for decision, why, scored, number in connection.execute(query):
        decisions[decision] += number
        if decision == ListingDecision.FILTERED.value and why:
            reasons[why] += number
        if scored is not None:
            scores[min(scored // BIN_WIDTH, 9) * BIN_WIDTH] += number
    return decisions, reasons, scores


def list_matches(connection: Connection, *, source_id: str | None = None, limit: int = 100) -> list[Mapping[str, Any]]:
    """Return the current matches, best first."""
    match_columns = ("score", "rank_score", "priority", "reason", "method", "skills_matched", "skills_missing")
    query = (
        select(
            job_matches.c.listing_id,
            *(job_matches.c[name] for name in match_columns),
            *(job_listings.c[name] for name in ("title", "url", "location", "posted_at")),
            func.coalesce(companies.c.name, job_listings.c.company_name).label("company"),
            job_matches.c.source_id,
            job_matches.c.created_at,
        )
        .join(job_listings, job_listings.c.id == job_matches.c.listing_id)
        .outerjoin(companies, companies.c.id == job_matches.c.company_id)
        .where(job_matches.c.status == NEW)
    )
    if source_id is not None:
        query = query.where(job_matches.c.source_id == source_id)
    rank = func.coalesce(job_matches.c.rank_score, job_matches.c.score)
    order = (job_matches.c.score.desc(), rank.desc(), job_matches.c.created_at.desc(), job_matches.c.id)
    return [dict(row) for row in connection.execute(query.order_by(*order).limit(limit)).mappings()]


MATCH_COLUMNS = ("score", "priority", "title", "company", "location", "reason", "url")


def company_event(report: CompanyReport) -> AssetEvent:
    """Return the event of the company with its facts and score."""
    row, quality = report.row, report.row["quality"]
    points: Mapping[str, int] = row["score_parts"] or {}
    evidence: dict[str, dict[str, Any]] = row["evidence"] or {}
    methods = Counter(str(fact["method"]) for fact in evidence.values())
    metadata: dict[str, EventValue] = {
        "boards": Markdown(_board_table(row["boards"] or [])),
        "details": details_table(
            {f"facts by {method}": count for method, count in methods.items()}
            | {f"points for {part.replace('_', ' ')}": count for part, count in points.items()}
        ),
        "outcome": str(quality.get("level")),
        "website": Url(row["website"]),
        "score": row["score"] or 0,
        "tier": row["tier"] or "",
        "technologies": row["tech_stack"] or {},
        "missing": ", ".join(quality.get("missing", ())) or "nothing",
        "pages": len(quality.get("pages", ())),
        "pages_failed": dict(quality.get("pages_failed", {})),
        "boards_found": len(row["boards"] or []),
        "cost_usd": rounded_usd(report.cost_usd),
        "refused_spawns": len(report.refusals),
    }
    has_data = bool(row["evidence"] or row["tech_stack"] or row["boards"])
    return AssetEvent(asset="companies", partition=row["source_id"], metadata=metadata, has_data=has_data)


def _board_table(boards: list[dict[str, Any]]) -> str:
    if not boards:
        return "no boards"
    lines = [
        f"| {plain(board['platform'])} | {plain(board['url'])} | {board['confidence']}"
        f" | {plain(board.get('source_id') or board.get('note') or 'waits for its discovery')} |"
        for board in boards
    ]
    return "\n".join(["| platform | board | confidence | source |", "|---|---|---|---|", *lines])


def board_events(connection: Connection, source_ids: Collection[str]) -> list[AssetEvent]:
    """Return the event of each board."""
    return [_board_event(report) for report in board_reports(connection, source_ids)]


def _board_event(report: BoardReport) -> AssetEvent:
    metadata: dict[str, EventValue] = {
        "newest": Markdown(listing_table(report.newest)),
        "outcome": report.outcome[:2_000],
        "url": Url(report.url),
        "tier": report.tier,
        "polled": report.polls,
        "changed": report.changes,
        **{name: getattr(report, name) for name in ("found", "new", "duplicate", "updated", "closed")},
        "not_evaluated_yet": report.waiting,
        "details": details_table(
            {"filtered": sum(report.filtered.values()), "skipped": report.skipped, "matched": report.matched}
            | _by_reason(report.filtered)
        ),
    }
    if report.company:
        metadata["company"] = report.company[:200]
    return AssetEvent(asset="job_listings", partition=report.source_id, metadata=metadata, has_data=report.has_jobs)


def _by_reason(reasons: Mapping[str, int]) -> dict[str, int]:
    """Return why jobs were filtered, the commonest reason first."""
    most_first = sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))
    return {f"filtered by {reason.replace('_', ' ')}": count for reason, count in most_first}


def listing_table(listings: Sequence[RowMapping]) -> str:
    """Return the jobs as a Markdown table, in the order given."""
    if not listings:
        return "no jobs"
    lines = ["| job | company | where | posted (UTC) | decision | |", "|---|---|---|---|---|---|"]
    for listing in listings:
        cells = (
            plain(listing["title"]),
            plain(listing["company"], limit=40),
            plain(listing["location"], limit=40),
            moment(listing["posted_at"]),
            listing["decision"] or "",
        )
        lines.append(f"| {' | '.join(cells)} | {'**new**' if listing['is_new'] else ''} |")
    return "\n".join(lines)


def match_event(report: MatchReport) -> AssetEvent:
    """Return the event of the board's funnel; numbers, since Dagster plots them."""
    metadata: dict[str, EventValue] = {}
    if report.best:
        rows = [{name: match[name] for name in MATCH_COLUMNS} for match in report.best]
        metadata["best_matches"] = preview_table(rows, cell_chars=200)
    metadata |= {
        **{name: getattr(report, name) for name in ("listings", "waiting", "filtered", "skipped", "matched")},
        "details": details_table(_by_reason(report.filtered_by)),
    }
    if report.scores:
        image = picture(histogram(report), name="scores")
        metadata |= {"scores": image} if image else {}
    return AssetEvent(
        asset="job_matches", partition=report.source_id, metadata=metadata, has_data=bool(report.listings)
    )


def histogram(report: MatchReport) -> bytes:
    """Return a PNG of how many listings of the board have which score; nothing without the extra `plots`."""
    if not is_installed("matplotlib"):
        return b""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 2.5), dpi=90, layout="constrained")
    canvas: Any = FigureCanvasAgg(figure)
    axes: Any = figure.add_subplot()
    starts = list(range(0, 100, BIN_WIDTH))
    heights = [report.scores.get(start, 0) for start in starts]
    axes.bar(starts, heights, width=BIN_WIDTH * 0.9, align="edge", color="#4c72b0")
    axes.set_xlim(0, 100)
    axes.set_xlabel("score")
    axes.set_ylabel("listings")
    axes.yaxis.get_major_locator().set_params(integer=True)
    drawn = BytesIO()
    canvas.print_png(drawn)
    return drawn.getvalue()
