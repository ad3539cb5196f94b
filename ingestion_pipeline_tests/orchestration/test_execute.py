"""Jobs that a command runs in its own process: what went wrong is said, and Ctrl-C ends it."""

from __future__ import annotations

import os
import signal

import dagster as dg
import pytest

from ingestion_pipeline.orchestration.execute import run_job


@dg.op
def fail() -> None:
    raise ValueError("the roof leaks")


@dg.op
def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@dg.job
def failing() -> None:
    fail()


@dg.job
def interrupted() -> None:
    interrupt()


def test_a_failure_is_told_and_ctrl_c_is_no_failure_of_the_job(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    definitions = dg.Definitions(jobs=[failing, interrupted])

    has_succeeded, errors = run_job(definitions, "failing")
    with pytest.raises(KeyboardInterrupt):
        run_job(definitions, "interrupted")

    assert not has_succeeded
    assert "the roof leaks" in "".join(errors)
    assert capfd.readouterr() == ("", "")
