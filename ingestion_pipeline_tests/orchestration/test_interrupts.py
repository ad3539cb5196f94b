"""A run that is cancelled: Dagster sends SIGTERM to its process."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from ingestion_pipeline.store import FixedClock
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.fakes import FakeWeb, drips
from ingestion_pipeline_tests.notices.telling import Telling
from ingestion_pipeline_tests.orchestration.house import House
from ingestion_pipeline_tests.processes import Child, type_line

SOURCE = "series:slow"


def wait_for(condition: Callable[[], bool], *, seconds: float) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not come to that"
        time.sleep(0.1)


def start_job(job: str, house: House, web: FakeWeb) -> Child:
    variables = house.environment | {"INGESTION_ALLOW_HOSTS": web.host_port}
    line = ["dagster", "job", "execute", "-m", "ingestion_pipeline", "-j", job]
    return Child(type_line, str(house.home), line, variables)


@pytest.mark.slow
def test_a_cancelled_deliverer_gives_back_its_recipients_and_nothing_is_counted(house: House) -> None:
    with FakeWeb() as web, house.open() as ctx:
        moment = ctx.store.now() - timedelta(minutes=1)
        telling = Telling(ctx.store, FixedClock(moment), ctx.settings, web)
        telling.given_follower("ann", address=web.url("/ann"))
        web.routes["/ann"] = drips(b"HTTP/1.1 200 OK\r\nX-A: ", every_seconds=0.2)
        telling.publish(7)
        run = start_job("deliver_notices", house, web)
        wait_for(lambda: len(web.requests) == 1, seconds=120)
        run.interrupt()
        assert run.result().code != 0
        task, [row], [known] = telling.task(), telling.notices(), house.rows("runs")

    assert (task.status, task.attempts, task.error_code) == ("PENDING", 0, "stopped")
    assert (row.status, row.delivery_id is None) == ("pending", False)
    assert known["ended_at"] is not None


@pytest.mark.slow
def test_a_cancelled_run_gives_back_all_it_holds_and_nothing_is_counted(house: House) -> None:
    with FakeWeb({"/slow": drips(b"HTTP/1.1 200 OK\r\nX-A: ", every_seconds=0.2)}) as web:
        house.add(a_definition(id=SOURCE, url=web.url("/slow")))
        run = start_job("poll_warm", house, web)
        wait_for(lambda: len(web.requests) == 1, seconds=120)
        run.interrupt()
        assert run.result().code != 0

    task, [host], [known] = house.poll_task(SOURCE), house.rows("hosts"), house.rows("runs")
    assert (task["status"], task["attempts"], task["error_code"]) == ("PENDING", 0, "stopped")
    assert host["lease_owner"] is None
    assert known["ended_at"] is not None
