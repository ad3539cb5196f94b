"""The reason why an analysis waits, and the visibility table of a completed one."""

from datetime import timedelta
from typing import Any

import pytest

from ingestion_pipeline.websites.analysis_reports import AnalysisReport, PhaseTask, visibility_rows, why_it_waits
from ingestion_pipeline.websites.business import AnalysisStatus
from ingestion_pipeline_tests.builders import NOON

LATER, BEFORE = NOON + timedelta(minutes=5), NOON - timedelta(minutes=5)


def a_task(**changes: Any) -> PhaseTask:
    values: dict[str, Any] = {
        "status": "PENDING",
        "attempts": 0,
        "not_before": BEFORE,
        "lease_until": None,
        "updated_at": BEFORE,
        "error": None,
    }
    return PhaseTask(**(values | changes))


RUNNING = {"status": "PROCESSING", "attempts": 1}


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (None, "it has no task"),
        (a_task(), "claimable since"),
        (a_task(not_before=LATER), "waits until 2026-03-01 12:05 UTC"),
        (a_task(not_before=LATER, attempts=2, error="503"), "UTC, attempt 2 of 3 failed: 503"),
        (a_task(not_before=LATER, error="no provider configured"), "UTC: no provider configured"),
        (a_task(**RUNNING, lease_until=LATER), "running since 2026-03-01 11:55 UTC (attempt 1)"),
        (a_task(**RUNNING, lease_until=BEFORE), "worker lost"),
    ],
)
def test_the_reason_why_an_analysis_waits_is_one_sentence(task: PhaseTask | None, expected: str) -> None:
    sentence = why_it_waits(task, now=NOON, max_attempts=3, step="model-analysis")

    assert sentence.startswith("model-analysis: ")
    assert expected in sentence


def test_a_provider_that_never_answered_has_a_row_without_numbers() -> None:
    visibility = {"answers": 2, "visibility": 0.5, "unprompted": 0.0, "best_rank": 1, "score": 12}
    others = {"Globex": {"visibility": 0.5}, "Initech": {"visibility": 1.0}}
    report = AnalysisReport(
        id=1,
        source_id="website:acme",
        url="https://acme.test",
        status=AnalysisStatus.COMPLETED,
        progress_percent=100,
        progress_message=None,
        failure=None,
        created_at=NOON,
        finished_at=NOON,
        info={"name": "Acme"},
        prompts=[{"text": "?"}, {"text": "!"}],
        analysis={
            "overall": visibility,
            "by_provider": {"one": visibility | {"mean_rank": 1.5, "competitors": others}},
            "competitors": others,
            "failures": {"two": "2 unanswered: http_401"},
        },
        phase_times={},
        ended=(),
        history=(),
    )

    overall, first, second = visibility_rows(report)

    assert (overall.provider, overall.answers, overall.prompts, overall.mean_rank) == ("all", 2, 4, None)
    assert list(first.competitors.items()) == [("Initech", 1.0), ("Globex", 0.5)]
    assert (first.mean_rank, first.prompts, first.failure) == (1.5, 2, None)
    assert (second.answers, second.visibility, second.failure) == (0, None, "2 unanswered: http_401")
