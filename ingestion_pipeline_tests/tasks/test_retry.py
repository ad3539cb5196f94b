from datetime import datetime, timedelta
from random import Random

import pytest

from ingestion_pipeline.settings import Work
from ingestion_pipeline.tasks.ended_tasks import DeadLetterTask, Decision, ReleaseTask, Retry, after_failure, backoff
from ingestion_pipeline.tasks.errors import Fatal, Permanent, Resource, Transient, WorkError
from ingestion_pipeline.tasks.task import TaskStatus, failed, released, retried
from ingestion_pipeline_tests.builders import NOON, a_task

pytestmark = pytest.mark.both_databases

POLICY = Work()


class Steady(Random):
    """No jitter."""

    def random(self) -> float:
        return 0.0


def decide(error: WorkError, *, attempts: int = 1, policy: Work = POLICY) -> Decision:
    task = a_task(attempts=attempts)
    return after_failure(task, error, now=NOON, policy=policy, random=Steady())


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


BUSY = Transient("503")
TOMORROW = after(86_400)


@pytest.mark.parametrize(
    ("error", "attempts", "decision"),
    [
        pytest.param(BUSY, 1, Retry(after(5)), id="first failure waits the base"),
        pytest.param(BUSY, 2, Retry(after(10)), id="second failure waits twice as long"),
        pytest.param(BUSY, 3, DeadLetterTask(), id="third failure is terminal at once"),
        pytest.param(BUSY, 4, DeadLetterTask(), id="one attempt too many"),
        pytest.param(WorkError("?"), 1, Retry(after(5)), id="an unclassified error is transient"),
        pytest.param(WorkError("?"), 3, DeadLetterTask(), id="an unclassified error is bounded"),
        pytest.param(Transient("429", retry_after=timedelta(seconds=60)), 1, Retry(after(60)), id="retry-after"),
        pytest.param(
            Transient("429", retry_after=timedelta(seconds=1)),
            2,
            Retry(after(10)),
            id="retry-after shorter than the backoff",
        ),
        pytest.param(
            Transient("429", retry_after=timedelta(seconds=60)),
            3,
            DeadLetterTask(),
            id="retry-after at the last attempt",
        ),
        pytest.param(Permanent("404"), 1, DeadLetterTask(), id="permanent"),
        pytest.param(Resource("budget", until=TOMORROW), 1, ReleaseTask(TOMORROW), id="resource"),
        pytest.param(Resource("budget", until=TOMORROW), 9, ReleaseTask(TOMORROW), id="resource late"),
        pytest.param(Fatal("disk"), 1, ReleaseTask(NOON), id="fatal"),
        pytest.param(Fatal("disk"), 3, ReleaseTask(NOON), id="fatal in the last attempt"),
    ],
)
def test_class_and_attempts_decide_what_a_failure_leads_to(error: WorkError, attempts: int, decision: Decision) -> None:
    assert decide(error, attempts=attempts) == decision


def test_with_one_attempt_the_first_failure_is_terminal() -> None:
    assert decide(BUSY, policy=Work(max_attempts=1)) == DeadLetterTask()


@pytest.mark.parametrize(
    ("attempts", "seconds"), [(0, 5), (1, 5), (2, 10), (3, 20), (10, 2_560), (11, 3_600), (40, 3_600), (10_000, 3_600)]
)
def test_the_delay_doubles_up_to_its_cap(attempts: int, seconds: int) -> None:
    assert backoff(attempts, POLICY, Steady()) == timedelta(seconds=seconds)


def test_jitter_only_lengthens_a_delay_by_at_most_its_share() -> None:
    random = Random(7)
    delays = [backoff(2, POLICY, random).total_seconds() for _ in range(1_000)]

    assert min(delays) >= 10
    assert max(delays) <= 11
    assert max(delays) - min(delays) > 0.9


def test_the_same_seed_gives_the_same_delay() -> None:
    assert backoff(1, Work(), Random(7)) == backoff(1, Work(), Random(7))


@pytest.mark.parametrize(
    ("move_name", "status", "attempts"),
    [
        pytest.param("retried", TaskStatus.PENDING, 3, id="a retry counts"),
        pytest.param("released", TaskStatus.PENDING, 2, id="a release costs no attempt"),
        pytest.param("failed", TaskStatus.FAILED, 3, id="dead-lettered"),
    ],
)
def test_a_move_decides_the_attempts(move_name: str, status: TaskStatus, attempts: int) -> None:
    task = a_task(attempts=3)
    move = {
        "retried": retried(task, BUSY, not_before=NOON),
        "released": released(task, BUSY, not_before=NOON),
        "failed": failed(task, BUSY),
    }[move_name]

    assert (move.status, move.attempts) == (status, attempts)
    assert (move.error_class, move.error_code, move.error) == ("transient", "transient", "503")
