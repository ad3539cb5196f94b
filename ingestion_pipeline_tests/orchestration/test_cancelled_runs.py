"""A run that is cancelled: Dagster sends SIGTERM to its process."""

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta

import dagster as dg
import pytest

from ingestion_pipeline.orchestration.runs import run_job
from ingestion_pipeline.store import FixedClock
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.fakes import FakeWeb, dripping_answer
from ingestion_pipeline_tests.notices.notice_harness import NoticeHarness
from ingestion_pipeline_tests.orchestration.installation import Installation
from ingestion_pipeline_tests.processes import Child, run_command

SOURCE = "series:slow"


def wait_for(condition: Callable[[], bool], *, seconds: float) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "the condition did not become true in time"
        time.sleep(0.1)


def start_job(job: str, installation: Installation, web: FakeWeb) -> Child:
    variables = installation.environment | {"INGESTION_ALLOW_HOSTS": web.host_port}
    line = ["dagster", "job", "execute", "-m", "ingestion_pipeline", "-j", job]
    return Child(run_command, str(installation.home), line, variables)


@pytest.mark.slow
def test_a_cancelled_delivery_releases_its_recipients_and_counts_no_attempt(installation: Installation) -> None:
    with FakeWeb() as web, installation.open() as ctx:
        moment = ctx.store.now() - timedelta(minutes=1)
        harness = NoticeHarness(ctx.store, FixedClock(moment), ctx.settings, web)
        harness.add_follower("ann", address=web.url("/ann"))
        web.routes["/ann"] = dripping_answer(b"HTTP/1.1 200 OK\r\nX-A: ", every_seconds=0.2)
        harness.publish(7)
        run = start_job("deliver_notices", installation, web)
        wait_for(lambda: len(web.requests) == 1, seconds=120)
        run.interrupt()
        assert run.result().code != 0
        task, [row], [run_row] = harness.task(), harness.notices(), installation.rows("runs")

    assert (task.status, task.attempts, task.error_code) == ("PENDING", 0, "stopped")
    assert (row.status, row.delivery_id is None) == ("pending", False)
    assert run_row["ended_at"] is not None


@pytest.mark.slow
def test_a_cancelled_run_releases_its_leases_and_counts_no_attempt(installation: Installation) -> None:
    with FakeWeb({"/slow": dripping_answer(b"HTTP/1.1 200 OK\r\nX-A: ", every_seconds=0.2)}) as web:
        installation.add(a_definition(id=SOURCE, url=web.url("/slow")))
        run = start_job("poll_warm", installation, web)
        wait_for(lambda: len(web.requests) == 1, seconds=120)
        run.interrupt()
        assert run.result().code != 0

    task, [host], [run_row] = installation.poll_task(SOURCE), installation.rows("hosts"), installation.rows("runs")
    assert (task["status"], task["attempts"], task["error_code"]) == ("PENDING", 0, "stopped")
    assert host["lease_owner"] is None
    assert run_row["ended_at"] is not None


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


@pytest.mark.slow
def test_a_failure_is_reported_and_ctrl_c_is_not_a_failure_of_the_job(
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
