"""The plan of a recipient's messages: tables of cases, and simulated histories for its invariants."""

from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.notices.message import (
    LONGEST_MESSAGE,
    Nothing,
    PendingNotice,
    Plan,
    Send,
    SentMessage,
    WaitUntil,
    plan,
)
from ingestion_pipeline.settings import Notices
from ingestion_pipeline.sources.source import Mode
from ingestion_pipeline_tests.builders import NOON

SECOND, MINUTE, HOUR, DAY = (timedelta(**{unit: 1}) for unit in ("seconds", "minutes", "hours", "days"))


def pending(id_: int, series: str = "solo", *, ago: timedelta = HOUR, mode: str = "immediate") -> PendingNotice:
    return PendingNotice(id=id_, series_id=series, mode=Mode(mode), created_at=NOON - ago)


def digest(id_: int, series: str = "solo", *, ago: timedelta = HOUR) -> PendingNotice:
    return pending(id_, series, ago=ago, mode="digest")


def sent_message(*series: str, ago: timedelta, digest: bool = False) -> SentMessage:
    return SentMessage(at=NOON - ago, series=frozenset(series), is_digest=digest)


def at_noon(waiting: list[PendingNotice], sent: list[SentMessage], **limits: int) -> Plan:
    return plan(waiting, sent, limits=Notices(**limits), now=NOON)


def sent_messages(count: int, *, ago: timedelta) -> list[SentMessage]:
    return [sent_message(f"s{number}", ago=ago) for number in range(count)]


@pytest.mark.parametrize(
    ("waiting", "sent", "planned"),
    [
        pytest.param([], [], Nothing(), id="nothing pending"),
        pytest.param([pending(1, ago=14 * SECOND)], [], WaitUntil(NOON + SECOND), id="window open"),
        pytest.param([pending(1, ago=15 * SECOND)], [], Send((1,)), id="window over"),
        pytest.param([pending(1, ago=15 * SECOND), pending(2, ago=0 * SECOND)], [], Send((1, 2)), id="together"),
        pytest.param([pending(1, "b"), pending(2, "a", ago=DAY)], [], Send((2,)), id="oldest first"),
        pytest.param([pending(1)], [sent_message("solo", ago=59 * MINUTE)], WaitUntil(NOON + MINUTE), id="sent lately"),
        pytest.param([pending(1)], [sent_message("solo", ago=HOUR)], Send((1,)), id="sent an hour ago"),
        pytest.param([pending(1)], [sent_message("other", ago=SECOND)], Send((1,)), id="another series was sent"),
        pytest.param(
            [pending(1)],
            [*sent_messages(49, ago=2 * HOUR), sent_message("x", ago=20 * HOUR)],
            WaitUntil(NOON + 4 * HOUR),
            id="fifty a day",
        ),
        pytest.param(
            [pending(1), pending(2, "b")],
            sent_messages(49, ago=2 * HOUR),
            Send((1, 2)),
            id="one message left for two series",
        ),
        pytest.param([pending(1)], sent_messages(49, ago=2 * HOUR), Send((1,)), id="one message left for one series"),
        pytest.param([digest(1)], [], WaitUntil(NOON + 23 * HOUR), id="a digest collects for a day"),
        pytest.param([digest(1, ago=DAY), digest(2, "b")], [], Send((1, 2)), id="a digest lists all"),
        pytest.param(
            [digest(1)],
            [sent_message("b", ago=20 * HOUR, digest=True)],
            WaitUntil(NOON + 4 * HOUR),
            id="a day after the last digest",
        ),
        pytest.param(
            [digest(1, ago=DAY), digest(2, "b", ago=DAY)],
            [sent_message("solo", ago=MINUTE)],
            Send((2,)),
            id="a digest leaves out what was sent lately",
        ),
        pytest.param(
            [digest(1, ago=DAY)],
            [sent_message("solo", ago=MINUTE)],
            WaitUntil(NOON + 59 * MINUTE),
            id="a digest of that alone waits",
        ),
    ],
)
def test_pending_and_sent_messages_decide_the_plan(
    waiting: list[PendingNotice], sent: list[SentMessage], planned: Plan
) -> None:
    assert at_noon(waiting, sent) == planned


def test_the_hourly_cap_holds_where_it_is_smaller() -> None:
    sent = [sent_message("a", ago=30 * MINUTE), sent_message("b", ago=50 * MINUTE)]

    assert at_noon([pending(1)], sent, per_hour=2) == WaitUntil(NOON + 10 * MINUTE)
    assert at_noon([pending(1)], sent, per_hour=3) == Send((1,))


def test_a_message_is_bounded_and_starts_with_the_oldest_notices() -> None:
    many = [pending(id_, f"s{id_ % 700}") for id_ in range(LONGEST_MESSAGE + 500, 0, -1)]

    planned = at_noon(many, [], per_day=1)

    assert planned == Send(tuple(range(1, LONGEST_MESSAGE + 1)))


ARRIVALS = st.lists(
    st.tuples(
        st.integers(0, 3 * 86_400),  # seconds from the start
        st.sampled_from(["a", "b", "c", "d", "e"]),
        st.sampled_from([Mode.IMMEDIATE, Mode.IMMEDIATE, Mode.DIGEST]),
    ),
    max_size=40,
)
LIMITS = st.builds(
    Notices,
    grouping_seconds=st.sampled_from([0, 15, 600]),
    series_seconds=st.sampled_from([0, 3_600, 40_000]),
    per_hour=st.integers(1, 4),
    per_day=st.integers(1, 8),
    digest_seconds=st.sampled_from([3_600, 86_400]),
)


def simulate(
    arrivals: list[tuple[int, str, Mode]], limits: Notices
) -> list[tuple[datetime, tuple[PendingNotice, ...]]]:
    """Return every message of the recipient's whole history, with its time."""
    coming = sorted(
        (
            PendingNotice(id=id_, series_id=name, mode=mode, created_at=NOON + seconds * SECOND)
            for id_, (seconds, name, mode) in enumerate(arrivals)
        ),
        key=lambda notice: notice.created_at,
    )
    waiting: dict[int, PendingNotice] = {}
    sent: list[SentMessage] = []
    messages: list[tuple[datetime, tuple[PendingNotice, ...]]] = []
    now = NOON
    for _ in range(1_000):
        waiting |= {notice.id: notice for notice in coming if notice.created_at <= now}
        coming = [notice for notice in coming if notice.created_at > now]
        match plan(list(waiting.values()), sent, limits=limits, now=now):
            case Send(ids):
                assert ids
                batch = tuple(waiting.pop(id_) for id_ in ids)  # none twice, none unknown
                messages.append((now, batch))
                is_digest = any(notice.mode is Mode.DIGEST for notice in batch)
                names = frozenset(notice.series_id for notice in batch)
                sent.append(SentMessage(at=now, series=names, is_digest=is_digest))
            case WaitUntil(until):
                assert until > now, "it would plan again at once, for ever"
                now = min([until, *(notice.created_at for notice in coming[:1])])
            case Nothing():
                if not coming:
                    return messages
                now = coming[0].created_at
    raise AssertionError("the simulation never ended")


@pytest.mark.slow
@given(ARRIVALS, LIMITS)
def test_any_sequence_of_notices_is_sent_once_within_every_cap(
    arrivals: list[tuple[int, str, Mode]], limits: Notices
) -> None:
    messages = simulate(arrivals, limits)

    sent_ids = Counter(notice.id for _, batch in messages for notice in batch)
    assert sent_ids == Counter(range(len(arrivals)))
    times = [at for at, _ in messages]
    for at in times:
        assert sum(at - HOUR < other <= at for other in times) <= limits.per_hour
        assert sum(at - DAY < other <= at for other in times) <= limits.per_day
    for name in "abcde":
        times_of_series = [at for at, batch in messages if name in {notice.series_id for notice in batch}]
        assert all(gap >= limits.series_seconds * SECOND for gap in gaps(times_of_series))
    digests = [at for at, batch in messages if Mode.DIGEST in {notice.mode for notice in batch}]
    assert all(gap >= limits.digest_seconds * SECOND for gap in gaps(digests))


def gaps(times: list[datetime]) -> list[timedelta]:
    return [after - before for before, after in pairwise(times)]
