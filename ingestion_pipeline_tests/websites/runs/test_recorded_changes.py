"""Changes of businesses and rankings are recorded: a first sync, the models' answers, or another model."""

from typing import Any

import pytest
from sqlalchemy import delete

from ingestion_pipeline.demo.model_server import ScriptedModel
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store.tables import changes
from ingestion_pipeline.websites.analysis_rows import request_analyses
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.folding import check_fold
from ingestion_pipeline_tests.polling_runs import RunningClock, rows, with_settings
from ingestion_pipeline_tests.websites.website_runs import (
    ACME_PAGES,
    a_website,
    analyse,
    process_analyses,
    provider_settings,
)

pytestmark = pytest.mark.both_databases


def causes(ctx: RunContext) -> set[tuple[str, str, str]]:
    """Return what was recorded, and forget it."""
    found = {(row.table_name, row.op, row.cause) for row in rows(ctx.store, changes)}
    with ctx.store.begin() as connection:
        connection.execute(delete(changes))
    return found


def test_scores_change_by_the_answers_or_by_another_model(
    ctx: RunContext, web: FakeWeb, provider: ScriptedModel, clock: RunningClock
) -> None:
    web.routes |= ACME_PAGES
    analyse(ctx, web, a_website())
    with ctx.store.read() as connection:
        check_fold(connection)
    assert causes(ctx) == {("businesses", "insert", "first_sync"), ("website_rankings", "insert", "first_sync")}

    def again(run: RunContext) -> Any:
        clock.advance(days=8)
        request_analyses(run, ["website:acme"])
        return process_analyses(run, web.port)

    again(ctx)
    assert causes(ctx) >= {("website_rankings", "insert", "source_changed")}
    again(with_settings(ctx, **provider_settings(other=provider.base_url)))
    assert causes(ctx) >= {("website_rankings", "insert", "model_changed")}
