"""The states of an analysis, and its priority."""

from datetime import timedelta

import pytest

from ingestion_pipeline.websites.business import (
    BY_KIND,
    PHASES,
    AnalysisStatus,
    analysis_priority,
    asking_percent,
    task_priority,
)
from ingestion_pipeline_tests.builders import NOON


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
    ("minutes", "more", "points"),
    [
        (0, {}, 8),
        (59, {}, 8),
        (60, {}, 6),
        (359, {}, 6),
        (360, {}, 5),
        (0, {"retries": 2}, 6),
        (0, {"is_recurring": True}, 10),
        (0, {"is_manual": True}, 9),
        (0, {"is_recurring": True, "is_manual": True}, 11),
        (600, {"retries": 9}, 0),
    ],
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
