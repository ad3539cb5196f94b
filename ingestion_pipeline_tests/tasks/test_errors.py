import errno
import sqlite3
from contextlib import closing
from datetime import timedelta
from importlib import resources
from pathlib import Path

import psycopg2
import pytest
from sqlalchemy.exc import DataError, IntegrityError, InterfaceError, OperationalError

from ingestion_pipeline.tasks.errors import ErrorClass, Permanent, Transient, WorkError, classify

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
