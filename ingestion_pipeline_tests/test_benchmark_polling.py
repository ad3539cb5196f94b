"""The bound of the polling benchmark: to know every change beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.polling.bound import least_delay

Changes = list[float]


def ways(changes: Sequence[float]) -> Iterator[tuple[int, float]]:
    """Every way to look right after some of the changes and after the last: requests, delays."""
    *before, last = sorted(changes)
    for count in range(len(before) + 1):
        for chosen in combinations(before, count):
            polls = [*chosen, last]
            yield len(polls), sum(min(poll for poll in polls if poll >= at) - at for at in changes)


def tried(sources: Sequence[Changes], requests: int) -> float:
    """The least sum of delays over all ways, by trying them."""
    best = {0: 0.0}
    for changes in sources:
        after: dict[int, float] = {}
        for spent, delay in best.items():
            for more, late in ways(changes):
                total = spent + more
                after[total] = min(after.get(total, float("inf")), delay + late)
        best = after
    return min(delay for spent, delay in best.items() if spent <= requests)


moments = st.lists(st.integers(0, 500).map(float), min_size=1, max_size=5)


@given(sources=st.lists(moments, min_size=1, max_size=3), data=st.data())
def test_nobody_is_less_late_than_who_knows_every_change(sources: list[Changes], data: st.DataObject) -> None:
    total = sum(map(len, sources))
    requests = data.draw(st.integers(len(sources), total))

    bound = least_delay(sources, requests=requests) * total
    assert bound == pytest.approx(tried(sources, requests), abs=1e-3)


def test_with_a_request_for_each_change_nothing_is_late() -> None:
    assert least_delay([[0, 10, 40], [7]], requests=4) == 0
    assert least_delay([[0, 10, 40], [7]], requests=3) == pytest.approx(10 / 4)
    assert least_delay([[0, 10, 40], [], [7]], requests=2) == pytest.approx(70 / 4)
    with pytest.raises(ValueError, match="2 sources changed; 1 requests"):
        least_delay([[0, 10], [7]], requests=1)
