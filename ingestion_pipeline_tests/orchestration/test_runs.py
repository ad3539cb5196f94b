"""Runs that are cancelled, and runs that meet an outage of our own network."""

import os
import signal
from collections.abc import Iterator, Sequence

import dagster as dg
import pytest

from ingestion_pipeline.orchestration import runs
from ingestion_pipeline.sources import Definition, Kind, SourceStatus, Tier
from ingestion_pipeline_tests.builders import NOON, a_definition
from ingestion_pipeline_tests.fakes import LOOPBACK, FakeWeb, closed_port, dripping_answer
from ingestion_pipeline_tests.orchestration.installation import Installation, failure_message
from ingestion_pipeline_tests.polling_runs import wait_until
from ingestion_pipeline_tests.processes import Child, run_command

pytestmark = pytest.mark.slow  # a Dagster run takes 0.2 seconds and more

SOURCE = "series:slow"


def start_job(job: str, installation: Installation, web: FakeWeb) -> Child:
    variables = installation.environment | {"INGESTION_ALLOW_HOSTS": web.host_port}
    line = ["dagster", "job", "execute", "-m", "ingestion_pipeline", "-j", job]
    return Child(run_command, str(installation.home), line, variables)


def test_a_cancelled_run_releases_its_leases_and_counts_no_attempt(installation: Installation) -> None:
    with FakeWeb({"/slow": dripping_answer(b"HTTP/1.1 200 OK\r\nX-A: ", every_seconds=0.2)}) as web:
        installation.add(a_definition(id=SOURCE, url=web.url("/slow")))
        run = start_job("poll_warm", installation, web)
        wait_until(lambda: len(web.requests) == 1, 120)
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


def test_a_failure_is_reported_and_ctrl_c_is_not_a_failure_of_the_job(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    definitions = dg.Definitions(jobs=[failing, interrupted])

    has_succeeded, errors = runs.run_job(definitions, "failing")
    with pytest.raises(KeyboardInterrupt):
        runs.run_job(definitions, "interrupted")

    assert not has_succeeded
    assert "the roof leaks" in "".join(errors)
    assert capfd.readouterr() == ("", "")


FEED = (
    '<rss version="2.0"><channel><title>A</title><item><title>Chapter 1</title>'
    "<link>https://a.test/1</link></item></channel></rss>"
)
LIST = {"items": "jobs", "fields": {"external_id": "id", "title": "title", "url": "url"}}
DOWN = "network down: no connection to"


def a_series(name: str, host: str) -> Definition:
    return a_definition(id=f"series:{name}", series=name, url=f"http://{host}/feed", tier=Tier.HOT)


def a_board(name: str, host: str) -> Definition:
    return Definition(
        id=f"job_board:{name}",
        kind=Kind.JOB_BOARD,
        url=f"http://{host}/jobs",
        platform="json",
        config=LIST | {"company": "Acme"},
        tier=Tier.HOT,
    )


def closed_hosts(count: int) -> list[str]:
    return [f"{LOOPBACK}:{port}" for port in {closed_port() for _ in range(count)}]


@pytest.fixture
def webs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sequence[FakeWeb]]:
    running = [FakeWeb({"/feed": FEED, "/robots.txt": 404}) for _ in range(4)]
    for web in running:
        web.__enter__()
    yield running
    for web in running:
        web.__exit__()


def add(installation: Installation, monkeypatch: pytest.MonkeyPatch, *definitions: Definition) -> list[str]:
    hosts = {definition.url.split("/")[2] for definition in definitions}
    monkeypatch.setenv("INGESTION_ALLOW_HOSTS", ",".join(sorted(hosts)))
    installation.add(*definitions)
    return [definition.id for definition in definitions]


def failure_counts(installation: Installation, ids: Sequence[str]) -> list[int]:
    return [installation.source(source_id).failure_count for source_id in ids]


def test_an_outage_of_our_network_opens_no_breaker_and_disables_no_board(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = closed_hosts(30)
    series = [a_series(f"s{n}", host) for n, host in enumerate(hosts[:20])]
    boards = [a_board(f"b{n}", host) for n, host in enumerate(hosts[20:])]
    ids = add(installation, monkeypatch, *series, *boards)

    for _ in range(5):
        installation.make_due(*ids)
        assert DOWN in failure_message(installation.run_job("poll_hot"))

    assert failure_counts(installation, ids) == [0] * len(ids)
    assert {installation.source(source_id).status for source_id in ids} == {SourceStatus.ACTIVE}
    assert {installation.poll_task(source_id)["attempts"] for source_id in ids} == {0}
    assert {installation.poll_task(source_id)["error_code"] for source_id in ids} == {"network_down"}
    assert installation.rows("dead_letters") == []


def test_reachable_sources_are_ingested_while_the_others_are_released(
    installation: Installation, webs: Sequence[FakeWeb], monkeypatch: pytest.MonkeyPatch
) -> None:
    up = [a_series(f"up{n}", web.host_port) for n, web in enumerate(webs[:2])]
    down = [a_series(f"down{n}", host) for n, host in enumerate(closed_hosts(6))]
    ids = add(installation, monkeypatch, *up, *down)

    for _ in range(5):
        installation.make_due(*ids)
        assert f"{DOWN} 6 of 8 hosts" in failure_message(installation.run_job("poll_hot"))

    assert failure_counts(installation, ids) == [0] * len(ids)
    assert [installation.chapters_of(source.id) for source in up] == [1, 1]


@pytest.mark.parametrize("dead", [1, 2, 3])
def test_dead_hosts_among_as_many_live_hosts_count_failures(
    installation: Installation, webs: Sequence[FakeWeb], monkeypatch: pytest.MonkeyPatch, dead: int
) -> None:
    up = [a_series(f"up{n}", web.host_port) for n, web in enumerate(webs)]
    down = [a_series(f"down{n}", host) for n, host in enumerate(closed_hosts(dead))]
    add(installation, monkeypatch, *up, *down)

    assert installation.run_job("poll_hot").success

    assert failure_counts(installation, [source.id for source in down]) == [1] * dead


def test_a_single_dead_host_counts_a_failure(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = add(installation, monkeypatch, a_series("alone", *closed_hosts(1)))

    assert "all 1 polled sources failed" in failure_message(installation.run_job("poll_hot"))

    assert failure_counts(installation, ids) == [1]


def test_hosts_that_stay_dead_while_others_answer_eventually_count_failures(
    installation: Installation, webs: Sequence[FakeWeb], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three hosts that die together and are due alone look like an outage, but only once."""
    up = [a_series(f"up{n}", web.host_port) for n, web in enumerate(webs)]
    down = [a_series(f"down{n}", host) for n, host in enumerate(closed_hosts(3))]
    add(installation, monkeypatch, *up, *down)
    ids = [source.id for source in down]
    for source in up:
        installation.set_poll_task(source.id, status="SKIPPED")
    assert DOWN in failure_message(installation.run_job("poll_hot"))
    for source in down:
        installation.set_poll_task(source.id, kind="resting")
    for source in up:
        installation.set_poll_task(source.id, status="PENDING")
    assert installation.run_job("poll_hot").success
    for source in down:
        installation.set_poll_task(source.id, kind="poll")
    installation.make_due(*ids)

    assert "all 3 polled sources failed" in failure_message(installation.run_job("poll_hot"))

    assert failure_counts(installation, ids) == [1, 1, 1]


def test_a_canary_that_is_down_protects_a_single_source(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGESTION_FETCH__CANARY", *closed_hosts(1))
    ids = add(installation, monkeypatch, a_series("alone", *closed_hosts(1)))

    assert f"{DOWN} the canary" in failure_message(installation.run_job("poll_hot"))

    assert failure_counts(installation, ids) == [0]


def test_with_an_answering_canary_the_hosts_count_their_failures(
    installation: Installation, webs: Sequence[FakeWeb], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGESTION_FETCH__CANARY", webs[0].host_port)
    down = [a_series(f"down{n}", host) for n, host in enumerate(closed_hosts(5))]
    ids = add(installation, monkeypatch, *down)

    assert "all 5 polled sources failed" in failure_message(installation.run_job("poll_hot"))

    assert failure_counts(installation, ids) == [1] * 5


@pytest.mark.parametrize(
    ("kind", "platform", "job"),
    [
        ("catalog", "catalog", "crawl_catalogs"),
        ("company", "website", "process_companies"),
        ("website", "website", "analyze_websites"),
    ],
)
def test_an_outage_is_no_failure_of_pages_companies_or_websites(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, kind: str, platform: str, job: str
) -> None:
    config = {"recipe": {"page_type": "DETAIL"}} if kind == "catalog" else {}
    definitions = [
        Definition(
            id=f"{kind}:d{n}", kind=Kind(kind), url=f"http://{host}/", platform=platform, config=config, tier=Tier.HOT
        )
        for n, host in enumerate(closed_hosts(4))
    ]
    ids = add(installation, monkeypatch, *definitions)
    assert installation.run_job("poll_hot").success

    for _ in range(5):
        assert DOWN in failure_message(installation.run_job(job))
        for source_id in ids:  # due again
            installation.set_poll_task(source_id, not_before=NOON)

    assert failure_counts(installation, ids) == [0] * 4
    assert installation.rows("dead_letters") == []
    working = [row for row in installation.rows("tasks") if row["kind"] != "poll"]
    assert {task["status"] for task in working} == {"PENDING"}
    assert max(task["attempts"] for task in working) <= 1  # of tasks that failed before the outage was detected


def test_a_run_fails_when_every_source_was_retried_without_success(
    installation: Installation, webs: Sequence[FakeWeb], monkeypatch: pytest.MonkeyPatch
) -> None:
    for web in webs:
        web.routes["/feed"] = 500
    definitions = [a_series(f"s{n}", web.host_port) for n, web in enumerate(webs)]
    ids = add(installation, monkeypatch, *definitions)

    assert "all 4 polled sources failed" in failure_message(installation.run_job("poll_hot"))

    assert failure_counts(installation, ids) == [1] * 4


def test_a_run_fails_when_every_source_is_to_be_retried_later(
    installation: Installation, webs: Sequence[FakeWeb], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGESTION_WORK__BACKOFF_BASE_SECONDS", "600")
    for web in webs:
        web.routes["/feed"] = 500
    add(installation, monkeypatch, *[a_series(f"s{n}", web.host_port) for n, web in enumerate(webs)])

    failure = failure_message(installation.run_job("poll_hot"))

    assert "no polled sources succeeded; they are retried" in failure
