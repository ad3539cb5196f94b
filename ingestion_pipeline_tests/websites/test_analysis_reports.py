"""The states of an analysis and its priority, why it waits, its visibility table, and the plot."""

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingestion_pipeline.sources.status import TaskState
from ingestion_pipeline.tasks.task import TaskStatus
from ingestion_pipeline.websites.analysis_reports import (
    AnalysisReport,
    RankedDay,
    shown_days,
    visibility_picture,
    visibility_rows,
    why_it_waits,
)
from ingestion_pipeline.websites.states import (
    BY_KIND,
    PHASES,
    AnalysisStatus,
    analysis_priority,
    asking_percent,
    task_priority,
)
from ingestion_pipeline_tests.builders import NOON

CASES = yaml.safe_load((Path(__file__).parent / "expected" / "analysis_reports.yaml").read_text(encoding="utf-8"))


def test_each_phase_starts_at_the_end_of_the_previous_phase() -> None:
    assert [phase.after for phase in PHASES[:-1]] == [phase.status for phase in PHASES[1:]]
    assert PHASES[0].status is AnalysisStatus.NOT_STARTED
    assert PHASES[-1].after is AnalysisStatus.COMPLETED


def test_every_state_that_is_not_final_has_a_queue() -> None:
    waiting = {status for status in AnalysisStatus if not status.is_final}

    assert {phase.status for phase in PHASES} == waiting


def test_the_queues_have_their_documented_names() -> None:
    names = {phase.queue: phase.status.value for phase in PHASES}

    assert names == {
        "website-analysis": "not-started",
        "prompt-forming": "prompt-forming",
        "model-analysis": "model-analysis",
    }
    assert all(BY_KIND[phase.kind] is phase for phase in PHASES)


@pytest.mark.parametrize(
    ("minutes", "more", "points"), CASES["the_priority_of_an_analysis_follows_from_age_retries_and_kind"]
)
def test_the_priority_of_an_analysis_follows_from_age_retries_and_kind(
    minutes: int, more: dict[str, int], points: int
) -> None:
    created_at = NOON - timedelta(minutes=minutes)

    assert analysis_priority(created_at=created_at, now=NOON, **more) == points  # type: ignore[arg-type]


def test_a_higher_priority_is_a_smaller_number_in_the_queue() -> None:
    assert task_priority(11) < task_priority(5) < task_priority(0)


def test_progress_grows_from_sixty_to_ninety_by_provider() -> None:
    assert [asking_percent(done, 3) for done in range(4)] == [60, 70, 80, 90]
    assert asking_percent(0, 0) == 60


LATER, BEFORE = NOON + timedelta(minutes=5), NOON - timedelta(minutes=5)


def a_task(**changes: Any) -> TaskState:
    values: dict[str, Any] = dict.fromkeys(TaskState.__dataclass_fields__) | {
        "status": TaskStatus.PENDING,
        "attempts": 0,
        "not_before": BEFORE,
        "updated_at": BEFORE,
    }
    return TaskState(**(values | changes))


RUNNING = {"status": TaskStatus.PROCESSING, "attempts": 1}


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
def test_the_reason_why_an_analysis_waits_is_one_sentence(task: TaskState | None, expected: str) -> None:
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


PNG = b"\x89PNG"


def a_day(number: int, *competitors: str) -> RankedDay:
    return RankedDay(
        day=date(2026, 3, number),
        visibility=0.1 * number,
        score=number,
        by_provider={"one": {"visibility": 0.5}} if number % 2 else {},
        competitors={name: {"visibility": 0.3} for name in competitors},
        cost_usd=None,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Acme", "$x_{y$", "株式会社", "_hidden", "A" * 500])
def test_a_plot_is_drawn_for_any_name(name: str) -> None:
    picture = visibility_picture(name, [a_day(1, name, "Globex"), a_day(2, name)])

    assert picture.startswith(PNG)
    assert len(picture) < 300_000


@pytest.mark.slow
def test_a_plot_is_drawn_without_competitors() -> None:
    assert visibility_picture("Acme", [a_day(1)]).startswith(PNG)


def test_a_plot_without_rankings_is_refused() -> None:
    with pytest.raises(ValueError, match="no ranking"):
        visibility_picture("Acme", [])


def test_the_plot_shows_a_week_at_least() -> None:
    assert shown_days([a_day(10)]) == (date(2026, 3, 7), date(2026, 3, 13))
    assert shown_days([a_day(1), a_day(20)]) == (date(2026, 3, 1), date(2026, 3, 20))
