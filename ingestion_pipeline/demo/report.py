"""The tables and summaries that `ingest demo run` prints, read from the database."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, distinct, exists, func, select

from ingestion_pipeline.catalogs.states import OPEN_PAGES, PageStatus
from ingestion_pipeline.cli.output import counted, distance, echo, print_records, print_table, shortened
from ingestion_pipeline.cli.websites import print_visibility
from ingestion_pipeline.companies.records import ListingDecision, ListingStatus
from ingestion_pipeline.companies.reports import list_matches, match_report
from ingestion_pipeline.demo.site import HOOKS_HOST, Inbox
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
from ingestion_pipeline.websites.analysis_reports import latest_reports, visibility_rows

SHOWN = 200  # characters of a result or a message
SHOWN_REASON = 150  # characters of the reason of a health


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledSource:
    """A source after the run: the result of its poll and the number of new records."""

    source: Source
    result: str
    new: int


def print_summary(connection: Connection, source_ids: Sequence[str], *, since: datetime) -> None:
    """Print one line per source, then the totals."""
    polled = _polled(connection, source_ids, since=since)
    rows = [
        [poll.source.id, poll.source.tier, poll.result, poll.new, shortened(poll.source.last_outcome or "", SHOWN)]
        for poll in polled
    ]
    print_table(("source", "tier", "result", "new", "details"), rows, numbers={"new"}, flexible={"details"})
    echo("\n" + sums(polled))
    is_new = func.count().filter(chapters.c.first_detected_at >= since)
    total, new = connection.execute(select(func.count(), is_new).select_from(chapters)).one()
    is_of_chapters = outbox.c.subject_kind.like("chapter%")
    events = connection.execute(select(func.count()).where(is_of_chapters)).scalar_one()
    echo(f"chapters in all: {total}, new among them: {new}; outbox rows: {events}")


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


def hint(ingest: str) -> str:
    """Return the commands to try after a run."""
    return (
        f"Try next: `{ingest} demo mutate && {ingest} demo run` (everything changes a little),\n"
        f"`{ingest} export course --to csv` (the datasets), `{ingest} extractions list`,\n"
        f"`{ingest} matches list`, `{ingest} companies list`, `{ingest} websites list`,\n"
        f"`{ingest} status`, `{ingest} notices list`, `{ingest} dev` (the UI),\n"
        f"`{ingest} dead-letters list` (failures here are part of the demo)."
    )


def print_health(connection: Connection, settings: Settings, source_ids: Collection[str], *, now: datetime) -> None:
    """Print the unhealthy sources, when that was reported, and how many have each health."""
    statuses = source_statuses(connection, settings, now=now, ids=source_ids)
    unwell = [status for status in statuses if status.health in UNHEALTHY]
    if unwell:
        records = [
            {
                "source": status.facts.id,
                "health": status.health.value,
                "reported": distance(status.reported.since, now),
                "why": shortened(status.assessment.reason, SHOWN_REASON),
            }
            for status in unwell
        ]
        print_records(records, flexible={"why"})
    counts = Counter(status.health.value for status in statuses)
    echo("health: " + ", ".join(f"{count} {word}" for word, count in counts.items()))


# The first three are of this run, the others of all runs.
NOTICE_NUMBERS = ("new", "sent", "messages", "waiting", "failed")


def print_followers(connection: Connection, followers: Sequence[Recipient], *, since: datetime, now: datetime) -> None:
    """Print one line per follower: what this run sent, and what waits for how long."""
    counts = _counts(connection, since=since)
    query = select(tasks.c.dedupe_key, tasks.c.not_before).where(ACTIVE, tasks.c.kind == DELIVER)
    due: dict[str, datetime] = {row.dedupe_key: row.not_before for row in connection.execute(query)}
    rows: list[list[object]] = []
    for follower in followers:
        mode = follower.mode.value if follower.mode.value != "immediate" else "at once"
        language = f" ({follower.language})" if follower.language else ""
        mine = counts.get(follower.id, dict.fromkeys(NOTICE_NUMBERS, 0))
        at = due.get(follower.id) if mine["waiting"] else None
        rows.append([follower.id, mode + language, *mine.values(), distance(at, now)])
    print_table(("follower", "mode", *NOTICE_NUMBERS, "next message"), rows, numbers=NOTICE_NUMBERS)


def describe_received(
    before: Mapping[str, Inbox], after: Mapping[str, Inbox], *, otherwise: str, besides: Collection[str] = ()
) -> str:
    """Return each message that came since `before`; `otherwise` if nobody but the operators (`besides`) got any."""
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
    summary = f"{counted(len(taken), 'message')}, {counted(repeats, 'repeat')}; {signed}"
    quiet = [] if recipients - set(besides) or repeats or refused else [otherwise]
    return "\n".join([f"{HOOKS_HOST} took {summary}", *taken, *quiet])


def explain_no_notices(connection: Connection, *, since: datetime) -> str:
    """Return why no follower received a message in this run."""

    def is_any(condition: ColumnElement[bool]) -> bool:
        return bool(connection.execute(select(exists().where(condition))).scalar_one())

    if is_any(and_(notices.c.created_at >= since, notices.c.subject_kind.not_in(ALERTS))):
        return "no message went out yet"
    if is_any(chapters.c.first_detected_at >= since):
        return "no notices: a first sync sends none"
    return "no notices: nothing is new"


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


def print_businesses(connection: Connection, source_ids: Sequence[str]) -> None:
    """Print how each provider ranks each business, and what failed."""
    latest = latest_reports(connection, source_ids)
    reports = [latest[source_id] for source_id in source_ids if source_id in latest]
    ranked = [(report, row) for report in reports for row in visibility_rows(report)]
    print_visibility([(str(report.info.get("name")), row) for report, row in ranked])
    for report, row in ranked:
        if row.failure:
            echo(f"{report.source_id}: {row.provider} left {shortened(row.failure, SHOWN)}")
    for report in reports:
        if not report.analysis:
            echo(f"{report.source_id} is {report.status.value}: {report.failure or report.progress_message}")


JOB_NUMBERS = ("jobs", "filtered", "skipped", "matched")


def boards_of(connection: Connection, company_sources: Sequence[str]) -> list[Source]:
    """Return the job boards discovered through the companies of these sources, by id."""
    named = sources.c.company_id.in_([source_id.partition(":")[2] for source_id in company_sources])
    return list_sources(connection, named, kind=Kind.JOB_BOARD)


def approve(connection: Connection, company_sources: Sequence[str], *, now: datetime) -> list[str]:
    """Enable the boards of these companies that wait for approval; return their ids."""
    waiting = [
        board for board in boards_of(connection, company_sources) if board.status is SourceStatus.PENDING_VALIDATION
    ]
    for board in waiting:
        registry.enable(connection, board.id, actor="demo", reason="the demo approves it", now=now)
        echo(f"{board.id} waited for approval ({(board.status_reason or '').partition(';')[0]});")
        echo(f"  the demo approves it, as `ingest sources enable {board.id}` does")
    return [board.id for board in waiting]


def print_jobs(connection: Connection, company_sources: Sequence[str], *, since: datetime, now: datetime) -> None:
    """Print companies, boards, listings that did not match, and refused tasks."""
    _print_companies(connection, company_sources)
    boards = boards_of(connection, company_sources)
    echo("")
    _print_boards(connection, boards, since=since)
    if rows := rejected_rows(connection, [board.id for board in boards]):
        echo("")
        print_table(("no match", "by", "reason"), rows, flexible={"reason"})
    for line in refusals(connection, since=since, now=now):
        echo("\n" + line)


def _print_companies(connection: Connection, company_sources: Sequence[str]) -> None:
    names = ("source_id", "quality", "tier", "score", "boards")
    query = select(*(companies.c[name] for name in names)).where(companies.c.source_id.in_(list(company_sources)))
    rows: list[list[object]] = []
    for row in connection.execute(query.order_by(companies.c.source_id)):
        boards = ", ".join(f"{board['platform']} ({board['confidence']})" for board in row.boards or ())
        rows.append([row.source_id, row.quality.get("level"), row.tier, row.score, boards])
    headings = ("company", "data", "tier", "score", "boards, and their confidence")
    print_table(headings, rows, numbers={"score"}, flexible=headings[-1:])


def _print_boards(connection: Connection, boards: Sequence[Source], *, since: datetime) -> None:
    rows: list[list[object]] = []
    for board in boards:
        report = match_report(connection, board.id)
        counts = (report.listings, report.filtered, report.skipped, report.matched)
        outcome = shortened(board.last_outcome or "", SHOWN)
        rows.append([board.id, poll_result(board, since=since), *counts, outcome])
    print_table(("board", "result", *JOB_NUMBERS, "details"), rows, numbers=JOB_NUMBERS, flexible={"details"})


def rejected_rows(connection: Connection, source_ids: Sequence[str]) -> list[list[object]]:
    """Return the open listings that are no match: title, rule or score, reason."""
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
    boards = [board.id for board in boards_of(connection, company_sources)]
    matches = [match for board in boards for match in list_matches(connection, source_id=board)]
    if not matches:
        echo("no matches; `ingest explain job_listings:ID` shows why one is no match")
        return
    best = sorted(matches, key=lambda match: (-match["score"], match["listing_id"]))
    names = ("score", "priority", "title", "company", "reason")
    print_table(names, [[match[name] for name in names] for match in best], numbers={"score"}, flexible={"reason"})


PAGE_NUMBERS = ("pages", "new", "changed", "unchanged", "failed")
LONGEST_REASON = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPage:
    """A page that this run visited; `needs_browser` if its stored page is rendered, `is_rendered` if in this run."""

    source_id: str
    url: str
    result: str
    failure: Mapping[str, str] | None = None
    needs_browser: bool = False
    is_rendered: bool = False


def is_waiting(connection: Connection, source_ids: Collection[str]) -> bool:
    """Return whether a page of these catalogues has still to be visited."""
    last = last_extractions(source_ids)
    is_open = exists().where(pages.c.extraction_id.in_(last), pages.c.status.in_(OPEN_PAGES))
    is_unfinished = extractions.c.finished_at.is_(None)
    query = select(exists().where(extractions.c.id.in_(last), is_unfinished, is_open))
    return bool(connection.execute(query).scalar_one())


def print_catalogs(connection: Connection, source_ids: Sequence[str], *, since: datetime) -> None:
    """Print one line per catalogue, one per failed page, and one about the browser."""
    by_id = sources_by_id(connection, source_ids)
    seen = visited_pages(connection, source_ids, since=since)
    sources = [by_id[source_id] for source_id in source_ids if source_id in by_id]
    unread = _sources_with_unread_pages(connection, source_ids)
    rows: list[list[object]] = []
    for source in sources:
        words = Counter(page.result for page in seen if page.source_id == source.id)
        counts = (words[name] for name in PAGE_NUMBERS[1:])
        rows.append([source.id, words.total(), *counts, crawl_state(source, is_unread=source.id in unread)])
    print_table(("catalogue", *PAGE_NUMBERS, "crawl"), rows, numbers=PAGE_NUMBERS)
    for source in sources:
        if source.status is SourceStatus.DISABLED:
            echo("\n" + why_disabled(source))
    if failed := [(page.url, page.failure) for page in seen if page.failure is not None]:
        echo("")
        reasons = [[failure["code"].replace("_", " "), _reason(url, failure["message"])] for url, failure in failed]
        print_table(("failed page", "reason"), reasons, flexible={"reason"})
    if note := browser_note(seen):
        echo("\n" + note)


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


def why_disabled(source: Source) -> str:
    """Return the short reason and the command that shows the long one."""
    first = (source.status_reason or "").partition(": ")[0].partition(";")[0]
    reason = first.removeprefix("disabled").lstrip(", ") or "by hand"
    return f"{source.id} is disabled ({reason}); `ingest sources show {source.id}` shows more"


def _reason(url: str, message: str) -> str:
    """Return the message, with the page's URL unless it contains it."""
    return shortened(message if url in message else f"{url}: {message}", LONGEST_REASON)


def browser_note(seen: Sequence[DemoPage]) -> str:
    """Return what the browser was used for; empty if no downloaded page needs one."""
    rendered = [page.url for page in seen if page.is_rendered]
    if rendered:
        return f"rendered by a browser, because empty without JavaScript: {', '.join(rendered)}"
    if unrendered := [page.url for page in seen if page.needs_browser]:
        return f"no browser was needed: {', '.join(unrendered)} is unchanged"
    return ""


def visited_pages(connection: Connection, source_ids: Sequence[str], *, since: datetime) -> list[DemoPage]:
    """Return the pages of each source's last extraction that were visited since then."""
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
        DemoPage(
            source_id=row.source_id,
            url=row.url,
            result=results.get(row.outcome, "changed" if row.was_there else "new"),
            failure=row.failure,
            needs_browser=row.rendered_at is not None,
            is_rendered=row.rendered_at is not None and row.rendered_at >= since,
        )
        for row in connection.execute(query)
    ]


def last_extractions(source_ids: Collection[str]) -> Select[tuple[int]]:
    """Select the id of each source's last extraction."""
    of_these = extractions.c.source_id.in_(list(source_ids))
    return select(func.max(extractions.c.id)).where(of_these).group_by(extractions.c.source_id)


def print_datasets(connection: Connection, source_ids: Sequence[str]) -> None:
    """Print one line per extracted catalogue; nothing before the first dataset exists."""
    rows = dataset_rows(connection, source_ids)
    if any(row[-1] != "-" for row in rows):
        echo("")
        numbers = ("items", "flagged", "pages", "version")
        print_table(("dataset", "extraction", *numbers, "state"), rows, numbers=numbers)


def dataset_rows(connection: Connection, source_ids: Sequence[str]) -> list[list[object]]:
    """Return each source's last extraction with its dataset, if any, and the pages whose records are known."""
    pages_read = (
        select(func.count(pages.c.item_count)).where(pages.c.extraction_id == extractions.c.id).scalar_subquery()
    )
    query = (
        select(
            extractions.c.source_id,
            extractions.c.status,
            datasets.c.item_count,
            datasets.c.flagged_count,
            pages_read,
            datasets.c.version,
            datasets.c.status.label("state"),
        )
        .outerjoin(datasets, datasets.c.id == extractions.c.dataset_id)
        .where(extractions.c.id.in_(last_extractions(source_ids)))
    )
    by_source = {row.source_id: row for row in connection.execute(query)}
    return [
        ["-" if value is None else value for value in by_source[source_id]]
        for source_id in source_ids
        if source_id in by_source
    ]


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


def print_unusual_pages(
    connection: Connection, settings: Settings, source_ids: Sequence[str], *, since: datetime
) -> None:
    """Print a line for each unusual page; nothing if this run downloaded none."""
    content = ContentStore(settings.home / "content")
    pages = downloaded_pages(connection, content, source_ids, since=since)
    if rows := [*unusual_pages(pages), *_delays(connection, [page.url for page in pages])]:
        echo("")
        print_table(("unusual", "details"), rows, flexible={"details"})


def unusual_pages(pages: Sequence[DownloadedPage]) -> Iterator[list[object]]:
    """Return what is unusual about each page and how it was handled."""
    for page in pages:
        if page.final_url != page.url:
            yield ["redirect", f"{page.url} leads to {page.final_url}: each hop was checked and rate limited"]
        if page.elapsed_ms >= SLOW_MS:
            yield ["slow page", f"{page.url} took {page.elapsed_ms / 1_000:.1f} seconds"]
        if page.encoding not in PLAIN:
            name = NAMES.get(page.encoding, page.encoding)
            yield ["charset", f"{page.url} is encoded in {name}, and stored as UTF-8"]


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


def _delays(connection: Connection, urls: Collection[str]) -> Iterator[list[object]]:
    query = select(hosts.c.host, hosts.c.crawl_delay_seconds).where(
        hosts.c.host.in_({host_of(url) for url in urls}), hosts.c.crawl_delay_seconds > 0
    )
    for host, seconds in connection.execute(query.order_by(hosts.c.host)):
        yield ["crawl delay", f"robots.txt of {host} sets a crawl delay of {seconds:g} seconds, which was kept"]
