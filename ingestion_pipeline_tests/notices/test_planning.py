"""The plan of a recipient's messages: tables for what it says, histories for what always holds."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.notices.planning import (
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
from ingestion_pipeline.sources.recipients import Mode
from ingestion_pipeline_tests.builders import NOON

SECOND, MINUTE, HOUR, DAY = (timedelta(**{unit: 1}) for unit in ("seconds", "minutes", "hours", "days"))


def waits(id_: int, series: str = "solo", *, ago: timedelta = HOUR, mode: str = "immediate") -> PendingNotice:
    return PendingNotice(id=id_, series_id=series, mode=Mode(mode), created_at=NOON - ago)


def went(*series: str, ago: timedelta, digest: bool = False) -> SentMessage:
    return SentMessage(at=NOON - ago, series=frozenset(series), is_digest=digest)


def at_noon(waiting: list[PendingNotice], sent: list[SentMessage], **limits: int) -> Plan:
    return plan(waiting, sent, limits=Notices(**limits), now=NOON)


def full(count: int, *, ago: timedelta) -> list[SentMessage]:
    return [went(f"full-{number}", ago=ago) for number in range(count)]


@pytest.mark.parametrize(
    ("waiting", "sent", "planned"),
    [
        pytest.param([], [], Nothing(), id="nothing waits"),
        pytest.param([waits(1, ago=14 * SECOND)], [], WaitUntil(NOON + SECOND), id="window open"),
        pytest.param([waits(1, ago=15 * SECOND)], [], Send((1,)), id="window over"),
        pytest.param([waits(1, ago=15 * SECOND), waits(2, ago=0 * SECOND)], [], Send((1, 2)), id="together"),
        pytest.param([waits(1, "b"), waits(2, "a", ago=DAY)], [], Send((2,)), id="oldest first"),
        pytest.param([waits(1)], [went("solo", ago=59 * MINUTE)], WaitUntil(NOON + MINUTE), id="named lately"),
        pytest.param([waits(1)], [went("solo", ago=HOUR)], Send((1,)), id="named an hour ago"),
        pytest.param([waits(1)], [went("other", ago=SECOND)], Send((1,)), id="another was named"),
        pytest.param(
            [waits(1)],
            [*full(49, ago=2 * HOUR), went("x", ago=20 * HOUR)],
            WaitUntil(NOON + 4 * HOUR),
            id="fifty a day",
        ),
        pytest.param([waits(1), waits(2, "b")], full(49, ago=2 * HOUR), Send((1, 2)), id="one is left for two"),
        pytest.param([waits(1)], full(49, ago=2 * HOUR), Send((1,)), id="one is left for one"),
        pytest.param([waits(1, mode="digest")], [], WaitUntil(NOON + 23 * HOUR), id="a digest gathers for a day"),
        pytest.param(
            [waits(1, mode="digest", ago=DAY), waits(2, "b", mode="digest")], [], Send((1, 2)), id="a digest names all"
        ),
        pytest.param(
            [waits(1, mode="digest", ago=HOUR)],
            [went("b", ago=20 * HOUR, digest=True)],
            WaitUntil(NOON + 4 * HOUR),
            id="a day after the last digest",
        ),
        pytest.param(
            [waits(1, mode="digest", ago=DAY), waits(2, "b", mode="digest", ago=DAY)],
            [went("solo", ago=MINUTE)],
            Send((2,)),
            id="a digest leaves out what was named lately",
        ),
        pytest.param(
            [waits(1, mode="digest", ago=DAY)],
            [went("solo", ago=MINUTE)],
            WaitUntil(NOON + 59 * MINUTE),
            id="a digest of that alone waits",
        ),
    ],
)
def test_what_waits_and_what_went_decide(waiting: list[PendingNotice], sent: list[SentMessage], planned: Plan) -> None:
    assert at_noon(waiting, sent) == planned


def test_the_hourly_cap_holds_where_it_is_the_smaller_one() -> None:
    sent = [went("a", ago=30 * MINUTE), went("b", ago=50 * MINUTE)]

    assert at_noon([waits(1)], sent, per_hour=2) == WaitUntil(NOON + 10 * MINUTE)
    assert at_noon([waits(1)], sent, per_hour=3) == Send((1,))


def test_a_message_is_never_longer_than_receivers_take_and_begins_with_the_oldest() -> None:
    many = [waits(id_, f"s{id_ % 700}") for id_ in range(LONGEST_MESSAGE + 500, 0, -1)]

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


def simulated(
    arrivals: list[tuple[int, str, Mode]], limits: Notices
) -> list[tuple[datetime, tuple[PendingNotice, ...]]]:
    """Every message of the recipient's whole history, with its time."""
    coming = sorted(
        (
            PendingNotice(id=id_, series_id=name, mode=mode, created_at=NOON + seconds * SECOND)
            for id_, (seconds, name, mode) in enumerate(arrivals)
        ),
        key=lambda one: one.created_at,
    )
    waiting: dict[int, PendingNotice] = {}
    sent: list[SentMessage] = []
    messages: list[tuple[datetime, tuple[PendingNotice, ...]]] = []
    now = NOON
    for _ in range(1_000):
        waiting |= {one.id: one for one in coming if one.created_at <= now}
        coming = [one for one in coming if one.created_at > now]
        match plan(list(waiting.values()), sent, limits=limits, now=now):
            case Send(ids):
                assert ids
                some = tuple(waiting.pop(id_) for id_ in ids)  # none twice, none unknown
                messages.append((now, some))
                is_digest = any(one.mode is Mode.DIGEST for one in some)
                names = frozenset(one.series_id for one in some)
                sent.append(SentMessage(at=now, series=names, is_digest=is_digest))
            case WaitUntil(until):
                assert until > now, "it would look again at once, for ever"
                now = min([until, *(one.created_at for one in coming[:1])])
            case Nothing():
                if not coming:
                    return messages
                now = coming[0].created_at
    raise AssertionError("it never came to an end")


@given(ARRIVALS, LIMITS)
def test_whatever_comes_nothing_is_lost_or_told_twice_and_no_cap_is_exceeded(
    arrivals: list[tuple[int, str, Mode]], limits: Notices
) -> None:
    messages = simulated(arrivals, limits)

    told = Counter(one.id for _, some in messages for one in some)
    assert told == Counter(range(len(arrivals)))
    times = [at for at, _ in messages]
    for at in times:
        assert sum(at - HOUR < other <= at for other in times) <= limits.per_hour
        assert sum(at - DAY < other <= at for other in times) <= limits.per_day
    for name in "abcde":
        named = [at for at, some in messages if name in {one.series_id for one in some}]
        assert all(gap >= limits.series_seconds * SECOND for gap in gaps(named))
    digests = [at for at, some in messages if Mode.DIGEST in {one.mode for one in some}]
    assert all(gap >= limits.digest_seconds * SECOND for gap in gaps(digests))


def gaps(times: list[datetime]) -> list[timedelta]:
    return [after - before for before, after in pairwise(times)]
