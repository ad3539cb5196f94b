"""What a demo run came to, told by the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ingestion_pipeline.cli.output import Column, distance, say, say_table, shortened
from ingestion_pipeline.cli.websites import say_visibility

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
class Polled:
    """A source after the run: what its poll came to, and how many new records it brought."""

    source: Source
    came_to: str
    new: int


def say_summary(connection: Connection, source_ids: Sequence[str], *, since: datetime) -> None:
    """One line per source, then the sums."""
    polled = _polled(connection, source_ids, since=since)
    columns = [
        Column("source"),
        Column("tier"),
        Column("came to"),
        Column("new", is_number=True),
        Column("said", is_flexible=True),
    ]
    rows = [
        [
            one.source.id,
            one.source.tier,
            one.came_to,
            one.new,
            shortened(one.source.last_outcome or "", 200),
        ]
        for one in polled
    ]
    say_table(columns, rows)
    say("\n" + sums(polled))
    say(_totals(connection, since=since))


def sums(polled: Sequence[Polled]) -> str:
    """How many sources came to what, and all new records."""
    words = [one.came_to for one in polled]
    parts = [
        f"{sum(word != 'not polled' for word in words)} polled",
        f"{words.count('changed')} changed",
        f"{sum(one.new for one in polled)} new",
        f"{words.count('unchanged')} unchanged",
        f"{words.count('failed')} failed",
    ]
    if "quarantined" in words:
        parts.append(f"{words.count('quarantined')} quarantined")
    return ", ".join(parts)


def came_to(source: Source, *, since: datetime) -> str:
    """One word for what became of the source since the run began."""
    if source.last_checked_at is None or source.last_checked_at < since:
        return "not polled"
    if source.last_error_class is not None:
        return "failed"
    if source.last_changed_at is not None and source.last_changed_at >= since:
        return "changed"
    return "unchanged" if source.last_outcome == "unchanged" else "quarantined"


def _polled(connection: Connection, source_ids: Sequence[str], *, since: datetime) -> list[Polled]:
    from sqlalchemy import func, select

    from ingestion_pipeline.sources.lookup import sources_by_id
    from ingestion_pipeline.store.tables import chapter_sources

    query = (
        select(chapter_sources.c.source_id, func.count().label("records"))
        .where(chapter_sources.c.detected_at >= since)
        .group_by(chapter_sources.c.source_id)
    )
    new = {row.source_id: row.records for row in connection.execute(query)}
    found = sources_by_id(connection, source_ids)
    return [
        Polled(source=one, came_to=came_to(one, since=since), new=new.get(one.id, 0))
        for one in (found[source_id] for source_id in source_ids if source_id in found)
    ]


def _totals(connection: Connection, *, since: datetime) -> str:
    from sqlalchemy import func, select

    from ingestion_pipeline.store.tables import chapters, outbox

    fresh = func.count().filter(chapters.c.first_detected_at >= since)
    total, new = connection.execute(select(func.count(), fresh).select_from(chapters)).one()
    told = outbox.c.subject_kind.like("chapter%")
    rows = connection.execute(select(func.count()).where(told)).scalar_one()
    return f"chapters in all: {total}, new among them: {new}; outbox rows: {rows}"


def hint(ingest: str) -> str:
    """What to try after a run."""
    return (
        f"Try next: `{ingest} demo mutate && {ingest} demo run` (everything changes a little),\n"
        f"`{ingest} export course --to csv` (the datasets), `{ingest} extractions list`,\n"
        f"`{ingest} matches list`, `{ingest} companies list`, `{ingest} websites list`,\n"
        f"`{ingest} status`, `{ingest} notices list`, `make dev` (the UI),\n"
        f"`{ingest} dead-letters list` (what is broken here is meant to be)."
    )


SHOWN_REASON = 150  # characters


def tell_changes(store: Store, settings: Settings) -> None:
    """Who changed for the worse or the better is written down and told, as `maintain` does it."""
    from ingestion_pipeline.operations.alerts import note_health

    with store.begin() as connection:
        note_health(connection, settings, store.clock.now(connection))


def say_health(
    connection: Connection, settings: Settings, source_ids: Collection[str], *, now: datetime
) -> None:
    """Those that are unwell, with since when it was told, and how many of each word there are."""
    from ingestion_pipeline.cli.output import distance
    from ingestion_pipeline.operations.health import standings
    from ingestion_pipeline.sources.health import UNWELL

    found = standings(connection, settings, now=now, ids=source_ids)
    unwell = [one for one in found if one.health in UNWELL]
    if unwell:
        columns = [
            Column("source"),
            Column("health"),
            Column("told"),
            Column("why", is_flexible=True),
        ]
        say_table(
            columns,
            [
                [
                    one.facts.id,
                    one.health.value,
                    distance(one.told.since, now),
                    shortened(one.verdict.reason, SHOWN_REASON),
                ]
                for one in unwell
            ],
        )
    counts = Counter(one.health.value for one in found)
    say("health: " + ", ".join(f"{count} {word}" for word, count in counts.items()))


# the first three of this run, the others of all that were ever written
NUMBERS = ("new", "sent", "messages", "waiting", "failed")


def say_followers(
    connection: Connection, followers: Sequence[Recipient], *, since: datetime, now: datetime
) -> None:
    """One line per follower: what this run told them, and what still waits for how long."""
    counts = _counts(connection, since=since)
    due = _due(connection)
    columns = [
        Column("follower"),
        Column("is told"),
        *(Column(name, is_number=True) for name in NUMBERS),
        Column("next message"),
    ]
    rows: list[list[object]] = []
    for one in followers:
        mine = counts.get(one.id, dict.fromkeys(NUMBERS, 0))
        at = due.get(one.id) if mine["waiting"] else None
        rows.append([one.id, _manner(one), *mine.values(), distance(at, now)])
    say_table(columns, rows)


def received(
    before: Mapping[str, Inbox],
    after: Mapping[str, Inbox],
    *,
    otherwise: str,
    besides: Collection[str] = (),
) -> str:
    """What the hooks took since then, message by message.

    `otherwise` if nobody was told anything but those who keep the house (`besides`).
    """
    from ingestion_pipeline.demo.hooks import HOOKS_HOST, Inbox

    taken: list[str] = []
    told: set[str] = set()
    repeats = refused = 0
    for name, inbox in sorted(after.items()):
        known = before.get(name, Inbox())
        new = [title for key, title in inbox.taken.items() if key not in known.taken]
        taken += [f"  {name}: {title}" for title in new]
        told |= {name} if new else set()
        repeats += inbox.repeats - known.repeats
        refused += inbox.refused - known.refused
    if not (taken or repeats or refused):
        return otherwise
    signed = f"{refused} refused as not genuine" if refused else "every signature was valid"
    said = f"{_counted(len(taken), 'message')}, {_counted(repeats, 'repeat')}; {signed}"
    quiet = [] if told - set(besides) or repeats or refused else [otherwise]
    return "\n".join([f"{HOOKS_HOST} took {said}", *taken, *quiet])


def explain_no_notices(connection: Connection, *, since: datetime) -> str:
    """Why no follower got a message of this run."""
    from sqlalchemy import and_, exists, select

    from ingestion_pipeline.sources.recipients import ALERTS
    from ingestion_pipeline.store.tables import chapters, notices

    def is_any(condition: Any) -> bool:  # noqa: ANN401 - a SQL expression
        return bool(connection.execute(select(exists().where(condition))).scalar_one())

    if is_any(and_(notices.c.created_at >= since, notices.c.subject_kind.not_in(ALERTS))):
        return "no message went out yet"
    if is_any(chapters.c.first_detected_at >= since):
        return "nobody is told of a first sync: what was there before is no news"
    return "nobody is told: there is no news"


def _manner(one: Recipient) -> str:
    mode = one.mode.value if one.mode.value != "immediate" else "at once"
    return f"{mode} ({one.language})" if one.language else mode


def _counts(connection: Connection, *, since: datetime) -> dict[str, dict[str, int]]:
    """By follower: new, sent and messages of this run; waiting and failed in all."""
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
    return {
        row[0]: dict(zip(NUMBERS, row[1:], strict=True)) for row in connection.execute(query).all()
    }


def _due(connection: Connection) -> dict[str, datetime]:
    """When each follower who has something coming is looked at next."""
    from sqlalchemy import select

    from ingestion_pipeline.notices.tasks import DELIVER
    from ingestion_pipeline.store.tables import ACTIVE, tasks

    query = select(tasks.c.dedupe_key, tasks.c.not_before).where(ACTIVE, tasks.c.kind == DELIVER)
    return {row.dedupe_key: row.not_before for row in connection.execute(query)}


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


LONGEST_REASON = 200


def say_businesses(connection: Connection, source_ids: Sequence[str]) -> None:
    """What each provider makes of each business, and what went wrong on the way."""
    from ingestion_pipeline.websites.reporting import latest_reports, visibility_rows

    found = latest_reports(connection, source_ids)
    reports = [found[one] for one in source_ids if one in found]
    shown = [(one, row) for one in reports for row in visibility_rows(one)]
    say_visibility([(str(report.info.get("name")), row) for report, row in shown])
    for report, row in shown:
        if row.failure:
            said = shortened(row.failure, LONGEST_REASON)
            say(f"{report.source_id}: {row.provider} left {said}")
    for one in reports:
        if not one.analysis:
            said = one.failure or one.progress_message
            say(f"{one.source_id} is {one.status.value}: {said}")


def say_providers(running: Mapping[str, ScriptedModel]) -> None:
    """Who is asked about the demo's websites, and by whom."""
    names = " and ".join(running)
    say(f"its providers {names} are asked about its websites, by runs that have no other provider")


JOB_NUMBERS = ("jobs", "filtered", "skipped", "matched")
LONGEST_SAID = 200


def boards_of(connection: Connection, company_sources: Sequence[str]) -> list[Source]:
    """The job boards that the companies of these sources led to, by id."""
    from ingestion_pipeline.sources import Kind
    from ingestion_pipeline.sources.lookup import list_sources
    from ingestion_pipeline.store.tables import sources

    named = sources.c.company_id.in_([one.partition(":")[2] for one in company_sources])
    return sorted(list_sources(connection, named, kind=Kind.JOB_BOARD), key=lambda one: one.id)


def approve(connection: Connection, company_sources: Sequence[str], *, now: datetime) -> list[str]:
    """What waits for approval among the companies' boards has it; the ids of those."""
    from ingestion_pipeline.sources import SourceStatus, registry

    waiting = [
        one
        for one in boards_of(connection, company_sources)
        if one.status is SourceStatus.PENDING_VALIDATION
    ]
    for one in waiting:
        registry.enable(connection, one.id, actor="demo", reason="the demo approves it", now=now)
        say(f"{one.id} waited for approval ({_why(one)});")
        say(f"  the demo approves it, as `ingest sources enable {one.id}` does")
    return [one.id for one in waiting]


def _why(source: Source) -> str:
    return (source.status_reason or "").partition(";")[0]


def say_jobs(
    connection: Connection, company_sources: Sequence[str], *, since: datetime, now: datetime
) -> None:
    """Companies, boards, what did not fit, what was refused."""
    _say_companies(connection, company_sources)
    boards = boards_of(connection, company_sources)
    say("")
    _say_boards(connection, boards, since=since)
    rows = unfit_rows(connection, [one.id for one in boards])
    if rows:
        say("")
        say_table([Column("no match"), Column("by"), Column("because", is_flexible=True)], rows)
    for line in refusals(connection, since=since, now=now):
        say("\n" + line)


def _say_companies(connection: Connection, company_sources: Sequence[str]) -> None:
    from sqlalchemy import select

    from ingestion_pipeline.store.tables import companies

    names = ("source_id", "quality", "tier", "score", "boards")
    query = select(*(companies.c[name] for name in names)).where(
        companies.c.source_id.in_(list(company_sources))
    )
    found = connection.execute(query.order_by(companies.c.source_id)).mappings()
    rows = [
        [
            row["source_id"],
            row["quality"].get("level"),
            row["tier"],
            row["score"],
            _led_to(row["boards"]),
        ]
        for row in found
    ]
    columns = [
        Column("company"),
        Column("data"),
        Column("tier"),
        Column("score", is_number=True),
        Column("boards, and how sure they are", is_flexible=True),
    ]
    say_table(columns, rows)


def _led_to(boards: list[dict[str, Any]] | None) -> str:
    return ", ".join(f"{one['platform']} ({one['confidence']})" for one in boards or [])


def _say_boards(connection: Connection, boards: Sequence[Source], *, since: datetime) -> None:
    from ingestion_pipeline.companies.matching.reporting import match_report

    rows: list[list[object]] = []
    for one in boards:
        found = match_report(connection, one.id)
        counts = (found.listings, found.filtered, found.skipped, found.matched)
        said = shortened(one.last_outcome or "", LONGEST_SAID)
        rows.append([one.id, came_to(one, since=since), *counts, said])
    columns = [
        Column("board"),
        Column("came to"),
        *(Column(name, is_number=True) for name in JOB_NUMBERS),
        Column("said", is_flexible=True),
    ]
    say_table(columns, rows)


def unfit_rows(connection: Connection, source_ids: Sequence[str]) -> list[list[object]]:
    """The open listings of the boards that are no match: title, what speaks against it, why."""
    from sqlalchemy import select

    from ingestion_pipeline.companies.states import ListingDecision, ListingStatus
    from ingestion_pipeline.store.tables import job_listings

    jobs = job_listings.c
    query = select(jobs.title, jobs.filter_result, jobs.match_result).where(
        jobs.source_id.in_(list(source_ids)),
        jobs.status == ListingStatus.OPEN.value,
        jobs.verdict != ListingDecision.MATCHED.value,
    )
    return [
        [row.title, *against(row.filter_result or {}, row.match_result or {})]
        for row in connection.execute(query.order_by(jobs.id))
    ]


def against(filtered: dict[str, Any], matched: dict[str, Any]) -> tuple[str, str]:
    """What kept a listing from being a match: the filter's reason, or its score."""
    if matched:
        strikes = filtered.get("strikes", 0)
        passed = f"; {strikes} strikes, {filtered['threshold']} would filter" if strikes else ""
        return "score", f"below {matched['threshold']}: {matched['reason']}{passed}"
    reasons = "; ".join(one["reason"] for one in filtered.get("items", ()))
    return filtered.get("rejected_by") or "-", reasons


def refusals(connection: Connection, *, since: datetime, now: datetime) -> list[str]:
    """A line for each edge that the spawn guard refused since then."""
    from sqlalchemy import select

    from ingestion_pipeline.store.tables import audit_log, tasks
    from ingestion_pipeline.tasks.queue import REFUSED

    query = select(audit_log.c.detail).where(
        audit_log.c.action == REFUSED, audit_log.c.at >= since, audit_log.c.at <= now
    )
    told = list(connection.execute(query.order_by(audit_log.c.id)).scalars())
    parents = [one["parent"] for one in told]
    query = select(tasks.c.id, tasks.c.kind).where(tasks.c.id.in_(parents))
    kinds = {row.id: row.kind for row in connection.execute(query)}
    return [
        f"refused, so that nothing runs in circles: {kinds.get(one['parent'], 'task')}"
        f" {one['parent']} -> {one['kind']} {one['url']} ({one['reason'].replace('_', ' ')})"
        for one in told
    ]


def say_matches(connection: Connection, company_sources: Sequence[str]) -> None:
    """The matches of the companies' boards, best first, each with the reason."""
    from ingestion_pipeline.companies.matching.reporting import list_matches

    boards = [one.id for one in boards_of(connection, company_sources)]
    found = [one for board in boards for one in list_matches(connection, source_id=board)]
    shown = ("score", "priority", "title", "company", "reason")
    columns = [
        Column("score", is_number=True),
        Column("priority"),
        Column("title"),
        Column("company"),
        Column("reason", is_flexible=True),
    ]
    if not found:
        say("no matches; `ingest explain job_listings:ID` says why one is none")
        return
    best = sorted(found, key=lambda one: (-one["score"], one["listing_id"]))
    say_table(columns, [[one[name] for name in shown] for one in best])
