"""The report of `ingest demo run`: facts read from the database, and their summary, one block per system."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast
from urllib.parse import urlsplit

from sqlalchemy import ColumnElement, Connection, Select, and_, distinct, exists, func, select

from ingestion_pipeline.catalogs.states import OPEN_PAGES, PageStatus
from ingestion_pipeline.cli.output import counted, echo, page_width, print_records, shortened
from ingestion_pipeline.companies.records import ListingDecision, ListingStatus
from ingestion_pipeline.companies.reports import list_matches, match_report
from ingestion_pipeline.demo.site import Inbox
from ingestion_pipeline.notices.queries import DELIVER
from ingestion_pipeline.operations.source_health import source_statuses
from ingestion_pipeline.pages import ContentStore
from ingestion_pipeline.reading.text.plain_text import encoding_of
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Kind, Source, SourceStatus, registry
from ingestion_pipeline.sources.lookup import list_sources, sources_by_id
from ingestion_pipeline.sources.source import ALERTS, Recipient
from ingestion_pipeline.sources.status import UNHEALTHY
from ingestion_pipeline.store.tables import (
    ACTIVE,
    GIVEN_UP,
    UNSENT,
    audit_log,
    chapter_sources,
    chapters,
    companies,
    datasets,
    extractions,
    hosts,
    job_listings,
    notices,
    outbox,
    pages,
    snapshots,
    sources,
    tasks,
)
from ingestion_pipeline.tasks.queue import REFUSED
from ingestion_pipeline.urls import host_of
from ingestion_pipeline.websites.analysis_reports import ALL, latest_reports, visibility_rows

Row = dict[str, Any]
Facts = Mapping[str, Any]

BEST_SHOWN = 3  # matches in the summary
INDENT = 14
FLEXIBLE = {"details", "reason", "boards", "competitors", "url", "title", "failure"}  # columns of text


def summary(facts: Facts, ingest: str) -> list[str]:
    """Return the report for people: what was read, what changed, what failed and why, one block per system."""
    if not facts["is_changed"]:
        return [*_unchanged(facts), hint(ingest)]
    blocks = (_series, _catalogs, _companies, _jobs, _websites, _notices)
    lines = [line for block in blocks for line in _block(*block(facts))]
    health = ", ".join(f"{count} {word}" for word, count in facts["health_counts"].items())
    return [*lines, *_block("health", [health]), "", hint(ingest)]


def _block(name: str, lines: Sequence[str | tuple[str, str]]) -> Iterator[str]:
    """Yield the lines of a block under its name; a pair has a label of its own."""
    for nth, line in enumerate(lines):
        label, text = line if isinstance(line, tuple) else ("" if nth else name, line)
        label = label if label == name else f"  {label}"
        yield f"{label:<{INDENT}}{shortened(text, page_width() - INDENT)}".rstrip()


def _unchanged(facts: Facts) -> list[str]:
    counts = (("polled", "feed"), ("catalogs", "catalogue"), ("boards", "job board"), ("websites", "website"))
    read = ", ".join(counted(len(facts[key]), noun) for key, noun in counts)
    failing = ", ".join(row["source"] for row in facts["unhealthy"])
    return [
        shortened(f"nothing changed: {read}", page_width()),
        shortened(f"failing as before: {failing or 'none'}", page_width()),
        f"notices: {facts['quiet']}",
    ]


def is_changed(facts: Facts, *, since: datetime) -> bool:
    """Return whether the run found or sent anything, or the health of a source has changed."""
    changed = {"changed", "quarantined"}
    return (
        any(row["result"] in changed for row in (*facts["polled"], *facts["boards"]))
        or any(row["new"] or row["changed"] for row in facts["catalogs"])
        or any(row["reported_at"] is not None and row["reported_at"] >= since for row in facts["unhealthy"])
        or bool(facts["received"] or facts["repeats"] or facts["refused_messages"])
    )


def _results(rows: Sequence[Row]) -> str:
    counts = Counter(row["result"] for row in rows)
    words = ("changed", "unchanged", "failed", "quarantined", "not polled")
    return ", ".join(f"{counts[word]} {word}" for word in words if counts[word])


def _failures(rows: Sequence[Row], name: str) -> list[tuple[str, str]]:
    failed = [row for row in rows if row["result"] in {"failed", "quarantined"}]
    return [(row["result"], f"{row[name]}: {row['details'].removeprefix(row['result'] + ': ')}") for row in failed]


def _series(facts: Facts) -> tuple[str, list[Any]]:
    rows, new = facts["polled"], facts["chapters"]["new"]
    releases = counted(sum(row["new"] for row in rows), "new release")
    first = f"{counted(len(rows), 'feed')}: {_results(rows)}; {releases} of {counted(new, 'new chapter')}"
    return "series", [first, *_failures(rows, "source")]


def _catalogs(facts: Facts) -> tuple[str, list[Any]]:
    rows = facts["catalogs"]
    sums = {name: sum(row[name] for row in rows) for name in PAGE_NUMBERS}
    words = ", ".join(f"{sums[name]} {name}" for name in PAGE_NUMBERS[1:] if sums[name])
    published = [row for row in facts["datasets"] if row["state"] == "published"]
    items = sum(row["items"] for row in published)
    first = f"{sums['pages']} pages of {len(rows)} catalogues: {words or 'none read'}"
    lines: list[Any] = [first, f"{len(published)} datasets published, {items} items"]
    held = [row["source"] for row in facts["datasets"] if row["state"] == "quarantined"]
    lines += [("held back", f"the dataset of {source}") for source in held]
    failed: dict[str, list[str]] = {}
    for page in facts["failed_pages"]:
        failed.setdefault(f"{page['source']}: {page['code']}", []).append(urlsplit(cast("str", page["url"])).path)
    lines += [("failed", f"{reason}, {', '.join(paths)}") for reason, paths in failed.items()]
    return "catalogues", lines


def _companies(facts: Facts) -> tuple[str, list[Any]]:
    rows = facts["companies"]
    names = "; ".join(f"{row['company'].partition(':')[2]} tier {row['tier']}, {row['data']} data" for row in rows)
    lines: list[Any] = [names or "none"]
    lines += [("approved", f"{row['board']}: {row['reason']}") for row in facts["approved"]]
    lines += [("refused", f"{row['kind']} {row['url']}: {row['reason']} (spawn guard)") for row in facts["refused"]]
    return "companies", lines


def _jobs(facts: Facts) -> tuple[str, list[Any]]:
    rows = facts["boards"]
    sums = {name: sum(row[name] for row in rows) for name in JOB_NUMBERS}
    first = f"{sums['jobs']} jobs on {counted(len(rows), 'board')}: {_results(rows)}; "
    first += f"{sums['matched']} match, {sums['filtered']} filtered, {sums['skipped']} below the minimum score"
    best = [(str(row["score"]), f"{row['title']}, {row['company']}") for row in facts["matches"][:BEST_SHOWN]]
    return "jobs", [first, *_failures(rows, "board"), *best]


def _websites(facts: Facts) -> tuple[str, list[Any]]:
    lines: list[Any] = []
    for row in facts["visibility"]:
        if row["provider"] == ALL and row["answers"]:
            named = f"named in {row['visible']:.0%} of {row['answers']} answers, score {row['score']}"
            lines.append(f"{row['business']}: {named}")
        elif row["failure"]:
            why = ": ".join(row["failure"].split(": ")[:2])
            lines.append(("failed", f"{row['source']}: {row['provider']}, {why}"))
    lines += [("failed", f"{row['source']}: {row['reason']}") for row in facts["websites"] if row["reason"]]
    return "websites", lines or ["none analysed"]


def _notices(facts: Facts) -> tuple[str, list[Any]]:
    received = facts["received"]
    refused = f", {facts['refused_messages']} not genuine" if facts["refused_messages"] else ""
    first = f"{counted(len(received), 'message')} received, {facts['repeats']} repeated{refused}"
    waiting = sum(row["waiting"] for row in facts["followers"])
    first += f"; {waiting} notices wait for a digest" if waiting else ""
    lines: list[Any] = [first if received or waiting or refused else facts["quiet"]]
    return "notices", [*lines, *((row["follower"], row["title"]) for row in received)]


def print_details(facts: Facts) -> None:
    """Print every list of the facts as a table."""
    for name, rows in facts.items():
        if isinstance(rows, list) and rows:
            records = cast("list[Row]", rows)
            echo(f"{name.replace('_', ' ')}\n")
            numbers = [key for key, value in records[0].items() if isinstance(value, int | float)]
            print_records(records, numbers=numbers, flexible=FLEXIBLE & records[0].keys())
            echo("")


def hint(ingest: str) -> str:
    """Return the commands to try after a run."""
    return (
        f"Next: `{ingest} demo mutate && {ingest} demo run` changes the site;\n"
        f"`{ingest} demo run --verbose` lists every page, job and answer; `{ingest} dev` opens the UI."
    )


def polled(connection: Connection, source_ids: Sequence[str], *, since: datetime) -> list[Row]:
    """Return each source with the result of its poll and its new records."""
    query = (
        select(chapter_sources.c.source_id, func.count().label("records"))
        .where(chapter_sources.c.detected_at >= since)
        .group_by(chapter_sources.c.source_id)
    )
    new = {row.source_id: row.records for row in connection.execute(query)}
    by_id = sources_by_id(connection, source_ids)
    return [
        {
            "source": source.id,
            "tier": source.tier,
            "result": poll_result(source, since=since),
            "new": new.get(source.id, 0),
            "details": source.last_outcome or "",
        }
        for source in (by_id[source_id] for source_id in source_ids if source_id in by_id)
    ]


def chapter_counts(connection: Connection, *, since: datetime) -> dict[str, int]:
    """Return how many chapters there are, how many are new, and how many events they have."""
    is_new = func.count().filter(chapters.c.first_detected_at >= since)
    total, new = connection.execute(select(func.count(), is_new).select_from(chapters)).one()
    is_of_chapters = outbox.c.subject_kind.like("chapter%")
    events = connection.execute(select(func.count()).where(is_of_chapters)).scalar_one()
    return {"total": total, "new": new, "outbox": events}


def poll_result(source: Source, *, since: datetime) -> str:
    """Return in one word what the poll did since the run began."""
    if source.last_checked_at is None or source.last_checked_at < since:
        return "not polled"
    if source.last_error_class is not None:
        return "failed"
    if source.last_changed_at is not None and source.last_changed_at >= since:
        return "changed"
    return "unchanged" if source.last_outcome == "unchanged" else "quarantined"


def health(
    connection: Connection, settings: Settings, source_ids: Collection[str], *, now: datetime
) -> tuple[list[Row], dict[str, int]]:
    """Return the unhealthy sources, when that was reported, and how many have each health."""
    statuses = source_statuses(connection, settings, now=now, ids=source_ids)
    unhealthy = [
        {
            "source": status.facts.id,
            "health": status.health.value,
            "reported_at": status.reported.since,
            "reason": status.assessment.reason,
        }
        for status in statuses
        if status.health in UNHEALTHY
    ]
    return unhealthy, dict(Counter(status.health.value for status in statuses))


# The first three are of this run, the others of all runs.
NOTICE_NUMBERS = ("new", "sent", "messages", "waiting", "failed")


def follower_counts(connection: Connection, followers: Sequence[Recipient], *, since: datetime) -> list[Row]:
    """Return for each follower what this run sent, and what waits for when."""
    counts = _counts(connection, since=since)
    query = select(tasks.c.dedupe_key, tasks.c.not_before).where(ACTIVE, tasks.c.kind == DELIVER)
    due: dict[str, datetime] = {row.dedupe_key: row.not_before for row in connection.execute(query)}
    rows: list[Row] = []
    for follower in followers:
        mine = counts.get(follower.id, dict.fromkeys(NOTICE_NUMBERS, 0))
        at = due.get(follower.id) if mine["waiting"] else None
        about = {"mode": follower.mode.value, "language": follower.language}
        rows.append({"follower": follower.id, **about, **mine, "next_message_at": at})
    return rows


def received(before: Mapping[str, Inbox], after: Mapping[str, Inbox]) -> Row:
    """Return each message that came since `before`, and how many repeats and forgeries."""
    earlier = {name: before.get(name, Inbox()) for name in after}
    return {
        "received": [
            {"follower": name, "title": title}
            for name, inbox in sorted(after.items())
            for key, title in inbox.taken.items()
            if key not in earlier[name].taken
        ],
        "repeats": sum(inbox.repeats - earlier[name].repeats for name, inbox in after.items()),
        "refused_messages": sum(inbox.refused - earlier[name].refused for name, inbox in after.items()),
    }


def explain_no_notices(connection: Connection, *, since: datetime) -> str:
    """Return why no follower received a message in this run."""

    def is_any(condition: ColumnElement[bool]) -> bool:
        return bool(connection.execute(select(exists().where(condition))).scalar_one())

    if is_any(and_(notices.c.created_at >= since, notices.c.subject_kind.not_in(ALERTS))):
        return "no message was sent yet"
    if is_any(chapters.c.first_detected_at >= since):
        return "none; a first sync sends none"
    return "none; nothing is new"


def _counts(connection: Connection, *, since: datetime) -> dict[str, dict[str, int]]:
    """Return by follower: new, sent and messages of this run; waiting and failed in all."""
    just_sent = notices.c.sent_at >= since
    columns = [
        func.count().filter(notices.c.created_at >= since),
        func.count().filter(just_sent),
        func.count(distinct(notices.c.delivery_id)).filter(just_sent),
        func.count().filter(UNSENT),
        func.count().filter(GIVEN_UP),
    ]
    query = select(notices.c.recipient, *columns).group_by(notices.c.recipient)
    return {row[0]: dict(zip(NOTICE_NUMBERS, row[1:], strict=True)) for row in connection.execute(query).all()}


def analyses(connection: Connection, source_ids: Sequence[str]) -> dict[str, list[Row]]:
    """Return the status of each analysis, and how each provider ranks each business."""
    latest = latest_reports(connection, source_ids)
    reports = [latest[source_id] for source_id in source_ids if source_id in latest]
    websites: list[Row] = [
        {
            "source": report.source_id,
            "status": report.status.value,
            "reason": None if report.analysis else report.failure or report.progress_message,
        }
        for report in reports
    ]
    visibility: list[Row] = [
        {
            "source": report.source_id,
            "business": str(report.info.get("name")),
            "provider": row.provider,
            "prompts": row.prompts,
            "answers": row.answers,
            "visible": row.visibility,
            "rank": row.mean_rank,
            "score": row.score,
            "competitors": row.competitors,
            "failure": row.failure,
        }
        for report in reports
        for row in visibility_rows(report)
    ]
    return {"websites": websites, "visibility": visibility}


JOB_NUMBERS = ("jobs", "filtered", "skipped", "matched")


def boards_of(connection: Connection, company_sources: Sequence[str]) -> list[Source]:
    """Return the job boards discovered through the companies of these sources, by id."""
    named = sources.c.company_id.in_([source_id.partition(":")[2] for source_id in company_sources])
    return list_sources(connection, named, kind=Kind.JOB_BOARD)


def approve(connection: Connection, company_sources: Sequence[str], *, now: datetime) -> list[Row]:
    """Enable the boards of these companies that wait for approval; return them with what they waited for."""
    waiting = [
        board for board in boards_of(connection, company_sources) if board.status is SourceStatus.PENDING_VALIDATION
    ]
    for board in waiting:
        registry.enable(connection, board.id, actor="demo", reason="the demo approves it", now=now)
    return [{"board": board.id, "reason": (board.status_reason or "").partition(";")[0]} for board in waiting]


def analysed_companies(connection: Connection, company_sources: Sequence[str]) -> list[Row]:
    """Return the companies with their tier, score and boards."""
    names = ("source_id", "quality", "tier", "score", "boards")
    query = select(*(companies.c[name] for name in names)).where(companies.c.source_id.in_(list(company_sources)))
    return [
        {
            "company": row.source_id,
            "data": row.quality.get("level"),
            "tier": row.tier,
            "score": row.score,
            "boards": ", ".join(f"{board['platform']} ({board['confidence']})" for board in row.boards or ()),
        }
        for row in connection.execute(query.order_by(companies.c.source_id))
    ]


def board_counts(connection: Connection, boards: Sequence[Source], *, since: datetime) -> list[Row]:
    """Return the result of each board's poll, and the decisions about its jobs."""
    rows: list[Row] = []
    for board in boards:
        report = match_report(connection, board.id)
        counts = (report.listings, report.filtered, report.skipped, report.matched)
        result = {"board": board.id, "result": poll_result(board, since=since)}
        rows.append(result | dict(zip(JOB_NUMBERS, counts, strict=True)) | {"details": board.last_outcome or ""})
    return rows


def not_matched(connection: Connection, source_ids: Sequence[str]) -> list[Row]:
    """Return the open listings that are no match: title, rule or score, reason."""
    jobs = job_listings.c
    query = select(jobs.title, jobs.filter_result, jobs.match_result).where(
        jobs.source_id.in_(list(source_ids)),
        jobs.status == ListingStatus.OPEN.value,
        jobs.decision != ListingDecision.MATCHED.value,
    )
    return [
        {"title": row.title, **_rejection(row.filter_result or {}, row.match_result or {})}
        for row in connection.execute(query.order_by(jobs.id))
    ]


def _rejection(filtered: dict[str, Any], matched: dict[str, Any]) -> Row:
    """Return what rejected a listing: the filter and its reason, or the score."""
    if matched:
        strikes = filtered.get("strikes", 0)
        passed = f"; {strikes} strikes, {filtered['threshold']} would filter" if strikes else ""
        return {"by": "score", "reason": f"below {matched['threshold']}: {matched['reason']}{passed}"}
    reasons = "; ".join(item["reason"] for item in filtered.get("items", ()))
    return {"by": filtered.get("rejected_by") or "-", "reason": reasons}


def refusals(connection: Connection, *, since: datetime, now: datetime) -> list[Row]:
    """Return the tasks that the spawn guard refused since then."""
    query = select(audit_log.c.detail).where(
        audit_log.c.action == REFUSED, audit_log.c.at >= since, audit_log.c.at <= now
    )
    refused = connection.execute(query.order_by(audit_log.c.id)).scalars()
    names = ("parent", "kind", "url")
    return [{name: row[name] for name in names} | {"reason": row["reason"].replace("_", " ")} for row in refused]


def matches(connection: Connection, boards: Sequence[Source]) -> list[Row]:
    """Return the matches of the boards, best first, each with the reason."""
    every = [match for board in boards for match in list_matches(connection, source_id=board.id)]
    best = sorted(every, key=lambda match: (-match["score"], match["listing_id"]))
    return [{name: match[name] for name in ("score", "priority", "title", "company", "reason")} for match in best]


PAGE_NUMBERS = ("pages", "new", "changed", "unchanged", "failed")


def is_waiting(connection: Connection, source_ids: Collection[str]) -> bool:
    """Return whether a page of these catalogues has still to be visited."""
    last = last_extractions(source_ids)
    is_open = exists().where(pages.c.extraction_id.in_(last), pages.c.status.in_(OPEN_PAGES))
    is_unfinished = extractions.c.finished_at.is_(None)
    query = select(exists().where(extractions.c.id.in_(last), is_unfinished, is_open))
    return bool(connection.execute(query).scalar_one())


def crawled(
    connection: Connection, settings: Settings, source_ids: Sequence[str], *, since: datetime
) -> dict[str, list[Row]]:
    """Return the catalogues with their datasets, the failed pages, and the unusual ones."""
    seen = _visited_pages(connection, source_ids, since=since)
    by_id = sources_by_id(connection, source_ids)
    unread = _sources_with_unread_pages(connection, source_ids)
    rows: list[Row] = []
    for source in (by_id[source_id] for source_id in source_ids if source_id in by_id):
        words = Counter(page["result"] for page in seen if page["source"] == source.id)
        counts = {"pages": words.total(), **{name: words[name] for name in PAGE_NUMBERS[1:]}}
        rows.append({"source": source.id, **counts, "crawl": crawl_state(source, is_unread=source.id in unread)})
    failed = [
        {"source": page["source"], "code": failure["code"].replace("_", " "), "url": page["url"]}
        | {"reason": failure["message"]}
        for page in seen
        if (failure := page["failure"]) is not None
    ]
    content = ContentStore(settings.home / "content")
    downloaded = downloaded_pages(connection, content, source_ids, since=since)
    rendered = [
        ("browser", f"{page['url']} is empty without JavaScript; rendered") for page in seen if page["is_rendered"]
    ]
    unusual = [*unusual_pages(downloaded), *_delays(connection, [page.url for page in downloaded]), *rendered]
    return {
        "catalogs": rows,
        "datasets": dataset_rows(connection, source_ids),
        "failed_pages": failed,
        "unusual_pages": [{"kind": kind, "details": details} for kind, details in unusual],
    }


def _sources_with_unread_pages(connection: Connection, source_ids: Collection[str]) -> set[str]:
    """Return the sources with a downloaded page that was not extracted yet."""
    query = (
        select(extractions.c.source_id)
        .join(pages, pages.c.extraction_id == extractions.c.id)
        .where(extractions.c.id.in_(last_extractions(source_ids)), pages.c.status == PageStatus.DOWNLOADED.value)
    )
    return set(connection.execute(query).scalars())


def crawl_state(source: Source, *, is_unread: bool = False) -> str:
    """Return in one word how the last crawl ended, or that the source is not crawled."""
    if source.status.value in {"disabled", "open"}:
        return source.status.value
    if is_unread:
        return "unread"
    return "failed" if source.last_error_class else "complete"


def _visited_pages(connection: Connection, source_ids: Sequence[str], *, since: datetime) -> list[Row]:
    """Return the pages of each source's last extraction that were visited since then, also by a browser."""
    before, older = pages.alias("before"), extractions.alias("older")
    was_there = exists().where(
        before.c.key == pages.c.key,
        before.c.snapshot_id.is_not(None),
        before.c.extraction_id == older.c.id,
        older.c.source_id == extractions.c.source_id,
        older.c.id < extractions.c.id,
    )
    query = (
        select(
            extractions.c.source_id,
            pages.c.url,
            pages.c.outcome,
            pages.c.failure,
            snapshots.c.rendered_at,
            was_there.label("was_there"),
        )
        .join(pages, pages.c.extraction_id == extractions.c.id)
        .outerjoin(snapshots, snapshots.c.id == pages.c.snapshot_id)
        .where(extractions.c.id.in_(last_extractions(source_ids)), pages.c.visited_at >= since)
        .order_by(pages.c.id)
    )
    results = {None: "failed", "same": "unchanged"}
    return [
        {
            "source": row.source_id,
            "url": row.url,
            "result": results.get(row.outcome, "changed" if row.was_there else "new"),
            "failure": row.failure,
            "is_rendered": row.rendered_at is not None and row.rendered_at >= since,
        }
        for row in connection.execute(query)
    ]


def last_extractions(source_ids: Collection[str]) -> Select[tuple[int]]:
    """Select the id of each source's last extraction."""
    of_these = extractions.c.source_id.in_(list(source_ids))
    return select(func.max(extractions.c.id)).where(of_these).group_by(extractions.c.source_id)


def dataset_rows(connection: Connection, source_ids: Sequence[str]) -> list[Row]:
    """Return each source's last extraction with its dataset, if any, and the pages whose records are known."""
    pages_read = (
        select(func.count(pages.c.item_count)).where(pages.c.extraction_id == extractions.c.id).scalar_subquery()
    )
    query = (
        select(
            extractions.c.source_id.label("source"),
            extractions.c.status.label("extraction"),
            datasets.c.item_count.label("items"),
            datasets.c.flagged_count.label("flagged"),
            pages_read.label("pages"),
            datasets.c.version,
            datasets.c.status.label("state"),
        )
        .outerjoin(datasets, datasets.c.id == extractions.c.dataset_id)
        .where(extractions.c.id.in_(last_extractions(source_ids)))
    )
    by_source = {row["source"]: dict(row) for row in connection.execute(query).mappings()}
    return [by_source[source_id] for source_id in source_ids if source_id in by_source]


SLOW_MS = 500  # other pages of the demo take a few
PLAIN = frozenset({"utf-8", "ascii"})
NAMES = {"cp932": "Shift_JIS"}  # the name that pages use; browsers decode it as this codec


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadedPage:
    """A page that this run downloaded: final URL, response time and charset."""

    url: str
    final_url: str
    elapsed_ms: int
    encoding: str


def unusual_pages(pages: Sequence[DownloadedPage]) -> Iterator[tuple[str, str]]:
    """Return what is unusual about each page and how it was handled."""
    for page in pages:
        if page.final_url != page.url:
            yield ("redirect", f"{page.url} leads to {page.final_url}")
        if page.elapsed_ms >= SLOW_MS:
            yield ("slow page", f"{page.url} took {page.elapsed_ms / 1_000:.1f} seconds")
        if page.encoding not in PLAIN:
            name = NAMES.get(page.encoding, page.encoding)
            yield ("charset", f"{page.url} is encoded in {name}, and stored as UTF-8")


def downloaded_pages(
    connection: Connection, content: ContentStore, source_ids: Sequence[str], *, since: datetime
) -> list[DownloadedPage]:
    """Return the pages of each source's last extraction that are new in this run."""
    query = (
        select(pages.c.url, pages.c.elapsed_ms, snapshots)
        .join(snapshots, snapshots.c.id == pages.c.snapshot_id)
        .where(
            pages.c.extraction_id.in_(last_extractions(source_ids)),
            pages.c.visited_at >= since,
            pages.c.outcome == "new",
        )
        .order_by(pages.c.id)
    )
    return [
        DownloadedPage(
            url=row["url"],
            final_url=row["final_url"] or row["url"],
            elapsed_ms=row["elapsed_ms"] or 0 if row["rendered_at"] is None else 0,
            encoding=encoding_of(content.get(row["body_hash"]), row["content_type"]),
        )
        for row in connection.execute(query).mappings()
    ]


def _delays(connection: Connection, urls: Collection[str]) -> Iterator[tuple[str, str]]:
    query = select(hosts.c.host, hosts.c.crawl_delay_seconds).where(
        hosts.c.host.in_({host_of(url) for url in urls}), hosts.c.crawl_delay_seconds > 0
    )
    for host, seconds in connection.execute(query.order_by(hosts.c.host)):
        yield ("crawl delay", f"robots.txt of {host} sets a crawl delay of {seconds:g} seconds")
