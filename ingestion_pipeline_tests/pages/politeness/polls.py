"""Sources whose polls fetch from hosts of a loopback web, and what the database knows of them."""

from dataclasses import dataclass
from typing import Any

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.poll_handler import PollRunResult
from ingestion_pipeline.sources.source import Definition
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import hosts
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import add_sources, fetch, rows, task_row, with_settings


def a_source(path: str, host: str = "a.test", **changes: Any) -> Definition:
    """Return the definition of a source at this path of the host, named by the path."""
    name = path.strip("/").replace("/", "-")
    values = {"id": f"series:{name}", "url": f"http://{host}/{path.removeprefix('/')}", "series": name}
    return a_definition(**(values | changes))


def host_row(store: Store, host: str = "a.test") -> Any:
    return next(row for row in rows(store, hosts) if row.host == host)


def task_state(store: Store, source_id: str) -> tuple[str, int, str | None]:
    """Return status, attempts and error code of the source's poll."""
    task = task_row(store, source_id)
    return task.status, task.attempts, task.error_code


@dataclass(frozen=True, slots=True)
class Polls:
    """Polls of sources in a database, and the web that they fetch from."""

    ctx: RunContext
    web: FakeWeb

    @property
    def store(self) -> Store:
        return self.ctx.store

    def add(self, *sources: Definition) -> None:
        add_sources(self.store, *sources)

    def fetch(self, **settings: str) -> PollRunResult:
        """Run the fetch step of the due polls, with these settings changed."""
        ctx = with_settings(self.ctx, **settings) if settings else self.ctx
        return fetch(ctx, self.web)[1]
