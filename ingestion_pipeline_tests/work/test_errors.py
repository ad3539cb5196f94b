from __future__ import annotations

import errno
from datetime import timedelta

import pytest
from sqlalchemy.exc import DataError, IntegrityError, InterfaceError, OperationalError

from ingestion_pipeline.work.errors import ErrorClass, Permanent, Transient, WorkError, classify


class AnExceptionWhoseNameIsFarLongerThanAnyColumnWouldEverWant(Exception):
    pass


LOST = InterfaceError("SELECT 1", None, Exception("gone"), connection_invalidated=True)
BUSY = OperationalError("SELECT 1", None, Exception("the server closed the connection"))


@pytest.mark.parametrize(
    ("error", "error_class", "code"),
    [
        pytest.param(Permanent("gone", code="http_410"), "permanent", "http_410", id="classified"),
        pytest.param(MemoryError(), "fatal", "out_of_memory", id="memory"),
        pytest.param(OSError(errno.ENOSPC, "full"), "fatal", "storage", id="disk full"),
        pytest.param(OSError(errno.EDQUOT, "quota"), "fatal", "storage", id="quota"),
        pytest.param(OSError(errno.EMFILE, "files"), "fatal", "storage", id="too many files"),
        pytest.param(BUSY, "fatal", "database", id="database gone"),
        pytest.param(LOST, "fatal", "database", id="connection lost"),
        pytest.param(
            IntegrityError("INSERT", None, Exception()), "permanent", "constraint", id="constraint"
        ),
        pytest.param(
            DataError("INSERT", None, Exception()), "transient", "data_error", id="other database"
        ),
        pytest.param(ConnectionResetError("by peer"), "transient", "connection_reset_error"),
        pytest.param(TimeoutError(), "transient", "timeout_error", id="timeout"),
        pytest.param(KeyError("title"), "transient", "key_error", id="our own mistake"),
    ],
)
def test_every_failure_has_a_class_and_a_code(
    error: BaseException, error_class: str, code: str
) -> None:
    found = classify(error)

    assert (found.error_class, found.code) == (ErrorClass(error_class), code)


def test_a_classified_failure_stays_itself() -> None:
    error = Transient("busy", retry_after=timedelta(seconds=9))

    assert classify(error) is error


def test_the_unknown_keeps_its_name_and_its_words() -> None:
    assert str(classify(KeyError("title"))) == "KeyError: 'title'"


def test_a_code_fits_its_column() -> None:
    found = classify(AnExceptionWhoseNameIsFarLongerThanAnyColumnWouldEverWant())

    assert found.code == "an_exception_whose_name_is_far_longer_th"


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
