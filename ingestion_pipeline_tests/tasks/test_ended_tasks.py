"""Classes of errors, the decision after a failure, and dead letters."""

import errno
import sqlite3
from contextlib import closing
from datetime import datetime, timedelta
from importlib import resources
from pathlib import Path
from random import Random

import psycopg2
import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import DataError, IntegrityError, InterfaceError, OperationalError

from ingestion_pipeline.settings import Work
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import audit_log, tasks
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.ended_tasks import (
    DeadLetterEntry,
    DeadLetterFilter,
    DeadLetterTask,
    Decision,
    ReleaseTask,
    Retry,
    add_dead_letters,
    after_failure,
    backoff,
    dead_letter_groups,
    discard,
    find_dead_letter,
    list_dead_letters,
    replay,
)
from ingestion_pipeline.tasks.errors import ErrorClass, Fatal, Permanent, Resource, Transient, WorkError, classify
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask, Task, TaskStatus, failed, released, retried
from ingestion_pipeline_tests.builders import NOON, a_new_task, a_task
from ingestion_pipeline_tests.polling_runs import rows

pytestmark = pytest.mark.both_databases


class AnExceptionWhoseNameIsFarLongerThanAnyColumnAllows(Exception):
    pass


LOST = InterfaceError("SELECT 1", None, Exception("gone"), connection_invalidated=True)


def from_postgres(sqlstate: str | None) -> OperationalError:
    answer = psycopg2.OperationalError("server error")
    answer.__setstate__({"pgcode": sqlstate})
    return OperationalError("SELECT 1", None, answer)


def from_sqlite(statement: str, *, path: str = ":memory:") -> OperationalError:
    with (
        pytest.raises(sqlite3.OperationalError) as caught,
        closing(sqlite3.connect(path, uri=True, timeout=0)) as connection,
    ):
        connection.executescript(statement)
    return OperationalError(statement, None, caught.value)


def our_file_missing() -> OSError:
    with pytest.raises(FileNotFoundError) as caught:
        (resources.files("ingestion_pipeline.sources") / "absent.yaml").read_text()
    return caught.value


@pytest.mark.parametrize(
    ("error", "error_class", "code"),
    [
        pytest.param(Permanent("gone", code="http_410"), "permanent", "http_410", id="classified"),
        pytest.param(MemoryError(), "fatal", "out_of_memory", id="memory"),
        pytest.param(OSError(errno.ENOSPC, "full"), "fatal", "storage", id="disk full"),
        pytest.param(OSError(errno.EDQUOT, "quota"), "fatal", "storage", id="quota"),
        pytest.param(OSError(errno.EMFILE, "files"), "fatal", "storage", id="too many files"),
        pytest.param(OSError(errno.EROFS, "read-only"), "fatal", "storage", id="read-only"),
        pytest.param(OSError(errno.EACCES, "denied"), "transient", "permission_error", id="denied"),
        pytest.param(our_file_missing(), "fatal", "installation", id="our own file is missing"),
        pytest.param(ImportError("yaml"), "fatal", "installation", id="a module is missing"),
        pytest.param(
            FileNotFoundError(errno.ENOENT, "no such file", "/elsewhere/profile.yaml"),
            "transient",
            "file_not_found_error",
            id="a user's file is missing",
        ),
        pytest.param(LOST, "fatal", "database", id="connection lost"),
        pytest.param(IntegrityError("INSERT", None, Exception()), "permanent", "constraint", id="constraint"),
        pytest.param(DataError("INSERT", None, Exception()), "transient", "data_error", id="other database"),
        pytest.param(ConnectionResetError("by peer"), "transient", "connection_reset_error"),
        pytest.param(TimeoutError(), "transient", "timeout_error", id="timeout"),
        pytest.param(KeyError("title"), "transient", "key_error", id="a programming error"),
    ],
)
def test_every_failure_has_a_class_and_a_code(error: BaseException, error_class: str, code: str) -> None:
    failure = classify(error)

    assert (failure.error_class, failure.code) == (ErrorClass(error_class), code)


@pytest.mark.parametrize("sqlstate", [None, "08006", "53100", "53200", "53300", "57P01", "58030"])
def test_a_lost_or_exhausted_postgresql_is_fatal(sqlstate: str | None) -> None:
    failure = classify(from_postgres(sqlstate))

    assert (failure.error_class, failure.code) == (ErrorClass.FATAL, "database")


@pytest.mark.parametrize(
    ("sqlstate", "code"),
    [
        ("40P01", "database_deadlock"),
        ("40001", "database_serialization"),
        ("57014", "database_cancelled"),
        ("55P03", "database_lock"),
        ("54001", "database_error"),
    ],
)
def test_a_temporary_postgresql_error_is_transient(sqlstate: str, code: str) -> None:
    failure = classify(from_postgres(sqlstate))

    assert (failure.error_class, failure.code) == (ErrorClass.TRANSIENT, code)


def test_an_unusable_sqlite_file_is_fatal(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    full = "CREATE TABLE t (x); PRAGMA max_page_count = 3; INSERT INTO t VALUES (zeroblob(50000))"
    with closing(sqlite3.connect(path)) as writer:
        writer.executescript("CREATE TABLE t (x); BEGIN IMMEDIATE")
        errors = [
            from_sqlite("BEGIN IMMEDIATE", path=f"file:{path}"),
            from_sqlite("DROP TABLE t", path=f"file:{path}?mode=ro"),
            from_sqlite("SELECT 1", path=f"file:{tmp_path / 'no' / 'folder'}"),
            from_sqlite(full),
        ]

    assert [str(error.orig) for error in errors] == [
        "database is locked",
        "attempt to write a readonly database",
        "unable to open database file",
        "database or disk is full",
    ]
    assert {classify(error).error_class for error in errors} == {ErrorClass.FATAL}


def test_a_disk_that_sqlite_cannot_read_is_fatal() -> None:
    broken = sqlite3.OperationalError("disk I/O error")
    broken.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ

    assert classify(OperationalError("SELECT 1", None, broken)).error_class is ErrorClass.FATAL


def test_a_statement_that_sqlite_refuses_is_transient() -> None:
    too_deep = from_sqlite("SELECT " + "(" * 2_000 + "1" + ")" * 2_000)
    missing = from_sqlite("SELECT * FROM nowhere")

    for error in (too_deep, missing):
        failure = classify(error)
        assert (failure.error_class, failure.code) == (ErrorClass.TRANSIENT, "database_error")


def test_a_classified_failure_stays_itself() -> None:
    error = Transient("busy", retry_after=timedelta(seconds=9))

    assert classify(error) is error


def test_an_unknown_error_keeps_its_name_and_message() -> None:
    assert str(classify(KeyError("title"))) == "KeyError: 'title'"


def test_a_code_fits_its_column() -> None:
    failure = classify(AnExceptionWhoseNameIsFarLongerThanAnyColumnAllows())

    assert failure.code == "an_exception_whose_name_is_far_longer_th"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        pytest.param("plain", "plain", id="plain"),
        pytest.param("a\0b", "a\N{REPLACEMENT CHARACTER}b", id="NUL"),
        pytest.param("a\ud800b", "a?b", id="half a character"),
        pytest.param("x" * 5_000, "x" * 2_000, id="too long"),
    ],
)
def test_the_text_of_an_error_can_be_stored_anywhere(message: str, text: str) -> None:
    assert WorkError(message).text == text


POLICY = Work()


class Steady(Random):
    """No jitter."""

    def random(self) -> float:
        return 0.0


def decide(error: WorkError, *, attempts: int = 1, policy: Work = POLICY) -> Decision:
    task = a_task(attempts=attempts)
    return after_failure(task, error, now=NOON, policy=policy, random=Steady())


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def limited(seconds: float) -> Transient:
    return Transient("429", retry_after=timedelta(seconds=seconds))


BUSY = Transient("503")
TOMORROW = after(86_400)


@pytest.mark.parametrize(
    ("error", "attempts", "decision"),
    [
        pytest.param(BUSY, 1, Retry(after(5)), id="first failure waits the base"),
        pytest.param(BUSY, 2, Retry(after(10)), id="second failure waits twice as long"),
        pytest.param(BUSY, 3, DeadLetterTask(), id="third failure is terminal at once"),
        pytest.param(BUSY, 4, DeadLetterTask(), id="one attempt too many"),
        pytest.param(WorkError("?"), 1, Retry(after(5)), id="an unclassified error is transient"),
        pytest.param(WorkError("?"), 3, DeadLetterTask(), id="an unclassified error is bounded"),
        pytest.param(limited(60), 1, Retry(after(60)), id="retry-after"),
        pytest.param(limited(1), 2, Retry(after(10)), id="retry-after shorter than the backoff"),
        pytest.param(limited(60), 3, DeadLetterTask(), id="retry-after at the last attempt"),
        pytest.param(Permanent("404"), 1, DeadLetterTask(), id="permanent"),
        pytest.param(Resource("budget", until=TOMORROW), 1, ReleaseTask(TOMORROW), id="resource"),
        pytest.param(Resource("budget", until=TOMORROW), 9, ReleaseTask(TOMORROW), id="resource late"),
        pytest.param(Fatal("disk"), 1, ReleaseTask(NOON), id="fatal"),
        pytest.param(Fatal("disk"), 3, ReleaseTask(NOON), id="fatal in the last attempt"),
    ],
)
def test_class_and_attempts_decide_what_a_failure_leads_to(error: WorkError, attempts: int, decision: Decision) -> None:
    assert decide(error, attempts=attempts) == decision


def test_with_one_attempt_the_first_failure_is_terminal() -> None:
    assert decide(BUSY, policy=Work(max_attempts=1)) == DeadLetterTask()


@pytest.mark.parametrize(
    ("attempts", "seconds"), [(0, 5), (1, 5), (2, 10), (3, 20), (10, 2_560), (11, 3_600), (40, 3_600), (10_000, 3_600)]
)
def test_the_delay_doubles_up_to_its_cap(attempts: int, seconds: int) -> None:
    assert backoff(attempts, POLICY, Steady()) == timedelta(seconds=seconds)


def test_jitter_only_lengthens_a_delay_by_at_most_its_share() -> None:
    random = Random(7)
    delays = [backoff(2, POLICY, random).total_seconds() for _ in range(1_000)]

    assert min(delays) >= 10
    assert max(delays) <= 11
    assert max(delays) - min(delays) > 0.9


def test_the_same_seed_gives_the_same_delay() -> None:
    assert backoff(1, Work(), Random(7)) == backoff(1, Work(), Random(7))


@pytest.mark.parametrize(
    ("move_name", "status", "attempts"),
    [
        pytest.param("retried", TaskStatus.PENDING, 3, id="a retry counts"),
        pytest.param("released", TaskStatus.PENDING, 2, id="a release costs no attempt"),
        pytest.param("failed", TaskStatus.FAILED, 3, id="dead-lettered"),
    ],
)
def test_a_move_decides_the_attempts(move_name: str, status: TaskStatus, attempts: int) -> None:
    task = a_task(attempts=3)
    move = {
        "retried": retried(task, BUSY, not_before=NOON),
        "released": released(task, BUSY, not_before=NOON),
        "failed": failed(task, BUSY),
    }[move_name]

    assert (move.status, move.attempts) == (status, attempts)
    assert (move.error_class, move.error_code, move.error) == ("transient", "transient", "503")


GONE = Permanent("'https://a.test/feed' answered 410 Gone", code="http_410")


def dead_lettered_task(
    store: Store, now: datetime, new: NewTask | None = None, error: WorkError = GONE, stack: str = "Traceback: ..."
) -> Task:
    """Return a task that failed and has its dead letter."""
    with store.begin() as connection:
        insert_tasks(connection, [new or a_new_task(payload={"page": 2})], now=now)
        [task] = claims.claim(
            connection, ClaimFilter(kind="poll"), owner="worker", now=now, lease=timedelta(minutes=2), limit=1
        )
        claims.set_stage(connection, [(task.id, task.fence)], "fetch")
        task = claims.tasks_by_id(connection, [task.id])[task.id]
        add_dead_letters(connection, [DeadLetterEntry(task=task, error=error, stack=stack)], now=now)
        claims.apply(connection, [failed(task, error)], now=now)
    return task


def only_dead_letter(store: Store) -> int:
    with store.read() as connection:
        [dead_letter] = list_dead_letters(connection, decided=True)
    return dead_letter["id"]


def try_replay(store: Store, dead_letter_id: int, now: datetime) -> str:
    with store.begin() as connection:
        return replay(connection, dead_letter_id, actor="cli", now=now)


def set_status(store: Store, status: TaskStatus, now: datetime) -> None:
    with store.begin() as connection:
        connection.execute(update(tasks).values(status=status.value, lease_until=now))


def test_a_dead_letter_has_every_fact_of_the_failure(store: Store, now: datetime) -> None:
    task = dead_lettered_task(store, now)

    with store.read() as connection:
        dead_letter = find_dead_letter(connection, only_dead_letter(store))

    assert dead_letter is not None
    assert dead_letter["payload"] == {"url": "https://a.test/feed", "page": 2}
    assert dead_letter["stack"] == "Traceback: ..."
    assert (dead_letter["error_class"], dead_letter["error_code"]) == ("permanent", "http_410")
    assert dead_letter["error"] == "'https://a.test/feed' answered 410 Gone"
    assert (dead_letter["task_id"], dead_letter["tracking_id"]) == (task.id, task.tracking_id)
    assert (dead_letter["attempts"], dead_letter["stage"], dead_letter["failed_at"]) == (1, "fetch", now)
    assert dead_letter["replayed_at"] is None


def test_a_dead_letter_cleans_an_error_that_no_database_accepts(store: Store, now: datetime) -> None:
    error = Permanent("the body began with \0\ud800", code="x" * 99)
    dead_lettered_task(store, now, error=error, stack=f"Permanent: {error}")

    with store.read() as connection:
        [dead_letter] = list_dead_letters(connection)
    assert dead_letter["error"] == "the body began with \N{REPLACEMENT CHARACTER}?"
    assert dead_letter["stack"] == f"Permanent: {dead_letter['error']}"
    assert dead_letter["error_code"] == "x" * 40


def test_adding_no_dead_letters_does_nothing(store: Store, now: datetime) -> None:
    with store.begin() as connection:
        add_dead_letters(connection, [], now=now)
        assert list_dead_letters(connection) == []


def test_dead_letters_are_listed_newest_first_and_filtered_by_class_and_source(store: Store, now: datetime) -> None:
    later = now + timedelta(hours=1)
    dead_lettered_task(store, now, a_new_task(source_id="series:a", dedupe_key="a"))
    dead_lettered_task(store, later, a_new_task(source_id="series:b", dedupe_key="b"), Transient("503"))

    def listed_sources(**filters: str) -> list[str]:
        with store.read() as connection:
            return [row["source_id"] for row in list_dead_letters(connection, DeadLetterFilter(**filters))]

    assert listed_sources() == ["series:b", "series:a"]
    assert listed_sources(error_class="permanent") == ["series:a"]
    assert listed_sources(source_id="series:b") == ["series:b"]
    assert listed_sources(source_id="series:b", error_class="permanent") == []


def test_a_replayed_task_is_due_with_all_its_attempts(store: Store, now: datetime) -> None:
    task = dead_lettered_task(store, now)
    later = now + timedelta(hours=1)

    outcome = try_replay(store, only_dead_letter(store), later)

    assert outcome == "queued"
    with store.read() as connection:
        replayed = claims.tasks_by_id(connection, [task.id])[task.id]
        assert list_dead_letters(connection) == []
        assert list_dead_letters(connection, decided=True)[0]["replayed_at"] == later
    assert (replayed.status, replayed.attempts, replayed.not_before) == (TaskStatus.PENDING, 0, later)
    assert replayed.fence == task.fence


def test_a_replay_is_audited(store: Store, now: datetime) -> None:
    task = dead_lettered_task(store, now)
    dead_letter_id = only_dead_letter(store)

    try_replay(store, dead_letter_id, now)

    [row] = rows(store, audit_log)
    assert (row.actor, row.action) == ("cli", "dead_letter.replay")
    assert row.subject == f"dead_letter:{dead_letter_id}"
    assert row.detail == {"task": task.id, "source": "series:solo", "outcome": "queued"}


def test_replaying_makes_a_waiting_poll_due(store: Store, now: datetime) -> None:
    task = dead_lettered_task(store, now)
    set_status(store, TaskStatus.PENDING, now)

    assert try_replay(store, only_dead_letter(store), now - timedelta(hours=1)) == "queued"
    with store.read() as connection:
        replayed = claims.tasks_by_id(connection, [task.id])[task.id]
    assert replayed.not_before == now - timedelta(hours=1)


def test_replaying_leaves_a_running_task_alone(store: Store, now: datetime) -> None:
    task = dead_lettered_task(store, now)
    set_status(store, TaskStatus.PROCESSING, now)

    assert try_replay(store, only_dead_letter(store), now) == "already running"
    with store.read() as connection:
        assert claims.tasks_by_id(connection, [task.id])[task.id].attempts == 1


def test_replaying_does_not_queue_a_task_twice(store: Store, now: datetime) -> None:
    dead_lettered_task(store, now)
    with store.begin() as connection:
        insert_tasks(connection, [a_new_task()], now=now)

    assert try_replay(store, only_dead_letter(store), now) == "already queued"


@pytest.mark.parametrize("status", [TaskStatus.SKIPPED, TaskStatus.CANCELLED])
def test_a_dead_letter_of_a_disabled_source_stays_and_says_why(store: Store, now: datetime, status: TaskStatus) -> None:
    dead_lettered_task(store, now)
    set_status(store, status, now)

    assert try_replay(store, only_dead_letter(store), now) == "its source is disabled"
    with store.read() as connection:
        assert connection.execute(select(tasks.c.status)).scalar_one() == status
        assert len(list_dead_letters(connection)) == 1


def test_an_unknown_dead_letter_is_refused(store: Store, now: datetime) -> None:
    with pytest.raises(LookupError, match="no dead letter 7"):
        try_replay(store, 7, now)


def test_dead_letters_are_grouped_by_class_source_and_error_largest_first(store: Store, now: datetime) -> None:
    slow = Transient("timed out", code="timeout")
    for name in ("a", "b"):
        dead_lettered_task(store, now, a_new_task(dedupe_key=name, source_id="series:a"), slow)
    dead_lettered_task(store, now, a_new_task(dedupe_key="c", source_id="series:b"))

    with store.read() as connection:
        groups = dead_letter_groups(connection)
        of_b = dead_letter_groups(connection, DeadLetterFilter(source_id="series:b"))

    summaries = [(group["error_class"], group["source_id"], group["dead_letters"]) for group in groups]
    assert summaries == [("transient", "series:a", 2), ("permanent", "series:b", 1)]
    assert [group["error_code"] for group in of_b] == ["http_410"]


def test_a_discarded_dead_letter_is_closed_and_keeps_its_reason(store: Store, now: datetime) -> None:
    dead_lettered_task(store, now)
    dead_letter_id = only_dead_letter(store)
    with store.begin() as connection:
        closed = discard(connection, [dead_letter_id], reason="gone for good", actor="ann", now=now)
        closed_again = discard(connection, [dead_letter_id], reason="twice", actor="bob", now=now)

    assert (closed, closed_again) == ([dead_letter_id], [])
    with store.read() as connection:
        assert list_dead_letters(connection) == []
        dead_letter = find_dead_letter(connection, dead_letter_id)
        audit_rows = connection.execute(select(audit_log.c.actor, audit_log.c.detail)).all()
    assert dead_letter is not None
    assert (dead_letter["discard_reason"], dead_letter["discarded_at"]) == ("gone for good", now)
    assert audit_rows == [("ann", {"reason": "gone for good"})]


def test_a_failure_after_a_discarded_dead_letter_adds_another(store: Store, now: datetime) -> None:
    task = dead_lettered_task(store, now)
    first = only_dead_letter(store)
    with store.begin() as connection:
        discard(connection, [first], reason="known", actor="ann", now=now)
        add_dead_letters(connection, [DeadLetterEntry(task=task, error=GONE)], now=now)

    with store.read() as connection:
        [second] = list_dead_letters(connection)
    assert (second["id"] != first, second["occurrences"]) == (True, 1)


def test_nothing_is_discarded_without_a_reason_or_with_an_unknown_id(store: Store, now: datetime) -> None:
    dead_lettered_task(store, now)
    dead_letter_id = only_dead_letter(store)

    with store.begin() as connection:
        with pytest.raises(ValueError, match="a reason"):
            discard(connection, [dead_letter_id], reason="  ", actor="ann", now=now)
        with pytest.raises(LookupError, match="no dead letter 99"):
            discard(connection, [dead_letter_id, 99], reason="gone", actor="ann", now=now)

    with store.read() as connection:
        assert len(list_dead_letters(connection)) == 1


def test_a_discarded_dead_letter_can_be_replayed(store: Store, now: datetime) -> None:
    dead_lettered_task(store, now)
    dead_letter_id = only_dead_letter(store)
    with store.begin() as connection:
        discard(connection, [dead_letter_id], reason="gone", actor="ann", now=now)

    assert try_replay(store, dead_letter_id, now) == "queued"
    with store.read() as connection:
        dead_letter = find_dead_letter(connection, dead_letter_id)
    assert dead_letter is not None
    assert (dead_letter["replayed_at"], dead_letter["discarded_at"]) == (now, None)
