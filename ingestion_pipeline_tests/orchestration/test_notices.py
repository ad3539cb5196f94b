"""`deliver_notices`: from an outbox row to a receiver, through Dagster."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import dagster as dg
import pytest
from sqlalchemy import select

from ingestion_pipeline.definitions import defs
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store import FixedClock
from ingestion_pipeline.store.tables import dead_letters
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.notices.telling import Telling
from ingestion_pipeline_tests.orchestration.house import House, run_job, tick_sensor


def telling(ctx: RunContext, web: FakeWeb, *, ago: timedelta = timedelta(minutes=1)) -> Telling:
    moment: datetime = ctx.store.now() - ago
    return Telling(ctx.store, FixedClock(moment), ctx.settings, web)


def requested(instance: dg.DagsterInstance) -> list[str]:
    data = tick_sensor("pending_work", instance)
    return [one.job_name or "" for one in data.run_requests or []]


def test_news_request_one_deliverer_which_tells_and_reports(
    house: House, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeWeb() as web, house.open() as ctx:
        monkeypatch.setenv("INGESTION_ALLOW_HOSTS", web.host_port)
        told = telling(ctx, web)
        told.given_follower("ann", address=web.url("/ann"))
        told.given_follower("dead", address=web.url("/gone"))
        assert requested(instance) == []
        told.publish(7)
        assert requested(instance) == ["deliver_notices"]

        result = run_job("deliver_notices", instance)

        assert result.success
        [event] = result.get_asset_materialization_events()
        numbers = {name: one.value for name, one in event.materialization.metadata.items()}
        delay = numbers.pop("median_delay_seconds")
        assert 60 <= float(str(delay)) < 120
        assert numbers == {
            "expanded": 2,
            "muted": 0,
            "messages": 1,
            "sent": 1,
            "retried": 0,
            "failed": 1,
            "pending": 0,
            "failed_in_all": 1,
        }
        checks = {one.check_name: one for one in result.get_asset_check_evaluations()}
        check = checks.pop("all_delivered")
        assert [(name, one.passed) for name, one in checks.items()] == [("contract", True)]
        assert not check.passed
        assert "dead: 1 failed" in str(check.metadata["details"].value)
        assert requested(instance) == []
        assert [row["ended_at"] is None for row in house.rows("runs")] == [False]
        with ctx.store.read() as connection:
            assert connection.execute(select(dead_letters.c.error_code)).scalar_one() == "http_404"


def test_while_a_deliverer_works_no_other_is_requested(house: House, instance: dg.DagsterInstance) -> None:
    with FakeWeb() as web, house.open() as ctx:
        told = telling(ctx, web)
        told.given_follower()
        told.publish(7)
    run = instance.create_run_for_job(defs.resolve_job_def("deliver_notices"), tags={"ingestion/shard": "notices"})

    assert requested(instance) == []
    instance.report_run_failed(run)
    [request] = tick_sensor("pending_work", instance).run_requests or []
    assert request.job_name == "deliver_notices"
    assert re.fullmatch(r"notices:\d{8}T\d{4}", str(request.run_key))  # by the minute: one failed


def test_chapters_that_nobody_follows_start_no_run_and_upkeep_handles_them(
    house: House, instance: dg.DagsterInstance
) -> None:
    with FakeWeb() as web, house.open() as ctx:
        telling(ctx, web).publish(7)

    assert requested(instance) == []
    assert run_job("maintain", instance).success
    assert [row["handled_at"] is None for row in house.rows("outbox")] == [False]
