"""The tables and summaries that `ingest demo run` prints, read from the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ingestion_pipeline.cli.output import Column, distance, echo, print_table, shortened
from ingestion_pipeline.cli.websites import print_visibility

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

    from sqlalchemy import Connection

    from ingestion_pipeline.demo.hooks import Inbox
    from ingestion_pipeline.demo.model_server import ScriptedModel
    from ingestion_pipeline.settings import Settings
    from ingestion_pipeline.sources import Source
    from ingestion_pipeline.sources.recipients import Recipient
    from ingestion_pipeline.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledSource:
    """A source after the run: the result of its poll and the number of new records."""

    source: Source
    result: str
    new: int


def print_summary(connection: Connection, source_ids: Sequence[str], *, since: datetime) -> None:
    """Print one line per source, then the totals."""
    polled = _polled(connection, source_ids, since=since)
    columns = [
        Column("source"),
        Column("tier"),
        Column("result"),
        Column("new", is_number=True),
        Column("details", is_flexible=True),
    ]
    rows = [
        [poll.source.id, poll.source.tier, poll.result, poll.new, shortened(poll.source.last_outcome or "", 200)]
        for poll in polled
    ]
    print_table(columns, rows)
    echo("\n" + sums(polled))
    echo(_totals(connection, since=since))


def sums(polled: Sequence[PolledSource]) -> str:
    """Return how many sources had each result, and all new records."""
    words = [poll.result for poll in polled]
    parts = [
        f"{sum(word != 'not polled' for word in words)} polled",
        f"{words.count('changed')} changed",
        f"{sum(poll.new for poll in polled)} new",
        f"{words.count('unchanged')} unchanged",
        f"{words.count('failed')} failed",
    ]
    if "quarantined" in words:
        parts.append(f"{words.count('quarantined')} quarantined")
    return ", ".join(parts)


def poll_result(source: Source, *, since: datetime) -> str:
    """Return in one word what the poll did since the run began."""
    if source.last_checked_at is None or source.last_checked_at < since:
        return "not polled"
    if source.last_error_class is not None:
        return "failed"
    if source.last_changed_at is not None and source.last_changed_at >= since:
        return "changed"
    return "unchanged" if source.last_outcome == "unchanged" else "quarantined"


def _polled(connection: Connection, source_ids: Sequence[str], *, since: datetime) -> list[PolledSource]:
    from sqlalchemy import func, select

    from ingestion_pipeline.sources.lookup import sources_by_id
    from ingestion_pipeline.store.tables import chapter_sources

    query = (
        select(chapter_sources.c.source_id, func.count().label("records"))
        .where(chapter_sources.c.detected_at >= since)
        .group_by(chapter_sources.c.source_id)
    )
    new = {row.source_id: row.records for row in connection.execute(query)}
    by_id = sources_by_id(connection, source_ids)
    return [
        PolledSource(source=source, result=poll_result(source, since=since), new=new.get(source.id, 0))
        for source in (by_id[source_id] for source_id in source_ids if source_id in by_id)
    ]


def _totals(connection: Connection, *, since: datetime) -> str:
    from sqlalchemy import func, select

    from ingestion_pipeline.store.tables import chapters, outbox

    fresh = func.count().filter(chapters.c.first_detected_at >= since)
    total, new = connection.execute(select(func.count(), fresh).select_from(chapters)).one()
    is_of_chapters = outbox.c.subject_kind.like("chapter%")
    rows = connection.execute(select(func.count()).where(is_of_chapters)).scalar_one()
    return f"chapters in all: {total}, new among them: {new}; outbox rows: {rows}"


def hint(ingest: str) -> str:
    """Return the commands to try after a run."""
    return (
        f"Try next: `{ingest} demo mutate && {ingest} demo run` (everything changes a little),\n"
        f"`{ingest} export course --to csv` (the datasets), `{ingest} extractions list`,\n"
        f"`{ingest} matches list`, `{ingest} companies list`, `{ingest} websites list`,\n"
        f"`{ingest} status`, `{ingest} notices list`, `{ingest} dev` (the UI),\n"
        f"`{ingest} dead-letters list` (failures here are part of the demo)."
    )


SHOWN_REASON = 150  # characters


def record_changes(store: Store, settings: Settings) -> None:
    """Store health changes and write their notices, as `maintain` does."""
    from ingestion_pipeline.operations.alerts import record_health_changes

    with store.begin() as connection:
        record_health_changes(connection, settings, store.clock.now(connection))


def print_health(connection: Connection, settings: Settings, source_ids: Collection[str], *, now: datetime) -> None:
    """Print the unhealthy sources, when that was reported, and how many have each health."""
    from ingestion_pipeline.cli.output import distance
    from ingestion_pipeline.operations.health import source_statuses
    from ingestion_pipeline.sources.health import UNHEALTHY

    statuses = source_statuses(connection, settings, now=now, ids=source_ids)
    unwell = [status for status in statuses if status.health in UNHEALTHY]
    if unwell:
        columns = [Column("source"), Column("health"), Column("reported"), Column("why", is_flexible=True)]
        print_table(
            columns,
            [
                [
                    status.facts.id,
                    status.health.value,
                    distance(status.reported.since, now),
                    shortened(status.assessment.reason, SHOWN_REASON),
                ]
                for status in unwell
            ],
        )
    counts = Counter(status.health.value for status in statuses)
    echo("health: " + ", ".join(f"{count} {word}" for word, count in counts.items()))


# the first three are of this run, the others of all runs
NUMBERS = ("new", "sent", "messages", "waiting", "failed")


def print_followers(connection: Connection, followers: Sequence[Recipient], *, since: datetime, now: datetime) -> None:
    """Print one line per follower: what this run sent, and what waits for how long."""
    counts = _counts(connection, since=since)
    due = _due(connection)
    columns = [
        Column("follower"),
        Column("mode"),
        *(Column(name, is_number=True) for name in NUMBERS),
        Column("next message"),
    ]
    rows: list[list[object]] = []
    for follower in followers:
        mine = counts.get(follower.id, dict.fromkeys(NUMBERS, 0))
        at = due.get(follower.id) if mine["waiting"] else None
        rows.append([follower.id, _delivery_mode(follower), *mine.values(), distance(at, now)])
    print_table(columns, rows)


def describe_received(
    before: Mapping[str, Inbox], after: Mapping[str, Inbox], *, otherwise: str, besides: Collection[str] = ()
) -> str:
    """Return what the webhooks received since `before`, message by message.

    Return `otherwise` if nobody but the operators (`besides`) received anything.
    """
    from ingestion_pipeline.demo.hooks import HOOKS_HOST, Inbox

    taken: list[str] = []
    recipients: set[str] = set()
    repeats = refused = 0
    for name, inbox in sorted(after.items()):
        earlier = before.get(name, Inbox())
        new = [title for key, title in inbox.taken.items() if key not in earlier.taken]
        taken += [f"  {name}: {title}" for title in new]
        recipients |= {name} if new else set()
        repeats += inbox.repeats - earlier.repeats
        refused += inbox.refused - earlier.refused
    if not (taken or repeats or refused):
        return otherwise
    signed = f"{refused} refused as not genuine" if refused else "every signature was valid"
    summary = f"{_counted(len(taken), 'message')}, {_counted(repeats, 'repeat')}; {signed}"
    quiet = [] if recipients - set(besides) or repeats or refused else [otherwise]
    return "\n".join([f"{HOOKS_HOST} took {summary}", *taken, *quiet])


def explain_no_notices(connection: Connection, *, since: datetime) -> str:
    """Return why no follower received a message in this run."""
    from sqlalchemy import and_, exists, select

    from ingestion_pipeline.sources.recipients import ALERTS
    from ingestion_pipeline.store.tables import chapters, notices

    def is_any(condition: Any) -> bool:  # noqa: ANN401 - a SQL expression
        return bool(connection.execute(select(exists().where(condition))).scalar_one())

    if is_any(and_(notices.c.created_at >= since, notices.c.subject_kind.not_in(ALERTS))):
        return "no message went out yet"
    if is_any(chapters.c.first_detected_at >= since):
        return "no notices: a first sync sends none"
    return "no notices: nothing is new"


def _delivery_mode(follower: Recipient) -> str:
    mode = follower.mode.value if follower.mode.value != "immediate" else "at once"
    return f"{mode} ({follower.language})" if follower.language else mode


def _counts(connection: Connection, *, since: datetime) -> dict[str, dict[str, int]]:
    """Return by follower: new, sent and messages of this run; waiting and failed in all."""
    from sqlalchemy import distinct, func, select

    from ingestion_pipeline.store.tables import GIVEN_UP, UNSENT, notices

    just_sent = notices.c.sent_at >= since
    columns = [
        func.count().filter(notices.c.created_at >= since),
        func.count().filter(just_sent),
        func.count(distinct(notices.c.delivery_id)).filter(just_sent),
        func.count().filter(UNSENT),
        func.count().filter(GIVEN_UP),
    ]
    query = select(notices.c.recipient, *columns).group_by(notices.c.recipient)
    return {row[0]: dict(zip(NUMBERS, row[1:], strict=True)) for row in connection.execute(query).all()}


def _due(connection: Connection) -> dict[str, datetime]:
    """Return when each follower with pending notices is delivered to next."""
    from sqlalchemy import select

    from ingestion_pipeline.notices.tasks import DELIVER
    from ingestion_pipeline.store.tables import ACTIVE, tasks

    query = select(tasks.c.dedupe_key, tasks.c.not_before).where(ACTIVE, tasks.c.kind == DELIVER)
    return {row.dedupe_key: row.not_before for row in connection.execute(query)}


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


LONGEST_REASON = 200


def print_businesses(connection: Connection, source_ids: Sequence[str]) -> None:
    """Print how each provider ranks each business, and what failed."""
    from ingestion_pipeline.websites.analysis_reports import latest_reports, visibility_rows

    latest = latest_reports(connection, source_ids)
    reports = [latest[source_id] for source_id in source_ids if source_id in latest]
    ranked = [(report, row) for report in reports for row in visibility_rows(report)]
    print_visibility([(str(report.info.get("name")), row) for report, row in ranked])
    for report, row in ranked:
        if row.failure:
            message = shortened(row.failure, LONGEST_REASON)
            echo(f"{report.source_id}: {row.provider} left {message}")
    for report in reports:
        if not report.analysis:
            message = report.failure or report.progress_message
            echo(f"{report.source_id} is {report.status.value}: {message}")


def print_providers(running: Mapping[str, ScriptedModel]) -> None:
    """Print which providers are asked about the demo's websites."""
    names = " and ".join(running)
    echo(f"its providers {names} answer about its websites, in runs without another provider")


JOB_NUMBERS = ("jobs", "filtered", "skipped", "matched")
LONGEST_OUTCOME = 200


def boards_of(connection: Connection, company_sources: Sequence[str]) -> list[Source]:
    """Return the job boards discovered through the companies of these sources, by id."""
    from ingestion_pipeline.sources import Kind
    from ingestion_pipeline.sources.lookup import list_sources
    from ingestion_pipeline.store.tables import sources

    named = sources.c.company_id.in_([source_id.partition(":")[2] for source_id in company_sources])
    return sorted(list_sources(connection, named, kind=Kind.JOB_BOARD), key=lambda source: source.id)


def approve(connection: Connection, company_sources: Sequence[str], *, now: datetime) -> list[str]:
    """Enable the boards of these companies that wait for approval; return their ids."""
    from ingestion_pipeline.sources import SourceStatus, registry

    waiting = [
        board for board in boards_of(connection, company_sources) if board.status is SourceStatus.PENDING_VALIDATION
    ]
    for board in waiting:
        registry.enable(connection, board.id, actor="demo", reason="the demo approves it", now=now)
        echo(f"{board.id} waited for approval ({_why(board)});")
        echo(f"  the demo approves it, as `ingest sources enable {board.id}` does")
    return [board.id for board in waiting]


def _why(source: Source) -> str:
    return (source.status_reason or "").partition(";")[0]


def print_jobs(connection: Connection, company_sources: Sequence[str], *, since: datetime, now: datetime) -> None:
    """Print companies, boards, listings that did not match, and refused tasks."""
    _print_companies(connection, company_sources)
    boards = boards_of(connection, company_sources)
    echo("")
    _print_boards(connection, boards, since=since)
    rows = rejected_rows(connection, [board.id for board in boards])
    if rows:
        echo("")
        print_table([Column("no match"), Column("by"), Column("reason", is_flexible=True)], rows)
    for line in refusals(connection, since=since, now=now):
        echo("\n" + line)


def _print_companies(connection: Connection, company_sources: Sequence[str]) -> None:
    from sqlalchemy import select

    from ingestion_pipeline.store.tables import companies

    names = ("source_id", "quality", "tier", "score", "boards")
    query = select(*(companies.c[name] for name in names)).where(companies.c.source_id.in_(list(company_sources)))
    companies_found = connection.execute(query.order_by(companies.c.source_id)).mappings()
    rows = [
        [row["source_id"], row["quality"].get("level"), row["tier"], row["score"], _board_list(row["boards"])]
        for row in companies_found
    ]
    columns = [
        Column("company"),
        Column("data"),
        Column("tier"),
        Column("score", is_number=True),
        Column("boards, and their confidence", is_flexible=True),
    ]
    print_table(columns, rows)


def _board_list(boards: list[dict[str, Any]] | None) -> str:
    return ", ".join(f"{board['platform']} ({board['confidence']})" for board in boards or [])


def _print_boards(connection: Connection, boards: Sequence[Source], *, since: datetime) -> None:
    from ingestion_pipeline.companies.reports import match_report

    rows: list[list[object]] = []
    for board in boards:
        report = match_report(connection, board.id)
        counts = (report.listings, report.filtered, report.skipped, report.matched)
        outcome = shortened(board.last_outcome or "", LONGEST_OUTCOME)
        rows.append([board.id, poll_result(board, since=since), *counts, outcome])
    columns = [
        Column("board"),
        Column("result"),
        *(Column(name, is_number=True) for name in JOB_NUMBERS),
        Column("details", is_flexible=True),
    ]
    print_table(columns, rows)


def rejected_rows(connection: Connection, source_ids: Sequence[str]) -> list[list[object]]:
    """Return the open listings that are no match: title, rule or score, reason."""
    from sqlalchemy import select

    from ingestion_pipeline.companies.company_states import ListingDecision, ListingStatus
    from ingestion_pipeline.store.tables import job_listings

    jobs = job_listings.c
    query = select(jobs.title, jobs.filter_result, jobs.match_result).where(
        jobs.source_id.in_(list(source_ids)),
        jobs.status == ListingStatus.OPEN.value,
        jobs.decision != ListingDecision.MATCHED.value,
    )
    return [
        [row.title, *rejection_reason(row.filter_result or {}, row.match_result or {})]
        for row in connection.execute(query.order_by(jobs.id))
    ]


def rejection_reason(filtered: dict[str, Any], matched: dict[str, Any]) -> tuple[str, str]:
    """Return what rejected a listing: the filter and its reason, or the score."""
    if matched:
        strikes = filtered.get("strikes", 0)
        passed = f"; {strikes} strikes, {filtered['threshold']} would filter" if strikes else ""
        return "score", f"below {matched['threshold']}: {matched['reason']}{passed}"
    reasons = "; ".join(item["reason"] for item in filtered.get("items", ()))
    return filtered.get("rejected_by") or "-", reasons


def refusals(connection: Connection, *, since: datetime, now: datetime) -> list[str]:
    """Return a line for each task that the spawn guard refused since then."""
    from sqlalchemy import select

    from ingestion_pipeline.store.tables import audit_log, tasks
    from ingestion_pipeline.tasks.queue import REFUSED

    query = select(audit_log.c.detail).where(
        audit_log.c.action == REFUSED, audit_log.c.at >= since, audit_log.c.at <= now
    )
    refused = list(connection.execute(query.order_by(audit_log.c.id)).scalars())
    parents = [refusal["parent"] for refusal in refused]
    query = select(tasks.c.id, tasks.c.kind).where(tasks.c.id.in_(parents))
    kinds = {row.id: row.kind for row in connection.execute(query)}
    return [
        f"refused by the spawn guard: {kinds.get(refusal['parent'], 'task')}"
        f" {refusal['parent']} -> {refusal['kind']} {refusal['url']}"
        f" ({refusal['reason'].replace('_', ' ')})"
        for refusal in refused
    ]


def print_matches(connection: Connection, company_sources: Sequence[str]) -> None:
    """Print the matches of the companies' boards, best first, each with the reason."""
    from ingestion_pipeline.companies.reports import list_matches

    boards = [board.id for board in boards_of(connection, company_sources)]
    matches = [match for board in boards for match in list_matches(connection, source_id=board)]
    names = ("score", "priority", "title", "company", "reason")
    columns = [
        Column("score", is_number=True),
        Column("priority"),
        Column("title"),
        Column("company"),
        Column("reason", is_flexible=True),
    ]
    if not matches:
        echo("no matches; `ingest explain job_listings:ID` shows why one is no match")
        return
    best = sorted(matches, key=lambda match: (-match["score"], match["listing_id"]))
    print_table(columns, [[match[name] for name in names] for match in best])
