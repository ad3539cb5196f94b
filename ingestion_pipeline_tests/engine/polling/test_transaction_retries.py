"""A run whose transaction the database aborts as a deadlock victim retries it, and nothing is lost."""

import pytest
from sqlalchemy import text

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import chapters, dead_letters, hosts
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.lock_orders import ON_POSTGRES
from ingestion_pipeline_tests.polling_runs import a_feed, add_sources, poll, rows, task_row

pytestmark = pytest.mark.both_databases

# A sequence is not rolled back: only the first attempt fails.
ABORTED_ONCE = """
CREATE SEQUENCE times;
CREATE FUNCTION aborted_once() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('times') = 1 THEN
        RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER aborted_once BEFORE UPDATE ON {table}
    FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION aborted_once();
"""


@ON_POSTGRES
@pytest.mark.parametrize(
    ("table", "when"),
    [
        pytest.param("tasks", "NEW.lease_owner IS NOT NULL", id="claim"),
        pytest.param("hosts", "NEW.lease_owner IS NOT NULL", id="lease"),
        pytest.param("hosts", "NEW.lease_owner IS NULL", id="release"),
        pytest.param("sources", "NEW.last_success_at IS NOT NULL", id="ingestion"),
    ],
)
def test_a_poll_takes_effect_once_even_if_the_database_aborts_one_of_its_transactions(
    ctx: RunContext, store: Store, web: FakeWeb, table: str, when: str
) -> None:
    web.routes["/feed"] = a_feed(1, 2)
    add_sources(store, a_definition(url="http://a.test/feed"))
    with store.begin() as connection:
        connection.execute(text(ABORTED_ONCE.format(table=table, when=when)))

    polled = poll(ctx, web)

    task = task_row(store)
    assert (polled.counts.changed, task.status, task.attempts) == (1, "PENDING", 0)
    assert len(rows(store, chapters)) == 2
    assert rows(store, dead_letters) == []
    assert [row.lease_owner for row in rows(store, hosts)] == [None]
    with store.begin() as connection:
        assert connection.execute(text("SELECT nextval('times')")).scalar_one() > 1
