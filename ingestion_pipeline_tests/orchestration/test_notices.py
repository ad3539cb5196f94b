"""`deliver_notices`: from an outbox row to a receiver, through Dagster."""

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
from ingestion_pipeline_tests.notices.notice_harness import NoticeHarness
from ingestion_pipeline_tests.orchestration.installation import Installation, run_job, tick_sensor


def notice_harness(ctx: RunContext, web: FakeWeb, *, ago: timedelta = timedelta(minutes=1)) -> NoticeHarness:
    moment: datetime = ctx.store.now() - ago
    return NoticeHarness(ctx.store, FixedClock(moment), ctx.settings, web)


def requested_jobs(instance: dg.DagsterInstance) -> list[str]:
    data = tick_sensor("pending_work", instance)
    return [request.job_name or "" for request in data.run_requests or []]


@pytest.mark.slow
def test_pending_notices_request_one_delivery_run_which_sends_and_reports(
    installation: Installation, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeWeb() as web, installation.open() as ctx:
        monkeypatch.setenv("INGESTION_ALLOW_HOSTS", web.host_port)
        harness = notice_harness(ctx, web)
        harness.add_follower("ann", address=web.url("/ann"))
        harness.add_follower("dead", address=web.url("/gone"))
        assert requested_jobs(instance) == []
        harness.publish(7)
        assert requested_jobs(instance) == ["deliver_notices"]

        result = run_job("deliver_notices", instance)

        assert result.success
        [event] = result.get_asset_materialization_events()
        numbers = {name: value.value for name, value in event.materialization.metadata.items()}
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
        checks = {evaluation.check_name: evaluation for evaluation in result.get_asset_check_evaluations()}
        check = checks.pop("all_delivered")
        assert [(name, check.passed) for name, check in checks.items()] == [("contract", True)]
        assert not check.passed
        assert "dead: 1 failed" in str(check.metadata["details"].value)
        assert requested_jobs(instance) == []
        assert [row["ended_at"] is None for row in installation.rows("runs")] == [False]
        with ctx.store.read() as connection:
            assert connection.execute(select(dead_letters.c.error_code)).scalar_one() == "http_404"


@pytest.mark.slow
def test_no_second_delivery_run_is_requested_while_one_works(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
    with FakeWeb() as web, installation.open() as ctx:
        harness = notice_harness(ctx, web)
        harness.add_follower()
        harness.publish(7)
    run = instance.create_run_for_job(defs.resolve_job_def("deliver_notices"), tags={"ingestion/shard": "notices"})

    assert requested_jobs(instance) == []
    instance.report_run_failed(run)
    [request] = tick_sensor("pending_work", instance).run_requests or []
    assert request.job_name == "deliver_notices"
    assert re.fullmatch(r"notices:\d{8}T\d{4}", str(request.run_key))  # by the minute: one failed


@pytest.mark.slow
def test_chapters_without_followers_start_no_run_and_maintenance_handles_them(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
    with FakeWeb() as web, installation.open() as ctx:
        notice_harness(ctx, web).publish(7)

    assert requested_jobs(instance) == []
    assert run_job("maintain", instance).success
    assert [row["handled_at"] is None for row in installation.rows("outbox")] == [False]
