"""Ingestion of a board: one listing per posting, missing twice is closed, doubtful lists are quarantined; reports."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import insert, select, update

from ingestion_pipeline.companies import checks
from ingestion_pipeline.companies.boards.board_polls import ingest_boards
from ingestion_pipeline.companies.boards.listing_rows import close_expired
from ingestion_pipeline.companies.job_listing import Listing
from ingestion_pipeline.companies.reports import BoardReport, board_reports
from ingestion_pipeline.sources.files import accept_drop
from ingestion_pipeline.sources.status import mark_reported
from ingestion_pipeline.store.tables import audit_log, job_listings, job_matches, snapshots, tasks
from ingestion_pipeline_tests.companies.boards.job_boards import ACME, Boards, a_board, a_job, a_match, jobs
from ingestion_pipeline_tests.polling_runs import rows, task_row

pytestmark = pytest.mark.both_databases


def test_a_first_poll_adds_listings_links_and_tasks_without_notifications(boards: Boards) -> None:
    polled = boards.start(jobs(1, 2))

    first, second = boards.listings()
    assert polled.counts.changed == 1
    assert (first.title, second.title) == ("Engineer 1", "Engineer 2")
    assert (first.status, first.location, first.company_name) == ("open", "Oslo", "Acme, Inc.")
    assert first.posted_at == datetime(2026, 2, 20, 10, tzinfo=UTC)
    assert [link.listing_id for link in boards.links()] == [first.id, second.id]
    assert boards.source_row().last_outcome == "first sync: 2 found, 2 new"
    assert [task.payload["is_first_sync"] for task in boards.job_tasks()] == [True, True]


def test_a_job_task_inherits_the_lineage_of_its_poll_and_carries_its_url(boards: Boards) -> None:
    """Trap 16."""
    boards.start(jobs(7))

    parent = task_row(boards.store, ACME)
    (task,) = boards.job_tasks()
    assert (task.tracking_id, task.parent_id) == (parent.tracking_id, parent.id)
    assert (task.ancestry, task.spawn_depth) == ([parent.id], 1)
    assert task.url == task.dedupe_key == "https://boards.greenhouse.io/acme/jobs/7"
    assert task.payload["listing_id"] == boards.listings()[0].id
    assert boards.listings()[0].tracking_id == parent.tracking_id


def test_an_expired_listing_reopens_when_its_board_extends_it(boards: Boards) -> None:
    boards.add()
    deadline = "2026-01-31T12:00:00Z"
    boards.poll([a_job(1, application_deadline=deadline), a_job(2, application_deadline=deadline)])
    closed = boards.apply(close_expired)
    states = {listing.title: listing.status for listing in boards.listings()}

    boards.poll(
        [
            a_job(1, application_deadline="2036-01-31T12:00:00Z"),
            a_job(2, application_deadline=deadline, location={"name": "Bergen"}),
        ]
    )

    assert (closed, set(states.values())) == (2, {"closed"})
    first, second = boards.listings()
    assert (first.status, first.closed_reason, first.decision) == ("open", None, None)
    assert (second.status, second.location) == ("closed", "Bergen")


def test_a_change_of_the_department_alone_is_stored_and_evaluates_nothing_again(boards: Boards) -> None:
    boards.start([a_job(1, departments=[{"name": "Baking"}])])
    before = len(boards.job_tasks())
    changed_at = boards.listings()[0].changed_at
    boards.clock.advance(hours=1)

    boards.poll([a_job(1, departments=[{"name": "Research"}])])
    boards.poll([a_job(1, departments=[{"name": "Research"}])])

    listing = boards.listings()[0]
    assert (listing.department, len(boards.job_tasks())) == ("Research", before)
    assert listing.changed_at > changed_at
    assert boards.source_row().last_outcome == "unchanged"


def test_a_listing_added_after_the_first_sync_is_announced(boards: Boards) -> None:
    boards.start(jobs(1))

    boards.poll(jobs(1, 2))

    assert [task.payload["is_first_sync"] for task in boards.job_tasks()] == [True, False]
    assert boards.source_row().last_outcome == "2 found, 1 new"


def test_a_board_that_moved_announces_jobs_posted_since_and_no_older_ones(boards: Boards) -> None:
    boards.start(jobs(1))
    posted_at = boards.clock.advance(hours=1).isoformat()
    boards.add(a_board(config={"api_base": "http://api.test", "company": "Acme"}))

    boards.poll([*jobs(1, 2), a_job(3, first_published=posted_at)])

    first_sync_flags = {task.payload["listing_id"]: task.payload["is_first_sync"] for task in boards.job_tasks()}
    assert first_sync_flags == {1: True, 2: True, 3: False}


@pytest.mark.slow
@pytest.mark.parametrize("is_evaluated", [True, False], ids=["evaluated", "waiting"])
def test_a_job_of_another_boards_first_sync_is_announced_once_when_a_board_adds_it(
    boards: Boards, *, is_evaluated: bool
) -> None:
    boards.start(jobs(1))
    boards.add(a_board("mirror"))
    boards.serve_jobs(jobs(1, 2, 3), token="mirror")
    boards.poll()
    if is_evaluated:
        with boards.store.begin() as connection:
            connection.execute(update(tasks).where(tasks.c.kind == "job").values(status="SUCCESS"))
    before = len(boards.job_tasks())

    for _ in range(2):
        boards.poll(jobs(1, 2))

    announced = [task.payload for task in boards.job_tasks() if "is_unreported" in task.payload]
    assert announced == [{"listing_id": 2, "is_first_sync": False, "is_unreported": True}]
    assert len(boards.job_tasks()) == before + is_evaluated


@pytest.mark.slow
def test_the_backlog_of_a_board_is_not_announced_when_a_later_board_lists_it(boards: Boards) -> None:
    boards.start(jobs(1, 2))
    boards.add(a_board("mirror"))
    boards.serve_jobs(jobs(1), token="mirror")
    boards.poll()
    before = len(boards.job_tasks())

    boards.serve_jobs(jobs(1, 2), token="mirror")
    boards.poll()

    assert len(boards.job_tasks()) == before


def test_a_board_that_starts_empty_succeeds_without_a_first_sync(boards: Boards) -> None:
    """Trap 19: zero jobs is a success."""
    boards.start([])

    row = boards.source_row()
    assert (row.status, row.failure_count, row.last_outcome) == ("active", 0, "first sync: 0 found, nothing new")
    assert row.synced_at is None


def test_a_changed_listing_is_updated_and_evaluated_again(boards: Boards) -> None:
    boards.start(jobs(1, 2))

    boards.poll([a_job(1), a_job(2, title="Lead Engineer")])

    assert [row.title for row in boards.listings()] == ["Engineer 1", "Lead Engineer"]
    assert boards.source_row().last_outcome == "2 found, 1 updated"
    # its first task is still pending, and evaluates the content at the time it runs
    assert len(boards.job_tasks()) == 2


def test_a_listing_missing_once_is_counted_and_missing_twice_is_closed(boards: Boards) -> None:
    boards.start(jobs(1, 2, 3))
    listing = boards.listings()[2]
    boards.execute(insert(job_matches).values(a_match(listing.id)))

    boards.poll(jobs(1, 2))
    assert [(link.missing, link.available) for link in boards.links()][2] == (1, True)
    assert boards.listings()[2].status == "open"

    boards.poll(jobs(1, 2))  # the same body again is parsed again
    closed = boards.listings()[2]
    assert (closed.status, closed.closed_at) == ("closed", boards.clock.at)
    assert [link.available for link in boards.links()] == [True, True, False]
    assert [row.status for row in rows(boards.store, job_matches)] == ["withdrawn"]
    assert boards.source_row().last_outcome == "2 found, 1 closed"
    assert boards.source_row().record_count == 2


@pytest.mark.slow
def test_a_closed_listing_that_returns_is_reopened_and_evaluated_again(boards: Boards) -> None:
    boards.add()
    for postings in (jobs(1, 2), jobs(1), jobs(1)):
        boards.poll(postings)
    assert boards.listings()[1].status == "closed"
    boards.execute(update(tasks).where(tasks.c.kind == "job").values(status="SUCCESS"))

    boards.poll(jobs(1, 2))

    returned = boards.listings()[1]
    assert (returned.status, returned.closed_at) == ("open", None)
    assert boards.source_row().last_outcome == "2 found, 1 reopened"
    waiting = [task for task in boards.job_tasks() if task.status == "PENDING"]
    assert [task.payload["listing_id"] for task in waiting] == [returned.id]


def test_a_listing_states_when_it_was_first_and_last_listed_and_how_often_it_was_reopened(boards: Boards) -> None:
    boards.start(jobs(1, 2))
    first_at = boards.listings()[1].first_listed_at
    boards.poll(jobs(1, 2))
    last_at = boards.source_row().last_success_at
    for _ in range(2):
        boards.poll(jobs(1))
    closed = boards.listings()[1]

    boards.poll(jobs(1, 2))

    reopened = boards.listings()[1]
    assert (closed.first_listed_at, closed.last_listed_at, closed.times_reopened) == (first_at, last_at, 0)
    assert (reopened.first_listed_at, reopened.last_listed_at, reopened.times_reopened) == (first_at, last_at, 1)
    assert boards.listings()[0].last_listed_at is None


def test_a_posting_that_replaces_one_with_the_same_text_and_place_is_its_repost(boards: Boards) -> None:
    old = a_job(1, title="Engineer", content="<p>We build pipes.</p>")
    boards.start([old, *jobs(2, 3)])
    first_at = boards.listings()[0].first_listed_at
    elsewhere = {"location": {"name": "Bergen"}}

    boards.poll([old | {"id": 11, "absolute_url": "https://boards.greenhouse.io/acme/jobs/11"}, *jobs(2, 3)])
    boards.poll(
        [old | {"id": 12, "absolute_url": "https://boards.greenhouse.io/acme/jobs/12"} | elsewhere, *jobs(2, 3)]
    )

    original, _, _, repost, other = boards.listings()
    assert (original.repost_of, repost.repost_of, other.repost_of) == (None, original.id, None)
    assert repost.first_listed_at == first_at < repost.first_seen_at
    assert other.first_listed_at == other.first_seen_at


@pytest.mark.slow
def test_an_incomplete_list_closes_nothing(boards: Boards) -> None:
    boards.start(jobs(1, 2, 3))

    for _ in range(3):
        boards.poll([*jobs(1, 2), {"title": "no id"}])

    assert [row.status for row in boards.listings()] == ["open"] * 3
    assert [link.missing for link in boards.links()] == [0, 0, 0]


@pytest.mark.slow
def test_an_empty_list_after_a_full_one_is_quarantined(boards: Boards) -> None:
    boards.start(jobs(1, 2))

    boards.poll([])
    boards.poll([])

    row = boards.source_row()
    assert row.last_outcome.startswith("quarantined: lists nothing, 2 jobs are known")
    assert (row.status, row.failure_count, row.record_count) == ("active", 0, 2)
    assert [listing.status for listing in boards.listings()] == ["open", "open"]
    (dead_letter,) = boards.dead_letters()
    assert (dead_letter.error_code, dead_letter.occurrences, dead_letter.source_id) == ("quarantined", 2, ACME)


@pytest.mark.slow
def test_a_large_drop_is_quarantined_until_an_operator_accepts_it(boards: Boards) -> None:
    boards.start(jobs(*range(10)))

    boards.poll(jobs(1, 2))
    assert "8 of 10 known jobs are missing" in boards.source_row().last_outcome

    boards.apply(accept_drop, ACME, actor="me")
    boards.poll(jobs(1, 2))
    assert sum(row.status == "open" for row in boards.listings()) == 2


@pytest.mark.slow
def test_a_renamed_field_is_quarantined_and_its_body_is_stored(boards: Boards) -> None:
    boards.start(jobs(1, 2, 3))
    before = boards.listings()
    renamed = [{**job, "body": job["content"]} for job in jobs(1, 2, 3, title="Other")]
    for job in renamed:
        del job["content"]

    boards.poll(renamed)

    assert "3 of 3 known jobs have lost their description" in boards.source_row().last_outcome
    assert boards.listings() == before
    (dead_letter,) = boards.dead_letters()
    snapshot_rows = {row.id: row for row in rows(boards.store, snapshots)}
    body = boards.ctx.content.get(snapshot_rows[dead_letter.payload["snapshots"][0]].content_hash)
    assert b'"body"' in body


def test_renaming_every_field_fails_the_poll_and_stores_the_body(boards: Boards) -> None:
    boards.start(jobs(1))

    boards.poll([{"key": 1, "name": "Engineer"}])

    (dead_letter,) = boards.dead_letters()
    assert dead_letter.error_code == "unexpected_body"
    assert dead_letter.payload["snapshots"]
    assert (boards.source_row().failure_count, boards.listings()[0].status) == (1, "open")


def test_a_job_in_two_cities_on_one_board_is_two_listings(boards: Boards) -> None:
    boards.add()
    common_fields = {"title": "Engineer", "content": "<p>We build pipes.</p>"}

    boards.poll([a_job(1, **common_fields), a_job(2, **common_fields, location={"name": "Bergen"})])

    assert [row.location for row in boards.listings()] == ["Oslo", "Bergen"]


def test_jobs_that_share_one_url_are_separate_listings_and_each_evaluated(boards: Boards) -> None:
    boards.start(jobs(1, 2, absolute_url="https://acme.test/careers"))

    assert len(boards.listings()) == len(boards.job_tasks()) == 2
    assert len({task.url for task in boards.job_tasks()}) == 2


def test_the_same_posting_on_two_boards_is_one_listing_with_two_links(boards: Boards) -> None:
    boards.add_two()
    boards.serve_jobs(jobs(1), token="acme")
    copy = a_job(99, title="Engineer 1", content=a_job(1)["content"], company_name="Acme GmbH")
    boards.serve_jobs([copy], token="other")

    boards.poll()
    boards.poll()

    (listing,) = boards.listings()
    assert {(link.source_id, link.listing_id) for link in boards.links()} == {
        (ACME, listing.id),
        ("job_board:other", listing.id),
    }
    assert len(boards.job_tasks()) == 1


@pytest.mark.slow
def test_a_listing_is_closed_only_when_no_board_lists_it(boards: Boards) -> None:
    boards.add_two()
    shared = {"absolute_url": "https://acme.test/jobs/1?utm_source=x"}
    boards.serve_jobs([*jobs(5), a_job(1, **shared)], token="acme")
    boards.serve_jobs([*jobs(6), a_job(77, **shared)], token="other")
    boards.poll()
    boards.serve_jobs(jobs(5), token="acme")
    for _ in range(2):
        boards.poll()
    assert [row.status for row in boards.listings()] == ["open"] * 3

    boards.serve_jobs(jobs(6), token="other")
    for _ in range(2):
        boards.poll()
    assert sorted(row.status for row in boards.listings()) == ["closed", "open", "open"]


def test_a_second_board_fills_missing_fields_and_overwrites_nothing(boards: Boards) -> None:
    boards.add_two()
    boards.serve_jobs([a_job(1, location=None)], token="acme")
    shared = a_job(1)["absolute_url"]
    boards.serve_jobs([a_job(7, absolute_url=shared, title="Engineer!")], token="other")
    boards.poll()

    later = a_job(7, absolute_url=shared, title="Engineer?", location={"name": "Rome"})
    boards.serve_jobs([later], token="other")
    boards.poll()

    (listing,) = boards.listings()
    assert (listing.title, listing.location) == ("Engineer 1", "Rome")


def test_a_refused_spawn_is_in_the_audit_log(boards: Boards) -> None:
    boards.add()
    board_listing = boards.board_listing(ACME, [Listing(external_id="1", title="Engineer", url="https://a.test/1")])
    too_deep = replace(board_listing, task=replace(board_listing.task, spawn_depth=10))
    with boards.store.begin() as connection:
        ingest_boards(connection, [too_deep], now=boards.clock.at, settings=boards.ctx.settings)
        query = select(audit_log).where(audit_log.c.action == "spawn.refused")
        (audit_row,) = connection.execute(query).all()

    assert audit_row.detail["reason"] == "too_deep"
    assert boards.job_tasks() == []


def board_report(boards: Boards, source_id: str = ACME) -> BoardReport:
    with boards.store.read() as connection:
        [board] = board_reports(connection, [source_id])
    return board


def set_decision(boards: Boards, decision: str, *ids: int, rejected_by: str = "salary") -> None:
    rejection = {"category": "rejection", "name": rejected_by}
    filter_result = {"passed": False, "rejected_by": rejected_by, "items": [rejection]}
    values = {"decision": decision, "filter_result": filter_result}
    boards.execute(update(job_listings).where(job_listings.c.id.in_(ids)).values(values))


def test_the_funnel_of_a_board_counts_the_outcomes_of_its_jobs(boards: Boards) -> None:
    boards.add_two()
    boards.serve_jobs(jobs(1, 2, 3, 4, 5), token="acme")
    boards.serve_jobs([a_job(1), a_job(9)], token="other")
    boards.poll()
    ids = [row.id for row in boards.listings() if row.source_id == ACME]
    set_decision(boards, "filtered", *ids[:2])
    set_decision(boards, "filtered", ids[2], rejected_by="age")
    set_decision(boards, "matched", ids[3])

    acme, other = board_report(boards), board_report(boards, "job_board:other")

    assert (acme.found, acme.matched, acme.skipped, acme.waiting) == (5, 1, 0, 1)
    assert acme.filtered == {"salary": 2, "age": 1}
    assert {(acme.new, acme.duplicate), (other.new, other.duplicate)} <= {(5, 0), (4, 1), (2, 0), (1, 1)}
    assert acme.new + other.new == 6
    assert acme.duplicate + other.duplicate == 1


@pytest.mark.slow
def test_a_report_counts_changes_since_the_previous_report(boards: Boards) -> None:
    boards.start(jobs(1, 2))
    with boards.store.begin() as connection:
        mark_reported(connection, [ACME])

    boards.poll([a_job(1, title="Lead"), *jobs(2, 3)])

    report = board_report(boards)
    assert (report.new, report.updated, report.closed, report.found) == (1, 1, 0, 3)
    assert [listing["is_new"] for listing in report.newest] == [True, False, False]


@pytest.mark.slow
def test_a_drop_and_a_lost_field_are_different_findings(boards: Boards) -> None:
    boards.start(jobs(1, 2))

    boards.poll([])
    with boards.store.read() as connection:
        assert [check_finding.subject for check_finding in checks.dropped(connection)] == [ACME]
        assert checks.lost_fields(connection) == []

    boards.poll(jobs(1, 2, location=None))
    with boards.store.read() as connection:
        assert checks.dropped(connection) == []
        (finding,) = checks.lost_fields(connection)
    assert "2 of 2 known jobs have lost their location" in finding.message


def test_a_board_is_stale_after_two_weeks_without_success(boards: Boards) -> None:
    boards.start(jobs(1))

    def stale_after(days: int) -> int:
        now = boards.clock.at + timedelta(days=days)
        with boards.store.read() as connection:
            return len(checks.stale_boards(connection, now=now))

    assert (stale_after(13), stale_after(15)) == (0, 1)


@pytest.mark.slow
def test_a_board_that_failures_disabled_is_a_finding(boards: Boards) -> None:
    boards.add()
    boards.serve(404)
    for _ in range(5):
        boards.poll()

    with boards.store.read() as connection:
        (finding,) = checks.stale_boards(connection, now=boards.clock.at)
    assert "5 failed polls" in finding.message


def test_a_board_whose_jobs_are_all_filtered_is_a_finding(boards: Boards) -> None:
    boards.start(jobs(*range(6)))
    ids = [row.id for row in boards.listings()]

    set_decision(boards, "filtered", *ids)
    with boards.store.read() as connection:
        assert [row.subject for row in checks.all_filtered(connection)] == [ACME]

    set_decision(boards, "skipped", ids[0])
    with boards.store.read() as connection:
        assert checks.all_filtered(connection) == []
