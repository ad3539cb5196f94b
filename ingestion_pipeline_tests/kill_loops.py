"""Every kind of work for the kill loop: real workers in processes of their own, killed at random points.

A workload adds sources through the systems' own builders and says what must hold once nothing is left. The loop runs
two workers, suspends one past its lease, kills others, and replaces each; what they held is claimed when its lease
expires. On PostgreSQL the workers' clocks are days apart.
"""

import asyncio
import json
import math
import os
import random
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy import Table, func, select, update
from sqlalchemy.exc import SQLAlchemyError

from ingestion_pipeline.catalogs.datasets.finishing import update_completions
from ingestion_pipeline.catalogs.recipes.detected_recipes import DETECT
from ingestion_pipeline.catalogs.states import EXTRACT_PAGE
from ingestion_pipeline.companies.records import COMPANY, JOB, SOURCE_DISCOVERY
from ingestion_pipeline.demo.model_server import ModelRequest, Reply, Say, ScriptedModel, blank
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.model_batches import run_model_batches
from ingestion_pipeline.engine.system_spec import WorkRun, WorkScope
from ingestion_pipeline.notices.channels import WebhookChannel, WebhookLimits
from ingestion_pipeline.notices.delivery import run_deliveries
from ingestion_pipeline.orchestration.runs import end_run, release_run
from ingestion_pipeline.pages.http.guard import Guard
from ingestion_pipeline.reading.llm.batch_lines import MODEL_BATCH
from ingestion_pipeline.registry import systems
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.sources.source import Tier
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import (
    ACTIVE,
    batch_items,
    chapter_sources,
    chapters,
    companies,
    dead_letters,
    extractions,
    job_listings,
    job_matches,
    model_batch_lines,
    model_calls,
    outbox,
    pages,
    recipes,
    runs,
    snapshots,
    sources,
    tasks,
    website_analyses,
    website_answers,
)
from ingestion_pipeline.tasks.claims import Worker, begin_run
from ingestion_pipeline.tasks.errors import WorkError
from ingestion_pipeline_tests.builders import NOON, a_definition
from ingestion_pipeline_tests.catalog_extractions import a_catalog, fetch_pages, link_page, page_statuses
from ingestion_pipeline_tests.catalogs.course_pages import (
    answer_from_page,
    course_codes,
    dataset_rows,
    spring_layout,
)
from ingestion_pipeline_tests.catalogs.detection.sites import anchors, page
from ingestion_pipeline_tests.companies.company_sites import API, a_company, a_site, board_answer
from ingestion_pipeline_tests.companies.matching.listings import MATCHING_TEXT, PROFILE, Listings, a_listing_row
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.notices.notice_harness import NoticeHarness
from ingestion_pipeline_tests.polling_runs import (
    WorkerJob,
    a_feed,
    a_fetcher,
    add_sources,
    fetch_async,
    ingest,
    loopback_resolver,
    rows,
    slow_answer,
)
from ingestion_pipeline_tests.processes import PATIENCE_SECONDS, Child, stop_outside_a_transaction
from ingestion_pipeline_tests.websites.website_runs import SMALL_PAGE, a_website, provider_settings

# What a dead worker held is claimed again soon.
LEASES = {"work__lease_seconds": "5", "hosts__lease_seconds": "5"}
WORKERS = 2


@dataclass(kw_only=True)
class Scene:
    """A workload's database, its web, its model server, and the arguments of its workers."""

    store: Store
    web: FakeWeb
    model: ScriptedModel
    job: WorkerJob
    size: int
    in_flight: int = 0  # model calls of the suspended worker

    def rows(self, table: Table, **only: Any) -> list[Any]:
        return [row for row in rows(self.store, table) if all(getattr(row, name) == only[name] for name in only)]

    def start(self, *definitions: Any) -> None:
        """Add the sources, and run the polls that start their work."""
        add_sources(self.store, *definitions)
        with self.patient_ctx() as ctx:
            asyncio.run(fetch_async(ctx, self.web.port))

    def patient_ctx(self) -> Any:
        """Return a context with long leases and true time, for what is done before the loop."""
        return replace(self.job, changes={}, days_off=0).ctx()

    def serve_slowly(self, routes: Mapping[str, str | bytes], seconds: float) -> None:
        bodies = {route: body.encode() if isinstance(body, str) else body for route, body in routes.items()}
        self.web.routes |= {route: slow_answer(body, seconds) for route, body in bodies.items()}


class Workload:
    """One kind of work: how it is set up, what a run of it does, and what must hold at the end."""

    settings: ClassVar[Mapping[str, str]] = {}
    kinds: Sequence[str] = ()
    spec = ""  # the name of its work in the registry
    answers = (2, 5)  # the least and the most between two kills
    is_batched = False  # its questions are sent in batches
    reply_seconds = 0.1  # of the model, so that kills hit running requests
    size = 24
    soak_size = 240

    def prepare(self, scene: Scene) -> None:
        """Add the work."""
        raise NotImplementedError

    def settings_for(self, model_url: str, folder: Path) -> Mapping[str, str]:
        """Return the settings of its workers."""
        return {"openai_base_url": model_url, **self.settings}

    async def run(self, ctx: RunContext, worker: Worker, port: int) -> None:
        """Do what a production run does."""
        work = next(spec.work for system in systems() for spec in system.work if spec.name == self.spec)
        async with a_fetcher(ctx.settings, port) as fetcher:
            await work(WorkRun(ctx=ctx, worker=worker, fetcher=fetcher, renderer=None, scope=WorkScope()))

    def is_open(self, store: Store) -> bool:
        """Return whether anything is left to do."""
        with store.read() as connection:
            query = select(func.count()).select_from(tasks).where(ACTIVE, tasks.c.kind.in_(self.kinds))
            return connection.execute(query).scalar_one() > 0

    def reply(self, request: ModelRequest) -> Reply:
        """Return the model's answer."""
        return Say(text=json.dumps(blank(request.schema)))

    def check(self, scene: Scene) -> None:
        """Assert that each effect is there once."""
        raise NotImplementedError

    def counted_tasks(self, scene: Scene) -> Counter[tuple[str, str]]:
        return Counter((row.kind, row.status) for row in scene.rows(tasks) if row.kind in self.kinds)


class Polls(Workload):
    """Feeds of sources, two of which deliver the same chapter."""

    size, soak_size = 48, 300
    settings: ClassVar[Mapping[str, str]] = {"polling__concurrency": "6", "polling__batch_size": "12"}

    def prepare(self, scene: Scene) -> None:
        add_polled_sources(scene.store, scene.web, scene.size, seconds=0.15)

    async def run(self, ctx: RunContext, worker: Worker, port: int) -> None:
        _, fetching = await fetch_async(ctx, port, worker=worker)
        await asyncio.to_thread(ingest, ctx, worker, fetching)

    def is_open(self, store: Store) -> bool:
        return any(row.last_success_at is None for row in rows(store, sources))

    def check(self, scene: Scene) -> None:
        assert_one_effect_each(scene.store, scene.size)


PER_SERIES = 2  # so many sources deliver the same chapter


def add_polled_sources(store: Store, web: FakeWeb, count: int, *, seconds: float, hosts: int = 12) -> None:
    """Add sources that were synced long ago, each with one new chapter and a slow response."""
    definitions = [
        a_definition(
            id=f"series:{number}",
            url=f"http://{number % hosts}.test/{number}",
            series=f"series-{number // PER_SERIES}",
            tier=Tier.HOT,
        )
        for number in range(count)
    ]
    add_sources(store, *definitions)
    with store.begin() as connection:
        connection.execute(update(sources).values(synced_at=NOON))
    web.routes |= {f"/{number}": slow_answer(a_feed(1), seconds) for number in range(count)}


def assert_one_effect_each(store: Store, count: int) -> None:
    assert [row.last_success_at for row in rows(store, sources)].count(None) == 0
    links = Counter((row.source_id, row.chapter_id) for row in rows(store, chapter_sources))
    assert Counter(row.source_id for row in rows(store, chapter_sources)) == Counter(
        f"series:{number}" for number in range(count)
    )
    assert set(links.values()) == {1}
    assert len(rows(store, chapters)) == len(rows(store, outbox)) == count / PER_SERIES
    assert {(row.status, row.attempts) for row in rows(store, tasks)} == {("PENDING", 0)}
    assert rows(store, dead_letters) == []
    assert rows(store, batch_items) == []


class Crawl(Workload):
    """Catalogues that are fetched and read by rules."""

    kinds = ("fetch_page", EXTRACT_PAGE)
    spec = "crawl"
    each = 12
    size, soak_size = 3, 20

    def prepare(self, scene: Scene) -> None:
        names = [f"c{number}" for number in range(scene.size)]
        for name in names:
            scene.web.routes[f"{name}.test/"] = link_page(*(f"/c/{number}" for number in range(self.each)))
        bodies = {f"/c/{number}": f"<p>course {number}</p>" for number in range(self.each)}
        scene.serve_slowly(bodies, 0.1)
        scene.start(*(a_catalog(name=name, url=f"http://{name}.test/") for name in names))

    def check(self, scene: Scene) -> None:
        with scene.patient_ctx() as ctx:
            update_completions(ctx)
        count = scene.size * self.each
        assert page_statuses(scene.store) == {"SUCCESS": scene.size, "EXTRACTED_NO_DATA": count}
        assert set(Counter(row.key for row in scene.rows(pages)).values()) == {1}
        assert set(Counter(row.url for row in scene.rows(snapshots)).values()) == {1}
        assert {row.status for row in scene.rows(tasks) if row.kind in self.kinds} == {"SUCCESS"}
        assert [row.status for row in scene.rows(extractions)] == ["COMPLETE"] * scene.size


class Extraction(Workload):
    """Downloaded pages that only a model can read."""

    kinds = (EXTRACT_PAGE,)
    spec = "crawl"
    answers = (1, 2)  # selectors that are learned from three pages of each layout read the others without a model
    settings: ClassVar[Mapping[str, str]] = {"extraction__batch_size": "4"}
    reply_seconds = 0.3
    size, soak_size = 30, 39

    def prepare(self, scene: Scene) -> None:
        numbers = range(1, scene.size + 1)
        scene.web.routes["/"] = link_page(*(f"/c/{number}" for number in numbers))
        scene.web.routes |= {f"/c/{number}": garden_layout(number) for number in numbers}
        scene.start(a_catalog())
        with scene.patient_ctx() as ctx:
            fetch_pages(ctx, scene.web)

    def reply(self, request: ModelRequest) -> Reply:
        return answer_from_page(request)

    def check(self, scene: Scene) -> None:
        assert course_codes(scene.store) == sorted(f"GRD/{number}" for number in range(1, scene.size + 1))
        assert page_statuses(scene.store) == {"SUCCESS": scene.size + 1}
        assert [dataset["version"] for dataset in dataset_rows(scene.store)] == [1]
        assert {row.status for row in scene.rows(tasks, kind=EXTRACT_PAGE)} == {"SUCCESS"}
        methods = Counter(row.extraction_method for row in scene.rows(pages) if row.item_count)
        assert methods["cheap_model"] + methods["selectors"] == scene.size


class BatchedExtraction(Extraction):
    """The same pages, by batches of a model; between its answers the provider has to be polled."""

    kinds = (EXTRACT_PAGE, MODEL_BATCH)
    is_batched = True
    answers = (2, 5)  # requests for batches
    settings: ClassVar[Mapping[str, str]] = {
        **Extraction.settings,
        "models__batch": "auto",
        "models__batch_seconds": "0.5",
    }
    reply_seconds = 0.05

    async def run(self, ctx: RunContext, worker: Worker, port: int) -> None:
        await super().run(ctx, worker, port)
        await run_model_batches(ctx, worker)

    def check(self, scene: Scene) -> None:
        super().check(scene)
        settled = [row for row in scene.rows(model_calls) if row.status == "settled"]
        lines = [key for batch in scene.model.batches.answered.values() for key in batch]
        assert sorted(row.cache_key for row in settled) == sorted(lines)
        assert set(Counter(lines).values()) == {1}
        assert {row.status for row in scene.rows(model_calls)} <= {"settled", "cached"}
        assert scene.rows(model_batch_lines) == []


def garden_layout(number: int) -> str:
    """Return one of several layouts, so that few selectors are learned."""
    return spring_layout(number).replace("h4", f"h{number % 3 + 3}").replace('"lead"', f'"l{number}"')


class DetectionVotes(Workload):
    """Catalogues of badges, whose recipes a model votes on."""

    kinds = (DETECT,)
    spec = "detect"
    settings: ClassVar[Mapping[str, str]] = {
        "detection__page_type_votes": "2",
        "detection__pagination_votes": "1",
        "detection__samples": "1",
    }
    size, soak_size = 6, 60

    def prepare(self, scene: Scene) -> None:
        names = [f"b{number}" for number in range(scene.size)]
        for name in names:
            links = {f"/badge/{name}{number}": f"{name} {number}" for number in range(4)}
            site = {"/badges": page(anchors(links), title=f"Badges of {name}")}
            site |= {path: page(f"<p>Badge for {title}s</p>") for path, title in links.items()}
            scene.serve_slowly({f"{name}.test{path}": body for path, body in site.items()}, 0.05)
        config = {"entity": "credential"}
        scene.start(*(a_catalog(name=name, url=f"http://{name}.test/badges", config=config) for name in names))

    def reply(self, request: ModelRequest) -> Reply:
        keys, name = request.schema["properties"].keys(), re.search(r"Badges of (b\d+)", request.text)
        answer = blank(request.schema)
        if "page_type" in keys:
            answer["page_type"] = "DETAIL" if name is None else "DETAIL_LINKS"
        elif "pattern" in keys and name is not None:
            answer |= {"pattern": "/badge/[a-z0-9]+", "examples": [f"/badge/{name[1]}{number}" for number in range(2)]}
        else:
            answer |= {"counts": "none"}
        return Say(text=json.dumps(answer))

    def check(self, scene: Scene) -> None:
        assert Counter(row.status for row in scene.rows(recipes)) == {"SUCCESS": scene.size}
        assert self.counted_tasks(scene) == {(DETECT, "SUCCESS"): scene.size}
        assert [row.subject_kind for row in scene.rows(outbox)] == ["recipe"] * scene.size


class CompaniesAndBoards(Workload):
    """Companies with facts that a model adds, and the boards they lead to."""

    kinds = (COMPANY, SOURCE_DISCOVERY)
    spec = "analyze"
    size, soak_size = 8, 80

    def prepare(self, scene: Scene) -> None:
        names = [f"firm{number}" for number in range(scene.size)]
        for name in names:
            site = a_site(board=f"https://boards.greenhouse.io/{name}")
            site = {path: body.replace("Acme", name.title()) for path, body in site.items()}
            site = {path: body.replace("acme.test", f"{name}.test") for path, body in site.items()}
            scene.serve_slowly({f"{name}.test{path}": body for path, body in site.items()}, 0.1)
            board = {f"api-{name}.test{API.replace('acme', name)}": board_answer("Sorter")}
            scene.serve_slowly(board, 0.2)
        boards = {name: {"boards": {"greenhouse": {"api_base": f"http://api-{name}.test"}}} for name in names}
        scene.start(*(a_company(name, config=boards[name]) for name in names))

    def check(self, scene: Scene) -> None:
        names = sorted(f"firm{number}" for number in range(scene.size))
        assert sorted(row.id for row in scene.rows(companies)) == names
        assert {row.status for row in scene.rows(companies)} == {"active"}
        boards = [row.id for row in scene.rows(sources, kind="job_board")]
        assert sorted(boards) == [f"job_board:greenhouse-{name}" for name in names]
        assert self.counted_tasks(scene) == {(kind, "SUCCESS"): scene.size for kind in self.kinds}
        polls = [row.source_id for row in scene.rows(tasks, kind="poll") if row.source_id.startswith("job_board:")]
        assert sorted(polls) == sorted(boards)


class ScoredListings(Workload):
    """Listings whose pages are fetched, and that a model scores."""

    kinds = (JOB,)
    spec = "evaluate"
    size, soak_size = 16, 240

    def settings_for(self, model_url: str, folder: Path) -> Mapping[str, str]:
        profile = folder / "profile.yaml"
        profile.write_text(PROFILE)
        return {"openai_base_url": model_url, "match__profile": str(profile)}

    def prepare(self, scene: Scene) -> None:
        with scene.patient_ctx() as ctx:
            listings = Listings(ctx=ctx, profile=Path(scene.job.changes["match__profile"]), port=scene.web.port)
            listings.add_board()
            for number in range(scene.size):
                url = f"http://jobs{number % 8}.test/{number}"
                listings.add(**a_listing_row(url=url, description=None, posted_at=ctx.store.now()))
        body = f"<html><main><h1>Engineer</h1><p>Job {{}}. {MATCHING_TEXT}</p></main>"
        scene.serve_slowly({f"/{number}": body.format(number) for number in range(scene.size)}, 0.1)

    def reply(self, request: ModelRequest) -> Reply:
        answer = {"score": 72, "skills_matched": [], "skills_missing": [], "summary": "Close."}
        return Say(text=json.dumps(blank(request.schema) | (answer if "score" in request.schema["properties"] else {})))

    def check(self, scene: Scene) -> None:
        assert Counter(row.decision for row in scene.rows(job_listings)) == {"matched": scene.size}
        assert Counter(row.method for row in scene.rows(job_matches)) == {"model": scene.size}
        assert len(scene.rows(outbox)) == scene.size
        assert len(scene.rows(companies)) == 1
        assert self.counted_tasks(scene) == {(JOB, "SUCCESS"): scene.size}


class Websites(Workload):
    """Websites whose prompts a provider answers, and whose answers a model judges."""

    kinds = ("website_info", "website_prompts", "website_analysis")
    spec = "analyze_due"
    size, soak_size = 8, 100

    def settings_for(self, model_url: str, folder: Path) -> Mapping[str, str]:
        # A new worker imports its client first, on two busy cores.
        return {**provider_settings(one=model_url), "openai_base_url": model_url, "website__answer_seconds": "60"}

    def prepare(self, scene: Scene) -> None:
        pages = {f"w{number}.test/": SMALL_PAGE.replace("Bread", f"Bread {number}") for number in range(scene.size)}
        scene.serve_slowly(pages, 0.1)
        scene.start(*(a_website(f"w{number}", config=self._config(number)) for number in range(scene.size)))

    @staticmethod
    def _config(number: int) -> Mapping[str, Any]:
        return {"prompts": [f"Who bakes {kind} w{number}?" for kind in ("rye", "rolls")]}

    def reply(self, request: ModelRequest) -> Reply:
        sentiment = {"sentiment": "positive", "quote": "Acme Tools is the best"}
        is_about_sentiment = "sentiment" in request.schema.get("properties", {})
        if request.schema and not is_about_sentiment:
            return super().reply(request)
        answer = f"{request.text} Acme Tools is the best baker."
        return Say(text=json.dumps(sentiment) if is_about_sentiment else answer)

    def check(self, scene: Scene) -> None:
        assert {row.status for row in scene.rows(website_analyses)} == {"completed"}
        answers = Counter((row.prompt, row.status) for row in scene.rows(website_answers))
        prompts = [prompt for number in range(scene.size) for prompt in self._config(number)["prompts"]]
        assert answers == {(prompt, "answered"): 1 for prompt in prompts}
        assert self.counted_tasks(scene) == {(kind, "SUCCESS"): scene.size for kind in self.kinds}


class Deliveries(Workload):
    """Messages to followers, each with the three chapters that were published."""

    kinds = ("deliver",)
    settings: ClassVar[Mapping[str, str]] = {"notices__grouping_seconds": "0"}
    size, soak_size = 80, 800

    def prepare(self, scene: Scene) -> None:
        settings = load_settings({})
        harness = NoticeHarness(scene.store, FixedClock(scene.store.now()), settings, scene.web)
        for number in range(scene.size):
            harness.add_follower(f"r{number}")
        scene.serve_slowly({f"/r{number}": b"taken" for number in range(scene.size)}, 0.15)
        harness.publish(1, 2, 3)

    async def run(self, ctx: RunContext, worker: Worker, port: int) -> None:
        channel = WebhookChannel("tests", WebhookLimits(), Guard(resolve=loopback_resolver(port)))
        try:
            await run_deliveries(ctx, worker, channel)
        finally:
            await channel.aclose()

    def is_open(self, store: Store) -> bool:
        return any(row.handled_at is None for row in rows(store, outbox)) or super().is_open(store)

    def check(self, scene: Scene) -> None:
        messages = {(request.path, request.headers["idempotency-key"], request.body) for request in scene.web.requests}
        assert sorted(path for path, _, _ in messages) == sorted(f"/r{number}" for number in range(scene.size))
        harness = NoticeHarness(scene.store, FixedClock(scene.store.now()), load_settings({}), scene.web)
        assert Counter(row.status for row in harness.notices()) == {"sent": 3 * scene.size}
        assert self.counted_tasks(scene) == {("deliver", "SUCCESS"): scene.size}


WORKLOADS: Mapping[str, Workload] = {
    "polls": Polls(),
    "crawl": Crawl(),
    "extraction": Extraction(),
    "model_batches": BatchedExtraction(),
    "detection": DetectionVotes(),
    "companies": CompaniesAndBoards(),
    "listings": ScoredListings(),
    "websites": Websites(),
    "deliveries": Deliveries(),
}


def work_until_done(job: WorkerJob, kind: str, is_patient: bool = False) -> int:
    """Run in a separate process until nothing is left; a patient one begins again when the database went away.

    Return how many runs broke off.
    """
    workload, broken, deadline = WORKLOADS[kind], 0, time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            with job.ctx() as ctx:
                while workload.is_open(ctx.store) and time.monotonic() < deadline:
                    with registered_worker(ctx) as worker:
                        asyncio.run(workload.run(ctx, worker, job.port))
                    time.sleep(0.02)
        except (SQLAlchemyError, WorkError):
            if not is_patient:
                raise
            broken += 1
            time.sleep(0.2)
        else:
            return broken
    raise TimeoutError("the work was never done")


@contextmanager
def registered_worker(ctx: RunContext) -> Iterator[Worker]:
    """Yield the worker of a run that is registered under this process's id."""
    worker, lease = Worker(ctx.store, lease_seconds=ctx.settings.work.lease_seconds), timedelta(hours=1)
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        begin_run(connection, run_id=worker.owner, owner=worker.owner, job=str(os.getpid()), now=now, lease=lease)
    yield worker
    end_run(ctx.store, run_id=worker.owner)


def release_runs(store: Store, child: Child) -> None:
    """Free what the process's runs hold, as the sensor of stale runs does."""
    for row in rows(store, runs):
        if row.job == str(child.pid) and row.ended_at is None:
            release_run(store, run_id=row.run_id)


def interrupt_workers(scene: Scene, kind: str, *, kills: int, seed: int) -> int:
    """Suspend a worker, kill `kills` others while work is left, let the rest finish; return how many were killed."""
    choose, killed = random.Random(seed), 0
    scene.web.gate.allow(0)
    children = [_worker(scene, kind, number) for number in range(WORKERS)]
    suspended: Child | None = None
    try:
        while killed < kills and _await_progress(scene, kind, choose):
            index = choose.randrange(WORKERS)
            if suspended is None:
                try:
                    stop_outside_a_transaction(children[index], scene.store)
                except ProcessLookupError:  # it found nothing to claim beside the other one, and ended
                    children[index].result()
                    children[index] = _replacement(scene, kind, killed)
                    continue
                suspended = children[index]
                scene.in_flight = len(scene.rows(model_calls, status="reserved"))
            else:
                children[index].kill()
                killed += 1
            release_runs(scene.store, children[index])
            children[index] = _replacement(scene, kind, killed)
        scene.web.gate.allow(math.inf)
        for child in children:
            child.result()
        if suspended is not None:
            suspended.resume()
            suspended.result()
    finally:
        for child in [*children, *filter(None, [suspended])]:
            child.kill()
    return killed


def _worker(scene: Scene, kind: str, number: int) -> Child:
    is_postgres = scene.store.engine.dialect.name == "postgresql"
    days_off = (1, -1)[number % 2] if is_postgres else 0
    return Child(work_until_done, replace(scene.job, days_off=days_off), kind)


def _replacement(scene: Scene, kind: str, number: int) -> Child:
    """Start a worker and wait until it works; meanwhile no request is answered, so that work is left for it."""
    child, ends = _worker(scene, kind, number), time.monotonic() + 20
    while time.monotonic() < ends and WORKLOADS[kind].is_open(scene.store):
        if scene.rows(runs, job=str(child.pid)):
            break
        time.sleep(0.02)
    return child


def _await_progress(scene: Scene, kind: str, choose: random.Random) -> bool:
    """Wait for a few answers and a moment more; return whether work is left."""
    await_answers(scene, kind, choose.randint(*WORKLOADS[kind].answers))
    time.sleep(choose.random() / 5)
    return WORKLOADS[kind].is_open(scene.store)


def await_answers(scene: Scene, kind: str, count: int) -> None:
    """Let so many requests be answered and no more, and wait for it, or until no work is left."""
    scene.web.gate.allow(count)
    ends = time.monotonic() + 10
    while not scene.web.gate.is_used_up and time.monotonic() < ends and WORKLOADS[kind].is_open(scene.store):
        time.sleep(0.02)


def assert_no_answer_is_paid_twice(scene: Scene) -> None:
    """Assert that nothing was asked whose answer was stored, by the ledger and by the server's own count."""
    calls = [row for row in scene.rows(model_calls) if row.status != "cached"]
    answered_at = {row.cache_key: row.settled_at for row in reversed(calls) if row.outcome == "answered"}
    answered_calls = [row for row in calls if row.cache_key in answered_at]  # others died with their workers
    assert [row.id for row in answered_calls if row.created_at > answered_at[row.cache_key]] == []
    # Two workers may ask the same at the same time of two pages with one text, but not of one page.
    answers = Counter((row.cache_key, row.source_id, row.page_id) for row in calls if row.outcome == "answered")
    assert answers.total() - len(answers) <= scene.in_flight
    # A call whose worker died, or lost the claim meanwhile, is booked and may have been sent.
    assert answers.total() <= len(scene.model.requests) <= len(calls)
