"""Metrics in the Prometheus exposition format, and the backlog."""

import re
from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from sqlalchemy import insert, update

from ingestion_pipeline.engine.system_spec import Metric
from ingestion_pipeline.operations.alerts import record_heartbeat
from ingestion_pipeline.operations.metrics import Backlog, backlog, exposition, metric_text, numbers, queues
from ingestion_pipeline.operations.source_health import source_statuses
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import batch_items, model_calls, runs, sources, tasks
from ingestion_pipeline.tasks.ended_tasks import DeadLetterEntry, add_dead_letters
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline_tests.builders import a_task
from ingestion_pipeline_tests.operations.failing_sources import add_healthy_sources, break_sources

pytestmark = pytest.mark.both_databases

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\\\|\\"|\\n)*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (-?[0-9.]+(?:e[+-]?[0-9]+)?)")
MEANING = re.compile(rf"# HELP ({NAME}) (\S.*)")
KIND = re.compile(rf"# TYPE ({NAME}) (counter|gauge)")


def parse_exposition(text: str) -> dict[str, float]:
    """Return every sample by name and labels; fail on anything that the format does not allow."""
    assert text.endswith("\n")
    samples: dict[str, float] = {}
    metric_names: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        if meaning := MEANING.fullmatch(line):
            kind = KIND.fullmatch(next(lines))
            assert kind, line
            assert kind[1] == meaning[1]
            assert kind[1] not in metric_names, "the samples of a metric are contiguous"
            assert (kind[2] == "counter") == kind[1].endswith("_total")
            metric_names.append(kind[1])
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample, line
        assert sample[1] == metric_names[-1], "a sample follows its own HELP line"
        key = f"{sample[1]}{{{sample[2]}}}" if sample[2] else sample[1]
        assert key not in samples
        samples[key] = float(sample[3])
    return samples


def scrape(store: Store, settings: Settings, *, now: datetime) -> dict[str, float]:
    with store.read() as connection:
        statuses = source_statuses(connection, settings, now=now)
        return parse_exposition(exposition(numbers(connection, settings, statuses, now=now)))


def test_the_metrics_of_an_empty_store_follow_the_exposition_format(
    store: Store, settings: Settings, now: datetime
) -> None:
    samples = scrape(store, settings, now=now)

    assert samples['ingestion_sources{health="healthy"}'] == 0
    assert samples["ingestion_taken_at_seconds"] == now.timestamp()
    assert not any(name.startswith("ingestion_daemon") for name in samples)


def test_the_metrics_count_what_is_stored(store: Store, settings: Settings, now: datetime) -> None:
    minute = timedelta(minutes=1)
    call = {
        "call_site": "t",
        "provider": "p",
        "model": "m",
        "format": "f",
        "cache_key": "k",
        "prompt_version": "1",
        "created_at": now - minute,
    }
    with store.begin() as connection:
        ids = add_healthy_sources(connection, 20, now=now)
        break_sources(connection, ids, per_failure=1, now=now)
        due = {"not_before": now - 3 * minute, "attempts": 2}
        connection.execute(update(tasks).where(tasks.c.source_id == ids[7]).values(due))
        counts = {"poll_count": 5, "change_count": 1, "strike_count": 1}
        connection.execute(update(sources).where(sources.c.id.in_(ids[:2])).values(counts))
        add_dead_letters(connection, [DeadLetterEntry(task=a_task(), error=Permanent("x"), stack=None)], now=now)
        run = {"run_id": "r", "lease_owner": "o", "job": "poll_hot", "lease_until": now}
        span = {"started_at": now - 2 * minute, "ended_at": now - minute}
        connection.execute(insert(runs).values(run | span))
        for status, cost in (("settled", "0.25"), ("cached", "0"), ("failed", "0.5")):
            row = call | {"status": status, "cost_usd": Decimal(cost)}
            connection.execute(insert(model_calls).values(row))
        record_heartbeat(connection, settings, now=now)

    samples = scrape(store, settings, now=now)

    expected = {
        'ingestion_sources{health="open"}': 1,
        'ingestion_sources{health="degraded"}': 3,
        'ingestion_sources{health="healthy"}': 15,
        'ingestion_polls_total{outcome="unchanged"}': 6,
        'ingestion_polls_total{outcome="failed"}': 2,
        'ingestion_queue_depth{kind="poll",state="due"}': 1,
        'ingestion_queue_depth{kind="poll",state="later"}': 18,
        'ingestion_queue_oldest_due_seconds{kind="poll"}': 180,
        'ingestion_queue_retries{kind="poll"}': 2,
        "ingestion_polls_overdue": 0,
        "ingestion_polls_oldest_overdue_seconds": 0,
        "ingestion_ingestion_lag_seconds": 0,
        'ingestion_tasks_ended{kind="poll",status="skipped",error_class="none"}': 1,
        'ingestion_dead_letters_open{error_class="permanent"}': 1,
        'ingestion_runs_ended_24h{job="poll_hot"}': 1,
        'ingestion_run_seconds_24h{job="poll_hot"}': 60,
        'ingestion_model_calls_30d{outcome="answered"}': 1,
        'ingestion_model_calls_saved{by="cache"}': 1,
        "ingestion_model_cost_30d_usd": 0.75,
        "ingestion_daemon_last_tick_seconds": now.timestamp(),
        'ingestion_website_phase_tasks{phase="website-analysis",state="waiting"}': 0,
    }
    assert {name: samples.get(name) for name in expected} == expected


def test_a_label_holds_any_text_and_no_line_break() -> None:
    text = metric_text(Metric("x", "a\\b\nc", (({"job": 'say "hi"\n\\'}, 1.5),)))

    assert list(parse_exposition(text)) == [r'ingestion_x{job="say \"hi\"\n\\"}']
    assert text.splitlines()[0] == r"# HELP ingestion_x a\\b\nc"


def current_backlog(store: Store, settings: Settings, now: datetime) -> Backlog:
    with store.read() as connection:
        facts = [status.facts for status in source_statuses(connection, settings, now=now)]
        waiting = queues(connection, now=now)
        return backlog(connection, facts, waiting, now=now, limits=settings.health)


def test_an_empty_store_has_no_backlog(store: Store, settings: Settings, now: datetime) -> None:
    assert current_backlog(store, settings, now) == Backlog(
        due=0, overdue=0, oldest_overdue_seconds=0, waiting_to_ingest=0, ingestion_lag_seconds=0
    )


def test_due_and_overdue_polls_and_fetched_listings_are_counted_with_their_age(
    store: Store, settings: Settings, now: datetime
) -> None:
    with store.begin() as connection:
        ids = add_healthy_sources(connection, 6, now=now)
        ages = {ids[0]: timedelta(minutes=1), ids[1]: timedelta(days=3), ids[2]: timedelta(days=9)}
        for id_, age in ages.items():
            due = {"not_before": now - age}
            connection.execute(update(tasks).where(tasks.c.source_id == id_).values(due))
        off = update(sources).where(sources.c.id == ids[2])
        connection.execute(off.values(status="disabled"))  # it is not due
        item = {"batch_id": "b", "task_id": 1, "fence": 1, "source_id": ids[3], "fetched": {}}
        fetched_at = now - timedelta(minutes=7)
        connection.execute(insert(batch_items).values(item | {"fetched_at": fetched_at}))

    assert current_backlog(store, settings, now) == Backlog(
        due=2, overdue=1, oldest_overdue_seconds=3 * 86_400, waiting_to_ingest=1, ingestion_lag_seconds=420
    )
